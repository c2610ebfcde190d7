# SPDX-License-Identifier: Apache-2.0
"""`tencache top`: the running processes as a table, redrawn in the terminal.

A row is an engine: the memory of one process, or of one of its GPUs. Rates are those since the last
look. The first look has none before it, so it shows the average since tencache started. Nothing
here touches the processes (_live.py). Units: bytes and seconds. Threads: none of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tencache import _live
from tencache._library import TencacheError
from tencache._live import LiveEngine, LiveProcess
from tencache._messages import shortened
from tencache._report import format_bytes

_COLUMNS = (
    "pid",
    "rank",
    "memory of",
    "in use",
    "host",
    "disk",
    "in/s",
    "out/s",
    "stall",
    "early",
    "steps",
)
_COMMAND_LETTERS = 100
_NOBODY = "no process of yours runs under tencache; start one with `tencache run -- …`"

Key = tuple[int, int | None]  # pid, GPU


@dataclass(frozen=True)
class Rates:
    """Bytes per second, and shares from 0 to 1; a share is None where there is nothing to tell."""

    fetched_bytes_per_s: float
    evicted_bytes_per_s: float
    stall_share: float | None
    early_share: float | None


@dataclass(frozen=True)
class Look:
    """The processes at one moment."""

    processes: Sequence[LiveProcess]

    def engines(self) -> dict[Key, tuple[float, LiveEngine]]:
        """The age of each process and its engines, by pid and GPU."""
        return {
            (process.pid, engine.gpu): (process.age_s, engine)
            for process in self.processes
            for engine in process.engines
        }


def rates(now: tuple[float, LiveEngine], before: tuple[float, LiveEngine] | None) -> Rates | None:
    """The rates between two looks at an engine; None if it published nothing in between."""
    zero = dict.fromkeys(now[1].counters, 0)
    begin_s, old = (0.0, zero) if before is None else (before[0], before[1].counters)
    elapsed_s = now[0] - begin_s
    if elapsed_s <= 0:
        return None
    grown = {name: value - old[name] for name, value in now[1].counters.items()}
    asked = grown["early_fetches"] + grown["late_fetches"]
    return Rates(
        fetched_bytes_per_s=grown["fetched"] / elapsed_s,
        evicted_bytes_per_s=grown["evicted"] / elapsed_s,
        stall_share=grown["stall_ns"] * 1e-9 / elapsed_s,
        early_share=grown["early_fetches"] / asked if asked else None,
    )


def all_rates(look: Look, before: Look | None) -> dict[Key, Rates | None]:
    known = before.engines() if before is not None else {}
    return {key: rates(now, known.get(key)) for key, now in look.engines().items()}


def table(look: Look, shown: Mapping[Key, Rates | None]) -> Table:
    """One row for each engine, and below them what each process runs."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        result.add_column(name, justify="left" if name == "memory of" else "right", no_wrap=True)
    for process in look.processes:
        for engine in process.engines:
            result.add_row(*_cells(process, engine, shown.get((process.pid, engine.gpu))))
        if not process.engines:
            result.add_row(str(process.pid), _rank(process), "no GPU used yet")
    commands = [
        f"{process.pid}: {shortened(process.command, _COMMAND_LETTERS)}"
        for process in look.processes
    ]
    result.caption = Text("\n".join(commands) or _NOBODY, style="dim")
    result.caption_justify = "left"
    return result


def _cells(process: LiveProcess, engine: LiveEngine, rate: Rates | None) -> list[str]:
    counters = engine.counters
    return [
        str(process.pid),
        _rank(process),
        "DRAM" if engine.gpu is None else f"GPU {engine.gpu}",
        _of(counters["device_used"], counters["device_budget"]),
        format_bytes(counters["host_used"]) if counters["host_budget"] else "-",
        format_bytes(counters["disk_used"]) if counters["disk_budget"] else "-",
        _speed(rate.fetched_bytes_per_s) if rate else "-",
        _speed(rate.evicted_bytes_per_s) if rate else "-",
        _share(rate.stall_share if rate else None),
        _share(rate.early_share if rate else None),
        str(counters["steps"]),
    ]


def _rank(process: LiveProcess) -> str:
    return "-" if process.rank is None else str(process.rank)


def _of(used: int, budget: int) -> str:
    share = f" {used / budget:.0%}" if budget else ""
    return f"{format_bytes(used)} of {format_bytes(budget)}{share}"


def _speed(bytes_per_s: float) -> str:
    return format_bytes(bytes_per_s)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def to_json(look: Look, shown: Mapping[Key, Rates | None]) -> dict[str, Any]:
    """The look as an object, schema 1; bytes, nanoseconds and seconds."""
    result = []
    for process in look.processes:
        entry = asdict(process)
        for engine in entry["engines"]:
            rate = shown.get((process.pid, engine["gpu"]))
            engine["rates"] = asdict(rate) if rate else None
        result.append(entry)
    return {"schema": 1, "processes": result}


def run(pid: int | None, interval_s: float, console: Console) -> None:
    """Redraws until the user interrupts, or the one process that was named has ended."""
    look = Look(_live.processes(pid))
    before: Look | None = None
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(table(look, all_rates(look, before)), refresh=True)
            time.sleep(interval_s)
            before = look
            try:
                look = Look(_live.processes(pid))
            except TencacheError:
                return
