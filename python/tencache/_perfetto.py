# SPDX-License-Identifier: Apache-2.0
"""Writes a trace for Perfetto's viewer (ui.perfetto.dev, or any other that reads trace events).

The format is Chrome's JSON trace events: the viewer takes it, tools everywhere read and write it,
and it needs no library. Perfetto's own protobuf is smaller, but a trace of tencache has a few
hundred thousand events at most, and the `perfetto` package would be a dependency of every install.

What there is to see:
  - a group "program": a track for each thread with its ops, and marks where steps end
  - a group "waits": a track for each thread that waited, red where the viewer colours them
  - a group "moves": tracks for each direction ("fetch disk to device"); moves that overlap lie on
    tracks of their own
  - counters: bytes in use on the device, and cold bytes on each lower tier
  - an arrow from each late fetch to the op that waited for it

Times of the format are microseconds. Threads: none of its own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tencache._story import Move, Story, Wait

_PROGRAM, _WAITS, _MOVES, _TIERS = 1, 2, 3, 4
_GROUPS = {_PROGRAM: "program", _WAITS: "waits", _MOVES: "moves", _TIERS: "tiers"}

TraceEvent = dict[str, Any]


def to_json(story: Story) -> bytes:
    """The whole file, one event a line."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events(story))
    about = {
        "displayTimeUnit": "ms",
        "otherData": {
            "producer": "tencache",
            "lost_events": story.lost_events,
            "lost_moves": story.lost_moves,
        },
    }
    return (json.dumps(about)[:-1] + ',\n"traceEvents": [\n' + lines + "\n]}\n").encode()


def events(story: Story) -> Iterator[TraceEvent]:
    """Everything of the story as trace events; the viewer sorts them."""
    lanes = _Lanes(story.moves)
    yield from _group_names()
    yield from _ops(story)
    yield from _waits(story)
    yield from lanes.events(story)
    yield from _counters(story)
    yield from _arrows(story.waits, lanes)


def _group_names() -> Iterator[TraceEvent]:
    for group, name in _GROUPS.items():
        yield _about(group, 0, "process_name", name=name)
        yield _about(group, 0, "process_sort_index", sort_index=group)


def _about(group: int, track: int, what: str, **arguments: object) -> TraceEvent:
    return {"ph": "M", "pid": group, "tid": track, "name": what, "args": arguments}


def _slice(
    group: int, track: int, name: str, begin_ns: int, end_ns: int, **arguments: object
) -> TraceEvent:
    return {
        "ph": "X",
        "pid": group,
        "tid": track,
        "cat": _GROUPS[group],
        "name": name,
        "ts": _us(begin_ns),
        "dur": _us(end_ns - begin_ns),
        "args": arguments,
    }


def _us(ns: int) -> float:
    return ns / 1000


def _ops(story: Story) -> Iterator[TraceEvent]:
    for thread in sorted({op.thread for op in story.ops}):
        yield _about(_PROGRAM, _track(thread), "thread_name", name=f"thread {thread}")
    for op in story.ops:
        arguments: dict[str, object] = {}
        for what, extents in (("reads", op.reads), ("writes", op.writes)):
            if extents:
                arguments[what] = [story.names.get(extent, extent) for extent in extents]
        if op.end_ns is None:
            arguments["unfinished"] = True
        end_ns = story.end_ns if op.end_ns is None else op.end_ns
        yield _slice(_PROGRAM, _track(op.thread), op.name, op.begin_ns, end_ns, **arguments)
    for at_ns in story.steps_ns:
        yield {
            "ph": "i",
            "s": "g",  # through all tracks
            "pid": _PROGRAM,
            "tid": 0,
            "cat": "step",
            "name": "step",
            "ts": _us(at_ns),
        }


def _track(thread: int) -> int:
    return thread + 1  # 0 is the group itself


def _waits(story: Story) -> Iterator[TraceEvent]:
    for thread in sorted({wait.thread for wait in story.waits}):
        yield _about(_WAITS, _track(thread), "thread_name", name=f"waits of thread {thread}")
    for wait in story.waits:
        for_what = "wait for a fetch" if wait.fetches else "wait for room"
        arguments: dict[str, object] = {"op": wait.op.name if wait.op else "none"}
        if wait.fetches:
            arguments["tensors"] = [
                story.tensor_name(fetch.extent, fetch.bytes) for fetch in wait.fetches
            ]
        event = _slice(
            _WAITS, _track(wait.thread), for_what, wait.begin_ns, wait.end_ns, **arguments
        )
        yield {**event, "cname": "terrible"}


class _Lanes:
    """The tracks of the moves: in each direction as many as there are moves at once."""

    def __init__(self, moves: Iterable[Move]) -> None:
        self._lane_of: dict[int, int] = {}  # by the move's identity
        self._names: dict[int, str] = {}
        self._moves = sorted(moves, key=lambda move: move.begin_ns)
        ends: dict[str, list[tuple[int, int]]] = defaultdict(list)  # lane, end of its last move
        for move in self._moves:
            direction = f"{move.kind.replace('_', ' ')} {move.source} to {move.target}"
            self._lane_of[id(move)] = self._place(move, direction, ends[direction])

    def _place(self, move: Move, direction: str, lanes: list[tuple[int, int]]) -> int:
        for index, (lane, end_ns) in enumerate(lanes):
            if end_ns <= move.begin_ns:
                lanes[index] = (lane, move.end_ns)
                return lane
        lane = len(self._names) + 1
        self._names[lane] = direction if not lanes else f"{direction} ({len(lanes) + 1})"
        lanes.append((lane, move.end_ns))
        return lane

    def lane_of(self, move: Move) -> int:
        return self._lane_of[id(move)]

    def events(self, story: Story) -> Iterator[TraceEvent]:
        for position, lane in enumerate(sorted(self._names, key=lambda lane: self._names[lane])):
            yield _about(_MOVES, lane, "thread_name", name=self._names[lane])
            yield _about(_MOVES, lane, "thread_sort_index", sort_index=position)
        for move in self._moves:
            arguments: dict[str, object] = {"extent": move.extent, "bytes": move.bytes}
            if move.kind == "fetch":
                arguments["ahead"] = move.is_ahead
            elif move.kind == "evict":
                arguments["copied"] = move.is_copied
            name = story.tensor_name(move.extent, move.bytes)
            yield _slice(_MOVES, self.lane_of(move), name, move.begin_ns, move.end_ns, **arguments)


def _counters(story: Story) -> Iterator[TraceEvent]:
    for move in sorted(story.moves, key=lambda move: move.end_ns):
        yield _counter("device, bytes in use", move.end_ns, move.device_used)
    for tier, points in story.cold_bytes().items():
        for at_ns, value in points:
            yield _counter(f"{tier}, cold bytes", at_ns, value)


def _counter(name: str, at_ns: int, value: int) -> TraceEvent:
    arguments = {"bytes": value}
    return {"ph": "C", "pid": _TIERS, "name": name, "ts": _us(at_ns), "args": arguments}


def _arrows(waits: Iterable[Wait], lanes: _Lanes) -> Iterator[TraceEvent]:
    """Each from the start of a fetch to the end of the wait, where its op goes on."""
    late = ((wait, wait.op, fetch) for wait in waits if wait.op for fetch in wait.fetches)
    for number, (wait, op, fetch) in enumerate(late, 1):
        common = {"id": number, "cat": "late", "name": "late fetch"}
        yield {
            **common,
            "ph": "s",
            "pid": _MOVES,
            "tid": lanes.lane_of(fetch),
            "ts": _us(fetch.begin_ns),
        }
        yield {
            **common,
            "ph": "f",
            "bp": "e",  # the slice around this time, not the next one
            "pid": _PROGRAM,
            "tid": _track(op.thread),
            "ts": _us(wait.end_ns),
        }
