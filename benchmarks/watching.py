# SPDX-License-Identifier: Apache-2.0
"""What does it cost to watch a run: `--stats`, and `tencache top` beside it?

Trains a GPT-2 under a budget that never spills, three ways in turn: plainly, with `--stats FILE`,
and while `tencache top` looks at it once a second, its default. Compared is the processor time of a
step, of all threads of the program; the goal is at most 0.5 % more. What `top` itself takes of a
processor is told apart.

Such differences are far below what one pair of runs can show. So ratios are means over many rounds,
with twice their standard error.

    python benchmarks/watching.py
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import training
from reporting import Report, Table
from training import GptShape

import support
from support import GIB, MeanRatio, Variant

SHAPE = GptShape(layers=8, width=512, heads=8, vocabulary=4096, sequence=128, batch=2)
WARMUP, STEPS = 4, 12
GOAL = 1.005
OPTIONS = {"device_memory": 8 * GIB}
PLAIN, WITH_TOP = Variant("tencache", OPTIONS), Variant("tencache top", OPTIONS)


def processor_s(pid: int) -> float:
    """User and system time that a running process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drain(terminal: int) -> None:
    """Reads what is drawn, until nobody draws any more."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


@contextlib.contextmanager
def watched() -> Iterator[dict[str, float]]:
    """`tencache top` runs in a terminal meanwhile. Tells in the end what it took of a processor."""
    told: dict[str, float] = {}
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "tencache", "top"]
    top = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    reader = threading.Thread(target=drain, args=(master,))
    reader.start()
    try:
        time.sleep(2)  # it has started
        begin, begin_s = time.monotonic(), processor_s(top.pid)
        yield told
        if top.poll() is not None:
            raise support.BenchmarkFailed(f"tencache top ended with status {top.returncode}")
        told["share"] = (processor_s(top.pid) - begin_s) / (time.monotonic() - begin)
    finally:
        top.terminate()
        top.wait()
        reader.join()
        os.close(master)


def measure(variant: Variant) -> dict[str, Any]:
    job = training.job(SHAPE, warmup=WARMUP, steps=STEPS)
    if variant is not WITH_TOP:
        return support.run_worker("training.py", job, variant)
    with watched() as told:
        result = support.run_worker("training.py", job, variant)
    return {**result, "top_share": told["share"]}


def rows(runs: dict[str, list[dict[str, Any]]], variants: Sequence[Variant]) -> list[list[str]]:
    made = []
    for variant in variants:
        row = [variant.name]
        for kind in ("step_s", "step_processor_s"):
            found, plain = (
                [support.median(run[kind]) for run in runs[name]]
                for name in (variant.name, PLAIN.name)
            )
            row += [
                support.format_ns(support.median(found) * 1e9),
                str(MeanRatio.of(found, plain)) if variant is not PLAIN else "1",
            ]
        made.append(row)
    return made


def verdict(runs: dict[str, list[dict[str, Any]]], variant: Variant) -> str:
    found, plain = (
        [support.median(run["step_processor_s"]) for run in runs[name]]
        for name in (variant.name, PLAIN.name)
    )
    return MeanRatio.of(found, plain).verdict(
        variant.name, GOAL, "the processor time of a step that nobody watches"
    )


def main() -> None:
    parser = support.arguments("What watching a run costs it.", rounds=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stats = Variant("tencache --stats", {**OPTIONS, "stats": f"{folder}/stats.json"})
        variants = [PLAIN, stats, WITH_TOP]
        runs = support.interleave(
            variants, options.rounds, measure, quiet_wait_s=options.quiet_wait
        )
    top_share = support.median(run["top_share"] for run in runs[WITH_TOP.name])
    report = Report(
        name="watching",
        question="What does it cost to watch a run?",
        command="python benchmarks/watching.py",
        facts=support.machine_facts(("torch", "transformers")),
        verdicts=[verdict(runs, variant) for variant in (stats, WITH_TOP)]
        + [f"`tencache top` itself takes {top_share:.1%} of one processor."],
        tables=[
            Table(
                "Time of a step",
                ("variant", "step", "ratio", "processor time", "ratio"),
                rows(runs, variants),
            )
        ],
        notes=[
            f"{training.describe(SHAPE, runs[PLAIN.name][0]['parameters'])}, fused AdamW. "
            + support.foreign_note(runs),
            f"{options.rounds} rounds; in each the variants run once in a process of their own, "
            f"{WARMUP} steps of warm-up, then {STEPS} that count. Times: median of a process' "
            "steps, then of the rounds. Ratios: mean over the rounds +- twice its standard error. "
            "Processor time is that of all threads of the program.",
        ],
        data={
            name: [
                {kind: support.median(run[kind]) for kind in ("step_s", "step_processor_s")}
                for run in of
            ]
            for name, of in runs.items()
        },
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
