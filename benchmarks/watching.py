# SPDX-License-Identifier: Apache-2.0
"""What does it cost to watch a run: `--stats`, and `tencache top` beside it?

The benchmark trains a GPT-2 under a budget that never spills: in turn plainly and with `--stats
FILE`; then once beside `tencache top`, which looks once a second, its default, and stands still
beside half of the parts into which the steps are divided. It compares the processor time of a step,
of all threads of the program; the goal is at most 0.5 % more. What `top` itself takes of a
processor is shown apart.

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
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import training
from reporting import Report, Table
from training import GptShape

import support
from support import GIB, MeanRatio, Variant

SHAPE = GptShape(layers=8, width=512, heads=8, vocabulary=4096, sequence=128, batch=2)
WARMUP, STEPS = 4, 12
# A part lasts seconds, so `top` looks several times; a stopped `top` also looks when it goes on.
STEPS_OF_A_PART = 20
GOAL = 1.005
OPTIONS = {"device_memory": 8 * GIB}
PLAIN, WITH_TOP = Variant("tencache", OPTIONS), Variant("tencache top", OPTIONS)
KINDS = ("step_s", "step_processor_s")


def drain(terminal: int) -> None:
    """Reads what is drawn, until nobody draws any more."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


@contextlib.contextmanager
def top_in_a_terminal() -> Iterator[subprocess.Popen[bytes]]:
    """`tencache top` runs in a terminal meanwhile."""
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    command = [sys.executable, "-m", "tencache", "top"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    top = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    reader = threading.Thread(target=drain, args=(master,))
    reader.start()
    try:
        time.sleep(2)  # by then `top` has started
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


def measure_with_top(pairs: int) -> dict[str, Any]:
    """One program: what its steps took in the parts beside a `top` that looks, and in the others.

    `top_share` is what top took of a processor while it looked.
    """
    parts = 2 * pairs
    with top_in_a_terminal() as top:
        job = {
            **training.job(SHAPE, warmup=WARMUP, steps=parts * STEPS_OF_A_PART),
            "pauses": {"pid": top.pid, "steps": STEPS_OF_A_PART},
        }
        run = support.run_worker("training.py", job, WITH_TOP)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    plain: dict[str, list[float]] = {kind: [] for kind in KINDS}
    top_s = 0.0
    for part in range(parts):
        steps = slice(part * STEPS_OF_A_PART, (part + 1) * STEPS_OF_A_PART)
        for kind in KINDS:
            into = plain if training.is_paused_in(part) else found
            into[kind].append(statistics.fmean(run[kind][steps]))
        if not training.is_paused_in(part):
            top_s += run["beside_processor_s"][part]
    watched_s = sum(found[KINDS[0]]) * STEPS_OF_A_PART
    return {
        "found": found,
        "plain": plain,
        "top_share": top_s / watched_s,
        "foreign_share": run["foreign_share"],
    }


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
    support.wait_for_quiet(options.quiet_wait)
    beside_top = measure_with_top(options.rounds)
    pairs = {
        stats.name: of_processes(runs, stats.name),
        WITH_TOP.name: Pairs(beside_top["found"], beside_top["plain"]),
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
                ("watched by", "step, unwatched", "ratio", "processor time, unwatched", "ratio"),
                [of.row(name) for name, of in pairs.items()],
            )
        ],
        notes=[
            f"{training.describe(SHAPE, runs[PLAIN.name][0]['parameters'])}, fused AdamW. "
            f"{support.foreign_note({**runs, WITH_TOP.name: [beside_top]})} Of the one beside top "
            "this includes top itself.",
            f"--stats: {options.rounds} pairs of processes, {WARMUP} steps of warm-up, then "
            f"{STEPS} that count. top: one process, {options.rounds} pairs of parts of "
            f"{STEPS_OF_A_PART} steps; a stopped top also looks when it goes on. Times: median of "
            "means. Ratios: mean over the pairs +- twice its standard error. Processor time is "
            "that of all threads of the program.",
        ],
        data={name: of.data() for name, of in pairs.items()},
    )
    report.write(options.output)
    print(report.markdown())


if __name__ == "__main__":
    support.run_main(main)
