#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soaks: training while something goes wrong around it, for as long as one likes.

Each soak plays rounds on the cpu backend and, beside it, on cuda on an emulated GPU. Without
options the number of rounds is fixed and small, as in CI. With --minutes it goes on for that long.
The outcome of a round is right bits, a clear message, or a program that the soak itself killed and
that left nothing behind; anything else is a failure, and the line that repeats it is printed. The
table at the end also goes to results.md and results.json.

Usage: make soak ARGS="--minutes 60"
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from checkpoints import Checkpoints
from disk_faults import RingFaults, ThreadFaults
from drift import Drift
from forks import Forks
from kills import Kills
from rich.console import Console
from rich.table import Table
from rounds import CUT, FAILED, MESSAGE, RIGHT, Outcome, Soak, Unavailable
from zygote import HERE, ROOT, Zygote

SOAKS: tuple[type[Soak], ...] = (Kills, ThreadFaults, RingFaults, Forks, Drift, Checkpoints)
BACKENDS = ("cpu", "cuda")
VERDICTS = (RIGHT, MESSAGE, CUT, FAILED)
COLUMNS = ("soak", "backend", "rounds", *VERDICTS, "what", "seconds")
FAILURES_SHOWN = 5  # of one soak; a soak with that many is given up

WIDTH = 120  # of the table, where the output is no terminal

# This is set when the soaks are to end after the rounds under way: one has raised, or the user asks
# for it.
stopping = threading.Event()
console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)


@dataclass
class Result:
    """All rounds of one soak on one backend."""

    soak: type[Soak]
    backend: str
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""

    def add(self, outcome: Outcome, repeat: str) -> None:
        self.counts[outcome.verdict] += 1
        self.counts.update(outcome.counts)
        if outcome.verdict == FAILED:
            self.failures.append(f"{outcome.detail}\n{repeat}")
            console.print(
                f"FAILED: {outcome.detail}\n    again: {repeat}", markup=False, soft_wrap=True
            )

    def row(self) -> list[str]:
        what = ", ".join(f"{n} {name}" for name, n in self.counts.items() if name not in VERDICTS)
        verdicts = [str(self.counts[verdict]) for verdict in VERDICTS]
        text = "; ".join(filter(None, (what, self.note)))
        return [
            self.soak.name,
            self.backend,
            str(self.rounds),
            *verdicts,
            text,
            f"{self.seconds:.0f}",
        ]


@dataclass(frozen=True)
class Choice:
    """What the command line asks for."""

    minutes: float | None
    seed: int
    only: tuple[str, ...]
    backends: tuple[str, ...]
    first: int
    rounds: int | None
    results: Path

    def repeats(self, result: Result, number: int) -> str:
        long = "" if self.minutes is None else f" --minutes {self.minutes:g}"
        return (
            f"make soak ARGS=\"--only '{result.soak.name}' --backend {result.backend} "
            f'--seed {self.seed} --first {number} --rounds 1{long}"'
        )


def parsed(arguments: list[str]) -> Choice:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, help="go on for so long (default: a short round)")
    parser.add_argument("--seed", type=int, help="default: another one each time")
    parser.add_argument("--only", action="append", choices=[soak.name for soak in SOAKS])
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="default: both")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--rounds", type=int, help="how many rounds of each soak, at most")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "soak", help="folder")
    given = parser.parse_args(arguments)
    return Choice(
        minutes=given.minutes,
        seed=time.time_ns() % 1_000_000_007 if given.seed is None else given.seed,
        only=tuple(given.only or (soak.name for soak in SOAKS)),
        backends=tuple(given.backend or BACKENDS),
        first=given.first,
        rounds=given.rounds,
        results=given.results.resolve(),
    )


def faults_library(folder: Path) -> Path:
    """Compiles faults.cpp, if it is newer than its library."""
    source, library = HERE / "faults.cpp", folder / "libfaults.so"
    if library.exists() and library.stat().st_mtime_ns > source.stat().st_mtime_ns:
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++-12") or "g++"
    options = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", library, source], check=True)
    return library


def play_all(choice: Choice, work: Path) -> list[Result]:
    """Plays every soak on every backend. The backends run side by side."""
    library = faults_library(ROOT / "build" / "soak")
    with ThreadPoolExecutor(max_workers=len(choice.backends)) as pool:
        playing = [
            pool.submit(play_backend, backend, choice, work / backend, library)
            for backend in choice.backends
        ]
        try:
            return [result for played in playing for result in played.result()]
        finally:
            stopping.set()


def play_backend(backend: str, choice: Choice, work: Path, library: Path) -> list[Result]:
    """Plays every soak on a backend; the time is shared among those that are left."""
    work.mkdir()
    played = [
        (soak, size)
        for soak in SOAKS
        if soak.name in choice.only and (size := soak.size_on(backend)) is not None
    ]
    parts_left = sum(size.parts for _, size in played)
    end_s = None if choice.minutes is None else time.monotonic() + 60 * choice.minutes
    results: list[Result] = []
    zygote = Zygote(backend, library, work)
    for soak, size in played:
        until_s = None
        if end_s is not None:
            now_s = time.monotonic()
            until_s = now_s + max(0.0, end_s - now_s) * size.parts / parts_left
        parts_left -= size.parts
        results.append(play_one(soak, zygote, choice, work, until_s))
    zygote.close()
    return results


def play_one(
    soak: type[Soak], zygote: Zygote, choice: Choice, work: Path, until_s: float | None
) -> Result:
    result = Result(soak, zygote.backend)
    console.print(f"==> {soak.name} on {zygote.backend}: {soak.about}")
    begin_s = time.monotonic()
    try:
        with soak(zygote, work) as played:
            result.note = played.note
            play_rounds(played, result, choice, until_s)
    except Unavailable as error:
        result.note = f"skipped: {error}"
    result.seconds = time.monotonic() - begin_s
    row = "  ".join(result.row()[2:])
    console.print(f"    {soak.name} on {zygote.backend}: {row}", markup=False)
    return result


def play_rounds(soak: Soak, result: Result, choice: Choice, until_s: float | None) -> None:
    size = soak.size_on(soak.backend)
    assert size is not None
    rounds = size.short if until_s is None else size.long
    if choice.rounds is not None:
        rounds = min(rounds, choice.rounds)
    for number in range(choice.first, choice.first + rounds):
        if stopping.is_set():
            return
        if result.rounds and until_s is not None and time.monotonic() > until_s:
            break
        chance = random.Random(f"{choice.seed} {soak.name} {soak.backend} {number}")
        outcome = soak.play(number, chance, is_long=until_s is not None)
        result.rounds += 1
        result.add(outcome, choice.repeats(result, number))
        if len(result.failures) >= FAILURES_SHOWN:
            console.print(f"{soak.name}: given up after {FAILURES_SHOWN} failures")
            return
    last = soak.finish(result.rounds, result.counts)
    if last is None:
        return
    if last.verdict != FAILED:
        result.counts.update(last.counts)
    else:
        result.add(last, "after the last round; the same line without --first and --rounds")


def table_of(results: list[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("soak", "backend", "what") else "right")
    for result in results:
        table.add_row(*result.row(), style="red" if result.failures else None)
    return table


def write_results(choice: Choice, results: list[Result]) -> None:
    choice.results.mkdir(parents=True, exist_ok=True)
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(result.row() for result in results)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    facts = f"Seed {choice.seed}; Linux {platform.release()}; Python {platform.python_version()}."
    (choice.results / "results.md").write_text("\n".join(["# Soaks", "", facts, "", *lines]) + "\n")
    data = {
        "seed": choice.seed,
        "minutes": choice.minutes,
        "kernel": platform.release(),
        "soaks": [
            {
                "soak": result.soak.name,
                "backend": result.backend,
                "rounds": result.rounds,
                "counts": dict(result.counts),
                "failures": result.failures,
                "seconds": round(result.seconds, 1),
                "note": result.note,
            }
            for result in results
        ],
    }
    (choice.results / "results.json").write_text(json.dumps(data, indent=2) + "\n")


def leave(number: int, _frame: object) -> None:
    """Ends as after an interrupt: after the rounds under way, with nothing left mounted."""
    raise SystemExit(128 + number)


def main() -> int:
    signal.signal(signal.SIGTERM, leave)
    choice = parsed(sys.argv[1:])
    build = ROOT / "build" / "soak"
    build.mkdir(parents=True, exist_ok=True)
    console.print(f"seed {choice.seed}")
    with tempfile.TemporaryDirectory(dir=build, ignore_cleanup_errors=True) as work:
        results = play_all(choice, Path(work))
    console.print()
    console.print(table_of(results))
    write_results(choice, results)
    with contextlib.suppress(ValueError):
        shown = choice.results.relative_to(ROOT)
        console.print(f"\nAlso in {shown}/results.md and results.json.")
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
