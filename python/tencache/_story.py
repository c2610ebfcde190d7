# SPDX-License-Identifier: Apache-2.0
"""What a trace tells: ops, moves between tiers, waits and what each wait was for.

`tell` reads a trace file once and joins what belongs together. A wait stands at its end, inside the
op that waited. The fetches it waited for are those of tensors that the op names, if they ran during
the wait; a wait without any was for room. A tensor is known by its name, else by the op that
allocated it.

A trace keeps each thread's newest events and the newest moves, so a story fits into memory. Times
are nanoseconds since tencache started. Threads: none of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tencache._trace import MOVE_KINDS, TraceReader
from tencache._units import format_bytes


@dataclass
class Op:
    """One op on a thread; the trace may end before it does."""

    thread: int
    name: str
    begin_ns: int
    end_ns: int | None = None
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Move:
    """One extent on its way from tier to tier."""

    kind: str
    extent: int
    bytes: int
    begin_ns: int
    end_ns: int
    source: str
    target: str
    device_used: int
    is_ahead: bool
    is_copied: bool


@dataclass(frozen=True)
class Wait:
    """A thread stood still, in this op if in any, for these fetches or else for room."""

    thread: int
    op: Op | None
    begin_ns: int
    end_ns: int
    fetches: tuple[Move, ...]

    @property
    def took_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Change:
    """Memory that the program took (bytes above 0) or gave back (below)."""

    at_ns: int
    extent: int
    bytes: int


@dataclass(frozen=True)
class Stall:
    """Time that threads waited for one thing: its name, how long and how often."""

    name: str
    ns: int
    count: int


@dataclass
class Story:
    """All of one trace, each list in order of time."""

    ops: list[Op] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    steps_ns: list[int] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    allocated_by: dict[int, str] = field(default_factory=dict)
    begin_ns: int = 0
    end_ns: int = 0
    lost_events: int = 0
    lost_moves: int = 0
    has_moves: bool = True
    run_id: object = None  # as in the stats of the run; None: the trace has none

    def tensor_name(self, extent: int, size: int) -> str:
        """ "layers.0.weight", "40.0 MiB made by aten::mm", or its number."""
        name = self.names.get(extent)
        if name is not None:
            return name
        op = self.allocated_by.get(extent)
        made = f"made by {op}" if op else "allocated before the trace, or outside of ops"
        return f"{format_bytes(size)} {made}"

    def stalls_by_op(self) -> list[Stall]:
        """The ops that waited, the longest first."""
        return _largest(
            (wait.op.name if wait.op else "outside of ops", wait.took_ns) for wait in self.waits
        )

    def stalls_by_tensor(self) -> list[Stall]:
        """What was waited for; a wait for several tensors counts for each by its bytes."""
        return _largest(self._shares())

    def _shares(self) -> Iterator[tuple[str, float]]:
        for wait in self.waits:
            total = sum(fetch.bytes for fetch in wait.fetches)
            if not total:
                yield "room: nothing had left yet", wait.took_ns
            for fetch in wait.fetches:
                name = self.tensor_name(fetch.extent, fetch.bytes)
                yield name, wait.took_ns * fetch.bytes / total

    def cold_bytes(self) -> dict[str, list[tuple[int, int]]]:
        """The bytes of cold extents on each lower tier: (time, bytes) at each change."""
        places = self._first_places()
        totals: dict[str, int] = defaultdict(int)
        for tier, size in places.values():
            totals[tier] += size
        points = {tier: [(self.begin_ns, total)] for tier, total in totals.items()}
        for at_ns, extent, tier, size in sorted(self._departures(), key=lambda step: step[0]):
            old_tier, old_size = places.get(extent, ("device", 0))
            places[extent] = (tier, size)
            totals[old_tier] -= old_size
            totals[tier] += size
            for changed in {old_tier, tier} - {"device"}:
                points.setdefault(changed, []).append((at_ns, totals[changed]))
        return points

    def _departures(self) -> Iterator[tuple[int, int, str, int]]:
        """(when, extent, the tier that has it now, its bytes); device: it is not cold."""
        for move in self.moves:
            yield move.end_ns, move.extent, move.target, move.bytes
        for change in self.changes:
            if change.bytes < 0:
                yield change.at_ns, change.extent, "device", 0

    def _first_places(self) -> dict[int, tuple[str, int]]:
        """The extents that were cold at first: those whose first move comes from a lower tier."""
        first: dict[int, tuple[str, int]] = {}
        for move in self.moves:
            first.setdefault(move.extent, (move.source, move.bytes))
        return {extent: place for extent, place in first.items() if place[0] != "device"}


def tell(path: Path) -> Story:
    """Reads the trace; raises TencacheError for a file that is none."""
    reader = TraceReader(path)
    story = Story(
        names=reader.names,
        lost_events=reader.lost_count,
        lost_moves=reader.lost_moves,
        has_moves=reader.has_moves,
        run_id=reader.run_id,
    )
    teller = _Teller(story)
    for event in reader.events():
        teller.add(event.written)
    return story


class _Teller:
    """Adds events to a story, in order of time."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._open: dict[int, list[Op]] = defaultdict(list)  # by thread, outermost first
        self._fetches: dict[int, Move] = {}  # the newest of each extent
        self._is_first = True

    def add(self, written: dict[str, Any]) -> None:
        story, kind, at_ns = self._story, written["kind"], written["ns"]
        if self._is_first:
            story.begin_ns, self._is_first = at_ns, False
        story.end_ns = max(story.end_ns, at_ns + written.get("took_ns", 0))
        if kind in MOVE_KINDS:
            self._add_move(written)
            return
        stack = self._open[written["thread"]]
        if kind == "op_begin":
            op = Op(written["thread"], written["op"], at_ns)
            stack.append(op)
            story.ops.append(op)
        elif kind == "op_end":
            if stack and stack[-1].name == written["op"]:
                stack.pop().end_ns = at_ns
        elif kind in ("read", "write"):
            if stack:
                (stack[-1].reads if kind == "read" else stack[-1].writes).append(written["extent"])
        elif kind == "allocate":
            story.changes.append(Change(at_ns, written["extent"], written["bytes"]))
            if stack:
                story.allocated_by[written["extent"]] = stack[-1].name
        elif kind == "free":
            story.changes.append(Change(at_ns, written["extent"], -written["bytes"]))
        elif kind == "step":
            story.steps_ns.append(at_ns)
        elif kind == "wait":
            self._add_wait(written, stack[-1] if stack else None)

    def _add_move(self, written: dict[str, Any]) -> None:
        move = Move(
            kind=written["kind"],
            extent=written["extent"],
            bytes=written["bytes"],
            begin_ns=written["ns"],
            end_ns=written["ns"] + written["took_ns"],
            source=written["from"],
            target=written["to"],
            device_used=written["device_used"],
            is_ahead=written.get("ahead", False),
            is_copied=written.get("copied", True),
        )
        self._story.moves.append(move)
        if move.kind == "fetch":
            self._fetches[move.extent] = move

    def _add_wait(self, written: dict[str, Any], op: Op | None) -> None:
        end_ns = written["ns"]
        begin_ns = max(0, end_ns - written["waited_ns"])
        named = dict.fromkeys((*op.reads, *op.writes)) if op else {}
        fetches = [self._fetches[extent] for extent in named if extent in self._fetches]
        late = tuple(fetch for fetch in fetches if fetch.end_ns > begin_ns)
        self._story.waits.append(Wait(written["thread"], op, begin_ns, end_ns, late))


def _largest(parts: Iterator[tuple[str, float]]) -> list[Stall]:
    total: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for name, ns in parts:
        total[name] += ns
        count[name] += 1
    stalls = [Stall(name, round(ns), count[name]) for name, ns in total.items()]
    return sorted(stalls, key=lambda stall: (-stall.ns, stall.name))
