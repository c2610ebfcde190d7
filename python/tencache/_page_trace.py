# SPDX-License-Identifier: Apache-2.0
"""The parts of the report's page that only a trace can fill: what moved when, what waited for what.

A trace keeps the newest events, so these parts show the end of the run; the page says how much of
it. Threads: none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tencache import _charts
from tencache._drawing import size_unit_for
from tencache._messages import counted
from tencache._page_parts import DeviceWords, Section, Table, device_words, of_another_run, scaled
from tencache._story import Stall, Story
from tencache._units import format_time

_ROWS_MAX = 20
_HOW = (
    "Run the program with --trace FILE beside --stats, or give the trace of this run with --trace."
)


def trace_sections(
    story: Story | None, stats: Mapping[str, Any], other_trace: Path | None = None
) -> list[Section]:
    """The two sections; `other_trace` lies in the place of the run's trace, from another run."""
    moves = Section("moves", "What moved when")
    stalls = Section("stalls", "Stalls by op and by tensor")
    if story is None:
        why = f"is not known without a trace{of_another_run(other_trace)}. {_HOW}"
        moves.missing.append(f"What moved when {why}")
        stalls.missing.append(f"Which ops and tensors waited {why}")
        return [moves, stalls]
    if not story.ops:
        for section in (moves, stalls):
            section.missing.append(
                "The trace has no ops: they are watched once use passes the option arm_at of the "
                "budget. Give a smaller --device-memory."
            )
        return [moves, stalls]
    begin_ns = story.ops[0].begin_ns
    seconds = (story.end_ns - begin_ns) * 1e-9
    part = f"The trace holds the last {seconds:.3g} s of {stats['wall_s']:.3g} s"
    if story.lost_events:
        part += f"; {story.lost_events} older events were not kept"
    moves.texts.append(f"{part}. Times count from the start of tencache.")
    words = device_words(stats)
    _fill_moves(moves, story, begin_ns, words)
    _fill_stalls(stalls, story, words)
    return [moves, stalls]


def _fill_moves(section: Section, story: Story, begin_ns: int, words: DeviceWords) -> None:
    if not story.has_moves:
        section.missing.append("An older tencache wrote the trace, without moves. Run it again.")
        return
    section.drawings.append(_timeline("All of the trace", story, begin_ns, story.end_ns))
    if len(story.steps_ns) > 2:
        first, last = story.steps_ns[-2:]
        section.drawings.append(_timeline("The last whole step", story, first, last))
    used = [(move.end_ns * 1e-9, float(move.device_used)) for move in story.moves]
    used = sorted(point for point in used if point[0] >= begin_ns * 1e-9)
    if len(used) > 1:
        unit, name = size_unit_for(max(value for _, value in used))
        section.drawings.append(
            _charts.lines(
                f"Bytes in use {words.where}, at each move",
                [_charts.Line(f"{words.name}, in use", scaled(used, unit), "c1", True)],
                _charts.second_text,
                lambda value: f"{value:g} {name}",
                160,
            )
        )


def _timeline(title: str, story: Story, begin_ns: int, end_ns: int) -> str:
    spans: dict[str, list[tuple[float, float]]] = {}
    for move in story.moves:
        spans.setdefault(_kind(move.kind, move.is_ahead, move.is_copied), []).append(
            (move.begin_ns * 1e-9, move.end_ns * 1e-9)
        )
    waits = [(wait.begin_ns * 1e-9, wait.end_ns * 1e-9) for wait in story.waits]
    strips = [
        _charts.Strip(name, spans[name], style) for name, style in _STYLES.items() if name in spans
    ]
    strips.append(_charts.Strip("waits", waits, "bad"))
    return _charts.timeline(title, strips, begin_ns * 1e-9, end_ns * 1e-9, _charts.second_text)


_STYLES = {
    "fetched ahead of use": "c3",
    "fetched on demand": "c1",
    "evicted, copied": "c2",
    "evicted without a copy": "idle",
    "host memory to disk": "c4",
    "disk to host memory": "c4",
}


def _kind(kind: str, is_ahead: bool, is_copied: bool) -> str:
    if kind == "fetch":
        return "fetched ahead of use" if is_ahead else "fetched on demand"
    if kind == "evict":
        return "evicted, copied" if is_copied else "evicted without a copy"
    return "host memory to disk" if kind == "demote" else "disk to host memory"


def _fill_stalls(section: Section, story: Story, words: DeviceWords) -> None:
    total_ns = sum(wait.took_ns for wait in story.waits)
    if not total_ns:
        section.texts.append("No thread waited while the trace was kept.")
        return
    text = f"Threads waited {format_time(total_ns)} in {counted(len(story.waits), 'wait')}."
    if words.runs_ahead:
        text += " They run ahead of the GPU: not all of it held the device up."
    section.texts.append(text)
    by_op = story.stalls_by_op()
    section.drawings.append(
        _charts.bars(
            "Ops that waited longest",
            [
                _charts.Bar(
                    stall.name,
                    stall.ns,
                    f"{format_time(stall.ns)} ({stall.ns / total_ns:.0%})",
                    "bad",
                )
                for stall in by_op[:_ROWS_MAX]
            ],
        )
    )
    head = ("waited", "share", "waits")
    section.tables.append(Table("By op", ("op", *head), _rows(by_op, total_ns)))
    section.tables.append(
        Table("By tensor", ("tensor", *head), _rows(story.stalls_by_tensor(), total_ns))
    )
    if not story.names:
        section.missing.append(
            "The trace has no names of parameters. Those of modules and optimizers are found at "
            "the end of a step; else the program can give some: "
            "tencache.name_tensors(model.named_parameters())."
        )


def _rows(stalls: Sequence[Stall], total_ns: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (stall.name, format_time(stall.ns), f"{stall.ns / total_ns:.0%}", str(stall.count))
        for stall in stalls[:_ROWS_MAX]
    ]
    rest = stalls[_ROWS_MAX:]
    if rest:
        ns = sum(stall.ns for stall in rest)
        count = sum(stall.count for stall in rest)
        rows.append((f"{len(rest)} others", format_time(ns), f"{ns / total_ns:.0%}", str(count)))
    return rows
