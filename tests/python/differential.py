# SPDX-License-Identifier: Apache-2.0
"""The differential harness: runs a program stock and under tencache, and compares every bit.

A program is one of tests/python/programs: an ordinary script that writes exact results as JSON.
Each pytest process measures its stock results and its peak once. The peak is the highest sum of its
tensors' bytes in a stock run, as torch's memory profiler, or on a GPU torch's allocator, reports
it; budgets are shares of it.
A pytest process runs one program at a time, in a child of its preforked server (prefork.py) or,
with fresh=True, as `python program.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import clean_environment
from preforked import TIMEOUT_S, Job, PreforkedServer

PROGRAMS = Path(__file__).resolve().parent / "programs"
# This is small, so that small programs have many extents; smaller blocks never go cold.
EXTENT_MIN = "16KiB"
BOUNDLESS = "64GiB"
# The profiler follows the main thread and autograd's threads, but not those that a program starts.
# So the peak of such a program is given here: two models of 189 k parameters with gradients and
# Adam's state, activations, three matrices.
PEAKS_BYTES = {"threads": 8 << 20}


def program_names() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "exact")


@dataclass(frozen=True)
class Outcome:
    """A program's exact results, tencache's stats (None if stock), and its output."""

    results: dict[str, Any]
    stats: dict[str, Any] | None
    output: str


class ProgramFailed(AssertionError):
    """A program ended with a status other than 0; the message carries its output."""


def environment_for(variables: Mapping[str, str]) -> dict[str, str]:
    return clean_environment({"HF_HUB_OFFLINE": "1", **variables})


class Harness:
    """Runs programs; remembers their stock results and peaks. A session has one; close() ends it.

    `base` is set for every run, stock or not (PROGRAM_DEVICE).
    """

    def __init__(self, folder: Path, base: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._base = dict(base or {})
        self._is_on_gpu = self._base.get("PROGRAM_DEVICE", "cpu") != "cpu"
        self._server = PreforkedServer("programs", environment_for(self._base))
        self._stock: dict[str, dict[str, Any]] = {}
        self._peaks: dict[str, int] = {}

    def stock(self, program: str) -> dict[str, Any]:
        if program not in self._stock:
            if self._is_on_gpu:
                self._profile(program)
            else:
                self._stock[program] = self.run(program, {}).results
        return self._stock[program]

    def peak_bytes(self, program: str) -> int:
        """The highest sum of the tensors' bytes in a stock run."""
        if program not in self._peaks:
            if not self._is_on_gpu and program in PEAKS_BYTES:
                self._peaks[program] = PEAKS_BYTES[program]
            else:
                self._profile(program)
        return self._peaks[program]

    def run(self, program: str, variables: Mapping[str, str], fresh: bool = False) -> Outcome:
        """Runs a program with these TENCACHE variables; raises ProgramFailed if it fails."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            results, stats, log = folder / "results.json", folder / "stats.json", folder / "log"
            if variables:
                variables = {**variables, "TENCACHE_STATS": str(stats)}
            if fresh:
                status = self._run_fresh(program, variables, folder, [str(results)], log)
            else:
                status = self._run_forked(program, variables, folder, [str(results)], log)
            output = log.read_text(errors="replace") if log.exists() else ""
            if status != "0":
                raise ProgramFailed(f"{program} with {dict(variables)}: status {status}\n{output}")
            return Outcome(
                json.loads(results.read_text()),
                json.loads(stats.read_text()) if variables else None,
                output,
            )

    def close(self) -> None:
        self._server.close()

    def _run_fresh(
        self,
        program: str,
        variables: Mapping[str, str],
        folder: Path,
        arguments: list[str],
        log: Path,
    ) -> str:
        with log.open("w") as output:
            done = subprocess.run(
                [sys.executable, str(PROGRAMS / f"{program}.py"), *arguments],
                cwd=folder,
                env=environment_for({**self._base, **variables}),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            )
        return str(done.returncode)

    def _profile(self, program: str) -> None:
        """Learns the peak from a stock run.

        A GPU's own allocator counts it anyway, for every thread, so there one run also gives the
        stock results.
        """
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            results, log, peak = folder / "results.json", folder / "log", folder / "peak"
            status = self._run_forked(program, {}, folder, [str(results)], log, str(peak))
            if status != "0":
                raise ProgramFailed(f"{program}, profiled: status {status}\n{log.read_text()}")
            self._peaks[program] = int(peak.read_text())
            if self._is_on_gpu:
                self._stock[program] = json.loads(results.read_text())

    def _run_forked(
        self,
        program: str,
        variables: Mapping[str, str],
        folder: Path,
        arguments: list[str],
        log: Path,
        profile: str | None = None,
    ) -> str:
        job = Job(
            program=str(PROGRAMS / f"{program}.py"),
            folder=str(folder),
            output=str(log),
            arguments=tuple(arguments),
            environment={**self._base, **variables},
            profile=profile,
        )
        return self._server.run(job)


def switch() -> dict[str, str]:
    return {"TENCACHE": "1", "TENCACHE_EXTENT_MIN": EXTENT_MIN}


def budget_variables(budget_bytes: int, chaos_seed: int | None) -> dict[str, str]:
    variables = {**switch(), "TENCACHE_DEVICE_MEMORY": str(budget_bytes)}
    if chaos_seed is not None:
        variables["TENCACHE_CHAOS"] = str(chaos_seed)
    return variables


def assert_same_bits(stock: Mapping[str, Any], outcome: Outcome) -> None:
    """Asserts that all values are equal; names up to five that differ."""
    results = outcome.results
    assert results.keys() == stock.keys(), sorted(results.keys() ^ stock.keys())
    differing = [name for name in stock if results[name] != stock[name]]
    first = {name: (stock[name], results[name]) for name in differing[:5]}
    assert not differing, (
        f"{len(differing)} of {len(stock)} values differ: {first}\n{outcome.output}"
    )


def assert_budget_kept(stats: Mapping[str, Any]) -> None:
    """Asserts that the peak is within the budget, or the stats say exactly how far beyond."""
    for device in stats.get("gpus") or [stats]:
        over = device["over_budget"]
        excess_bytes = device["peak"]["device"] - device["budget"]["device"]
        assert over["peak_bytes"] == max(0, excess_bytes), stats
        assert (over["events"] > 0) == (excess_bytes > 0), stats
