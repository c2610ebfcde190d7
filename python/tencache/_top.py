# SPDX-License-Identifier: Apache-2.0
"""`tencache top`: the running processes as a table, redrawn in the terminal.

A row is an engine: the memory of one process, or of one of its GPUs. Rates are those since the last
look. The first look has none before it, so it shows the average since tencache started. Columns
that would tell no row from another are left out, and so are those of least worth where the terminal
is too narrow. A file, a pipe or a terminal that cannot be redrawn gets a table for each look, with
its time. Nothing here touches the processes (_live.py).
Units: bytes and seconds. Threads: none of its own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tencache import _live
from tencache._library import TencacheError
from tencache._live import LiveEngine, LiveProcess
from tencache._messages import shortened
from tencache._units import format_bytes

_COMMAND_LETTERS, _PROGRAM_LETTERS = 100, 20
_GAP = 1  # letters between two columns
_WIDE = 500  # letters; wider than any table, for rich takes 80 where there is no terminal
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


def table(
    look: Look, shown: Mapping[Key, Rates | None], width: int | None = None
) -> tuple[Table, Text]:
    """One row for each engine, and the lines for below them: what each process runs.

    The table is no wider than `width`, as far as that is possible; None: as wide as need be.
    """
    rows = [
        (process, engine, shown.get((process.pid, engine.gpu)))
        for process in look.processes
        for engine in process.engines
    ]
    cells = {
        column.name: [column.text(*row) for row in rows]
        for column in _COLUMNS
        if column.is_needed(look)
    }
    left_out = _leave_out(cells, width)
    result = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in cells:
        result.add_column(name, justify="right", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        result.add_row(*map(Text, row))  # rich takes a plain string for markup
    lines = [
        f"{process.pid}: {shortened(process.command, _COMMAND_LETTERS)}"
        + ("" if process.engines else " (it has used no GPU yet)")
        for process in look.processes
    ] or [_NOBODY]
    if left_out:
        lines.append(f"left out, for lack of width: {', '.join(left_out)}")
    return result, Text("\n".join(lines), style="dim")


def _leave_out(cells: dict[str, list[str]], width: int | None) -> list[str]:
    """Removes columns until the rest fits; returns their names, in the order of the table."""
    names = list(cells)
    for name in _LEFT_OUT_FIRST:
        if width is None or _width(cells) <= width:
            break
        cells.pop(name, None)
    return [name for name in names if name not in cells]


def _width(cells: Mapping[str, Sequence[str]]) -> int:
    widths = [max(map(cell_len, (name, *texts))) for name, texts in cells.items()]
    return sum(widths) + _GAP * (len(widths) - 1)


def _of_tier(tier: str) -> Callable[[LiveProcess, LiveEngine, Rates | None], str]:
    def text(_process: LiveProcess, engine: LiveEngine, _rate: Rates | None) -> str:
        budget = engine.counters[f"{tier}_budget"]
        return format_bytes(engine.counters[f"{tier}_used"]) if budget else "-"

    return text


def _in_use(_process: LiveProcess, engine: LiveEngine, _rate: Rates | None) -> str:
    used, budget = engine.counters["device_used"], engine.counters["device_budget"]
    return f"{used / budget:.0%} of {format_bytes(budget)}" if budget else "-"


def _memory(_process: LiveProcess, engine: LiveEngine, _rate: Rates | None) -> str:
    return "DRAM" if engine.gpu is None else f"GPU {engine.gpu}"


def _cut(program: str) -> str:
    name = shortened(program, max(len(program), 1))  # control characters, but no note inside
    return name if len(name) <= _PROGRAM_LETTERS else f"{name[: _PROGRAM_LETTERS - 1]}…"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


@dataclass(frozen=True)
class Column:
    """A column of the table; one that would tell nothing is left out."""

    name: str
    text: Callable[[LiveProcess, LiveEngine, Rates | None], str]
    is_needed: Callable[[Look], bool] = lambda _look: True


_COLUMNS = (
    Column("pid", lambda process, _engine, _rate: str(process.pid)),
    Column(
        "user",
        lambda process, _engine, _rate: process.user,
        lambda look: len({process.user for process in look.processes}) > 1,
    ),
    Column(
        "program",
        lambda process, _engine, _rate: _cut(process.program),
        lambda look: len(look.processes) > 1,
    ),
    Column(
        "rank",
        lambda process, _engine, _rate: "-" if process.rank is None else str(process.rank),
        lambda look: any(process.rank is not None for process in look.processes),
    ),
    Column("memory", _memory),
    Column("in use", _in_use),
    Column(
        "host",
        _of_tier("host"),
        lambda look: any(one.counters["host_budget"] for _, one in look.engines().values()),
    ),
    Column("disk", _of_tier("disk")),
    Column("in/s", lambda _p, _e, rate: format_bytes(rate.fetched_bytes_per_s) if rate else "-"),
    Column("out/s", lambda _p, _e, rate: format_bytes(rate.evicted_bytes_per_s) if rate else "-"),
    Column("stall", lambda _p, _e, rate: _share(rate.stall_share if rate else None)),
    Column("early", lambda _p, _e, rate: _share(rate.early_share if rate else None)),
    Column("steps", lambda _p, engine, _r: str(engine.counters["steps"])),
)


# The columns that a narrow table leaves out, the least useful first. The lines below the table tell
# the program of each process.
_LEFT_OUT_FIRST = (
    "program",
    "steps",
    "early",
    "user",
    "disk",
    "host",
    "rank",
    "out/s",
    "in/s",
    "stall",
    "memory",
)


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


def is_screen(console: Console) -> bool:
    """Whether the console can be redrawn, as a terminal can. FORCE_COLOR gives a file no screen."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


def fit(console: Console) -> int | None:
    """Makes the console as wide as a table may be; returns that width, or None for no limit."""
    columns = os.environ.get("COLUMNS", "")
    said = int(columns) if columns.isdecimal() else 0
    if not is_screen(console):
        # Set both at once, or a dumb terminal keeps its 80 letters.
        console.size = ConsoleDimensions(said or _WIDE, console.height)
        return said or None
    if console.width < 1:  # rich believes COLUMNS=0
        console.width = shutil.get_terminal_size().columns
    return console.width


def print_look(look: Look, shown: Mapping[Key, Rates | None], console: Console) -> None:
    """Prints the table; a reader of the file or pipe has it at once."""
    rows, lines = table(look, shown, fit(console))
    console.print(rows)
    console.print(lines, soft_wrap=True)
    console.file.flush()


def run(pid: int | None, interval_s: float, console: Console) -> None:
    """Shows look after look until the user interrupts, or the one named process has ended."""
    looks = _looks(pid, interval_s)
    if not is_screen(console):
        for look, shown in looks:
            console.print(time.strftime("%Y-%m-%d %H:%M:%S"), highlight=False)
            print_look(look, shown, console)
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for look, shown in looks:
            live.update(Group(*table(look, shown, fit(console))), refresh=True)


def _looks(pid: int | None, interval_s: float) -> Iterator[tuple[Look, dict[Key, Rates | None]]]:
    """Looks with their rates. Raises TencacheError if the named process is not there at first."""
    look, before = Look(_live.processes(pid)), None
    while True:
        yield look, all_rates(look, before)
        time.sleep(interval_s)
        before = look
        try:
            look = Look(_live.processes(pid))
        except TencacheError:
            return
