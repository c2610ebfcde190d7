# SPDX-License-Identifier: Apache-2.0
"""What does it cost to watch a run: `--stats`, and `tencache top` beside it?

Trains a GPT-2 under a budget that never spills: in turn plainly and with `--stats FILE`; then once
beside `tencache top`, which looks once a second, its default, for some steps and stands still for
as many, in turn. Compared is the processor time of a step, of all threads of the program; the goal
is at most 0.5 % more. What `top` itself takes of a processor is told apart.

Such differences are far below what one pair can show. So ratios are means over many pairs, with
twice their standard error.

    python benchmarks/watching.py
"""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import training
from reporting import Report, Table
from training import GptShape

import support
from support import GIB, MeanRatio, Variant

SHAPE = GptShape(layers=8, width=512, heads=8, vocabulary=4096, sequence=128, batch=2)
WARMUP, STEPS = 4, 12
# Enough for one or two looks of `top`, and short beside what else changes on a machine.
STEPS_OF_A_PART = 8
PAIRS_PER_ROUND = 4
GOAL = 1.005
OPTIONS = {"device_memory": 8 * GIB}
PLAIN, WITH_TOP = Variant("tencache", OPTIONS), Variant("tencache top", OPTIONS)
KINDS = ("step_s", "step_processor_s")


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
def top_in_a_terminal() -> Iterator[subprocess.Popen[bytes]]:
    """`tencache top` runs in a terminal meanwhile."""
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "tencache", "top"]
    top = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    reader = threading.Thread(target=drain, args=(master,))
    reader.start()
    try:
        time.sleep(2)  # it has started
        yield top
        if top.poll() is not None:
            raise support.BenchmarkFailed(f"tencache top ended with status {top.returncode}")
    finally:
        top.terminate()
        top.send_signal(signal.SIGCONT)
        top.wait()
        reader.join()
        os.close(master)


def measure(variant: Variant) -> dict[str, Any]:
    return support.run_worker(
        "training.py", training.job(SHAPE, warmup=WARMUP, steps=STEPS), variant
    )


def measure_with_top(rounds: int) -> dict[str, Any]:
    """One program beside `top`: what its steps took in parts with and without it."""
    parts = 2 * PAIRS_PER_ROUND * rounds
    with top_in_a_terminal() as top:
        begin_s = processor_s(top.pid)
        job = {
            **training.job(SHAPE, warmup=WARMUP, steps=parts * STEPS_OF_A_PART),
            "pauses": {"pid": top.pid, "steps": STEPS_OF_A_PART},
        }
        run = support.run_worker("training.py", job, WITH_TOP)
        top_s = processor_s(top.pid) - begin_s
    by_part = {
        kind: [
            statistics.fmean(run[kind][part * STEPS_OF_A_PART :][:STEPS_OF_A_PART])
            for part in range(parts)
        ]
        for kind in KINDS
    }
    watched_s = sum(by_part["step_s"][::2]) * STEPS_OF_A_PART
    return {**by_part, "top_share": top_s / watched_s}


class Pairs:
    """Times of steps with something and without, pair by pair."""

    def __init__(self, found: Mapping[str, list[float]], plain: Mapping[str, list[float]]) -> None:
        self._found, self._plain = found, plain

    def row(self, name: str) -> list[str]:
        cells = [name]
        for kind in KINDS:
            cells += [
                support.format_ns(support.median(self._plain[kind]) * 1e9),
                str(MeanRatio.of(self._found[kind], self._plain[kind])),
            ]
        return cells

    def verdict(self, name: str) -> str:
        ratio = MeanRatio.of(self._found[KINDS[1]], self._plain[KINDS[1]])
        return ratio.verdict(name, GOAL, "the processor time of a step that nobody watches")

    def data(self) -> dict[str, Mapping[str, list[float]]]:
        return {"with": self._found, "without": self._plain}


def of_processes(runs: Mapping[str, list[dict[str, Any]]], name: str) -> Pairs:
    found, plain = (
        {kind: [statistics.fmean(run[kind]) for run in runs[of]] for kind in KINDS}
        for of in (name, PLAIN.name)
    )
    return Pairs(found, plain)


def main() -> None:
    parser = support.arguments("What watching a run costs it.", rounds=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stats = Variant("tencache --stats", {**OPTIONS, "stats": f"{folder}/stats.json"})
        runs = support.interleave(
            [PLAIN, stats], options.rounds, measure, quiet_wait_s=options.quiet_wait
        )
    beside_top = measure_with_top(options.rounds)
    pairs = {
        stats.name: of_processes(runs, stats.name),
        WITH_TOP.name: Pairs(
            {kind: beside_top[kind][::2] for kind in KINDS},
            {kind: beside_top[kind][1::2] for kind in KINDS},
        ),
    }
    report = Report(
        name="watching",
        question="What does it cost to watch a run?",
        command="python benchmarks/watching.py",
        facts=support.machine_facts(("torch", "transformers")),
        verdicts=[of.verdict(name) for name, of in pairs.items()]
        + [f"`tencache top` itself takes {beside_top['top_share']:.1%} of one processor."],
        tables=[
            Table(
                "Time of a step",
                ("watched by", "step without", "with", "processor time without", "with"),
                [of.row(name) for name, of in pairs.items()],
            )
        ],
        notes=[
            f"{training.describe(SHAPE, runs[PLAIN.name][0]['parameters'])}, fused AdamW. "
            + support.foreign_note(runs),
            f"--stats: {options.rounds} pairs of processes, {WARMUP} steps of warm-up, then "
            f"{STEPS} that count. top: one process, {PAIRS_PER_ROUND * options.rounds} pairs of "
            f"{STEPS_OF_A_PART} steps. Times: median of means. Ratios: mean over the pairs +- "
            "twice its standard error. Processor time is that of all threads of the program.",
        ],
        data={name: of.data() for name, of in pairs.items()},
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
