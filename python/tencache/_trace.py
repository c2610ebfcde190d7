# SPDX-License-Identifier: Apache-2.0
"""Reads a trace file: the events that the recorder kept, one JSON object a line.

The core writes the file when the program ends under `--trace FILE` and describes its format
(allocator/learn/trace_writer.h): a line about the file, then events in order of time. An event
belongs to the innermost op that is open on its thread. This module works that out, and how long
each op took. Moves between tiers belong to no thread. Everything is a generator, so a file of any
length is shown without being held in memory. A line that is not an event is an error that names
file and line. Threads: none of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencache import _file_kinds
from tencache._library import TencacheError
from tencache._messages import shortened
from tencache._units import format_bytes

_FORMAT = "tencache-events"
_VERSIONS = (1, 2)
MOVE_KINDS = ("fetch", "evict", "demote", "read_back")
# What an event of each kind says, besides "ns" and "kind"; a reader relies on it.
_FIELDS: dict[str, tuple[str, ...]] = {
    "op_begin": ("thread", "op"),
    "op_end": ("thread", "op"),
    "read": ("thread", "extent", "bytes"),
    "write": ("thread", "extent", "bytes"),
    "allocate": ("thread", "extent", "bytes"),
    "free": ("thread", "extent", "bytes"),
    "step": ("thread",),
    "wait": ("thread", "waited_ns"),
    **dict.fromkeys(MOVE_KINDS, ("took_ns", "extent", "bytes", "from", "to", "device_used")),
}
KINDS = tuple(_FIELDS)
_HEADER = f"{'ms':>12}  {'thread':>6}  {'event':<9}  {'took us':>9}  {'extent':>7}  {'size':>8}  op"


@dataclass(frozen=True)
class Event:
    """One event as written, with what earlier events of its thread tell about it."""

    written: dict[str, Any]
    op: str  # the op itself, or the one in which this happened, else ""
    took_ns: int | None  # of a move or a wait; at an op's end, if its start is in the trace

    @property
    def kind(self) -> str:
        return str(self.written["kind"])


class TraceReader:
    """A trace file: what its first line says, and its events.

    Raises TencacheError if the file is not a trace, or of an unknown version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        kind = _file_kinds.kind_of(path)
        if kind not in (None, _file_kinds.TRACE):
            raise TencacheError(self._refusal(1, f"the file is {kind}"))
        with path.open(encoding="utf-8", errors="replace") as file:
            description = self._parse(1, file.readline())
        if description.get("format") != _FORMAT:
            raise TencacheError(self._refusal(1, f"its format is not {_FORMAT}"))
        if description.get("version") not in _VERSIONS:
            raise TencacheError(
                f"{path} is a trace of version {description.get('version')}, and this tencache "
                f"reads versions {_VERSIONS[0]} and {_VERSIONS[1]}. Use the tencache that wrote it."
            )
        lost_count = description.get("lost")
        if not isinstance(lost_count, int):
            raise TencacheError(self._refusal(1, "it does not say how many events were lost"))
        self.lost_count = lost_count
        # The id is that of the run's stats; earlier builds wrote none.
        self.run_id = description.get("run_id")
        # Traces of version 1 have neither moves nor names.
        self.has_moves = "moves_lost" in description
        try:
            self.lost_moves = int(description.get("moves_lost", 0))
            self.names = {
                int(extent): str(name) for extent, name in description.get("names", {}).items()
            }
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise TencacheError(self._refusal(1, "its moves_lost or names are damaged")) from error

    def events(self) -> Iterator[Event]:
        """All events in order of time."""
        open_ops: dict[
            int, list[tuple[str, int]]
        ] = {}  # per thread: name and begin, outermost first
        with self._path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    continue
                written = self._parse(number, line)
                self._check(number, written)
                if written["kind"] in MOVE_KINDS:
                    yield Event(written, "", written["took_ns"])
                else:
                    yield _resolve(written, open_ops.setdefault(written["thread"], []))

    def _parse(self, number: int, line: str) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TencacheError(self._refusal(number, "it is not JSON")) from error
        if not isinstance(value, dict):
            raise TencacheError(self._refusal(number, "it is not a JSON object"))
        return value

    def _check(self, number: int, written: dict[str, Any]) -> None:
        for field in ("kind", "ns", *_FIELDS.get(str(written.get("kind")), ("thread",))):
            if field not in written:
                raise TencacheError(self._refusal(number, f"it lacks {field!r}"))

    def _refusal(self, number: int, reason: str) -> str:
        return (
            f"{self._path}, line {number}, is not from a trace: {reason}. Traces are written by "
            "`tencache run --trace FILE -- …` when the program ends."
        )


def select(events: Iterator[Event], *, op: str | None, kinds: frozenset[str]) -> Iterator[Event]:
    """Events of ops whose name contains `op`, of one of the `kinds` (empty means all)."""
    for event in events:
        if (not kinds or event.kind in kinds) and (op is None or op in event.op):
            yield event


def table_lines(events: Iterator[Event]) -> Iterator[str]:
    """The events as aligned columns, one line each, below a line with the columns' names."""
    yield _HEADER
    for event in events:
        written = event.written
        took = "" if event.took_ns is None else f"{event.took_ns / 1e3:.1f}"
        size = format_bytes(written["bytes"]) if "bytes" in written else ""
        what = event.op
        if event.kind in MOVE_KINDS:
            what = f"{written['from']} to {written['to']}"
        yield (
            f"{written['ns'] / 1e6:>12.3f}  {written.get('thread', '')!s:>6}  {event.kind:<9}  "
            f"{took:>9}  {written.get('extent', '')!s:>7}  {size:>8}  {shortened(what)}"
        ).rstrip()


def _resolve(written: dict[str, Any], open_ops: list[tuple[str, int]]) -> Event:
    """Adds op and duration to an event; keeps `open_ops` of its thread up to date."""
    kind = written["kind"]
    if kind == "op_begin":
        open_ops.append((written["op"], written["ns"]))
        return Event(written, written["op"], None)
    if kind == "op_end":
        # If the start was overwritten in the ring, the end stands alone.
        if open_ops and open_ops[-1][0] == written["op"]:
            return Event(written, written["op"], written["ns"] - open_ops.pop()[1])
        return Event(written, written["op"], None)
    return Event(written, open_ops[-1][0] if open_ops else "", written.get("waited_ns"))
