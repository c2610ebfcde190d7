# SPDX-License-Identifier: Apache-2.0
"""What the page of `tencache report` is made of: sections with texts, drawings and tables.

These are plain values. _page.py and _page_trace.py fill them in, and _page.html shows them.
Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows of text below a header; the first cell of a row names it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    """A part of the page; `missing` says what it lacks and how to get it."""

    key: str
    title: str
    texts: list[str] = field(default_factory=list)
    drawings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DeviceWords:
    """What a page calls the device tier, in the words of the run's backend."""

    name: str
    of: str
    where: str
    who_waits: str
    runs_ahead: bool  # threads queue work and go on


def device_words(stats: Mapping[str, Any]) -> DeviceWords:
    """The words for this run: on the cpu backend the device tier is DRAM, and threads wait."""
    if stats.get("backend") == "cpu":
        return DeviceWords("DRAM", "DRAM", "in DRAM", "threads", runs_ahead=False)
    return DeviceWords("device", "the device", "on the device", "the device", runs_ahead=True)


def of_another_run(path: Path | None) -> str:
    """A clause for what lies in the place of a run's file; empty if nothing does."""
    return "" if path is None else f", and {path} is of another run"


def scaled(points: Sequence[tuple[float, float]], unit: float) -> list[tuple[float, float]]:
    """The points with their values in this unit."""
    return [(at, value / unit) for at, value in points]
