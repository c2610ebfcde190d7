# SPDX-License-Identifier: Apache-2.0
"""Draws one predicted period of `tencache plan` over time, as PNG or SVG.

Above, the drawing shows the bytes on the device, the budget, and all bytes that exist, which would
be there if everything fitted. Below, in strips with the same time axis, it shows when bytes are
written and read, what is dropped because its slot already has its bytes, and in red when the
program waits. Everything is what the simulator played.

Time is cut into equal stretches, about as wide as a line of the drawing. For bytes each stretch
shows the largest value in it; for writing, reading and waiting, the share of it that they take; for
drops, a mark. So short events are neither hidden nor exaggerated, and ten ops and a hundred
thousand make drawings of the same size. The model takes the processor time of moves from all ops
alike; that time stands at the end of the axis, so that the axis is as long as the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencache._charts import covered
from tencache._drawing import save, size_unit_for, time_unit_for, write_beside
from tencache._library import TencacheError
from tencache._pipe import speeds
from tencache._plan import Prediction, Report
from tencache._units import format_bytes, format_time

STRETCHES = 800
_HEADROOM = 1.15  # above what exists, for names
_USED_COLOR, _BUDGET_COLOR, _EXISTING_COLOR = "#9dbfe3", "#1f5fa8", "#555555"
_WRITTEN_COLOR, _DROPPED_COLOR, _READ_COLOR = "#b4552d", "#dba68a", "#2f7f5f"
_STALL_COLOR, _WORK_COLOR = "#d62728", "#e4e4e4"

Spans = list[tuple[int, int]]  # begin and end, in nanoseconds since the period began


@dataclass(frozen=True)
class Timeline:
    """The events of one period; the fields are those of tencache_plan_timeline()."""

    step_ns: int
    work_ns: int
    begin_ns: list[int]
    stall_ns: list[int]
    used_bytes: list[int]
    existing_bytes: list[int]
    evictions: Spans
    fetches: Spans

    @staticmethod
    def of(answer: dict[str, Any]) -> Timeline:
        spans = {
            name: list(zip(answer[name]["begin_ns"], answer[name]["end_ns"], strict=True))
            for name in ("evictions", "fetches")
        }
        return Timeline(**{**answer, **spans})

    @property
    def played_ns(self) -> int:
        """The end of the last op: the step without the processor time of its moves."""
        return self.step_ns - self.work_ns

    @property
    def due_ns(self) -> list[int]:
        """When each op could have begun without waiting: the end of the one before it."""
        return [begin - stall for begin, stall in zip(self.begin_ns, self.stall_ns, strict=True)]

    @property
    def stalls(self) -> Spans:
        return list(zip(self.due_ns, self.begin_ns, strict=True))

    def shares(self, spans: Spans) -> list[float]:
        """How much of each stretch the spans cover."""
        return covered(spans, 0, self.played_ns, STRETCHES, least=0.0)

    def marks(self, times_ns: Iterable[int]) -> list[float]:
        """1 for each stretch in which one of the times lies, else 0."""
        marked = {self._stretch(time) for time in times_ns}
        return [float(stretch in marked) for stretch in range(STRETCHES)]

    def most(self, values: Sequence[int]) -> list[int]:
        """The largest value in each stretch; each value holds while its op is due or runs."""
        result = [0] * STRETCHES
        due_ns = self.due_ns
        for value, begin, end in zip(values, due_ns, [*due_ns[1:], self.played_ns], strict=True):
            first = self._stretch(begin)
            # An end on the border of two stretches belongs to the first.
            last = max(first, (end * STRETCHES - 1) // self.played_ns)
            for stretch in range(first, last + 1):
                result[stretch] = max(result[stretch], value)
        return result

    def _stretch(self, time_ns: int) -> int:
        return min(STRETCHES - 1, max(0, time_ns * STRETCHES // self.played_ns))


def write_timeline(path: Path, report: Report) -> None:
    """Draws the first budget of the report; `check_path` has accepted the path."""
    prediction = report.predictions[0]
    timeline = Timeline.of(report.planner.timeline(prediction.budget_bytes))
    if not timeline.played_ns:
        raise TencacheError(
            f"{path} cannot be drawn: {report.file} takes no time under a budget of "
            f"{format_bytes(prediction.budget_bytes)}. Give its ops a compute_ns above 0."
        )
    save(draw(timeline, prediction, report), path)


def draw(timeline: Timeline, prediction: Prediction, report: Report) -> Any:
    """The figure: one panel of bytes, and a strip for each thing that takes time."""
    from matplotlib.figure import Figure

    time_unit, time_name = time_unit_for(timeline.step_ns)
    played = timeline.played_ns / time_unit
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    panels = figure.subplots(
        5, 1, sharex=True, gridspec_kw={"height_ratios": [10, 1, 1, 1, 1], "hspace": 0}
    )
    for panel in panels[:-1]:
        panel.tick_params(bottom=False)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.axvspan(played, timeline.step_ns / time_unit, color=_WORK_COLOR, linewidth=0)
    panels[0].set_xlim(0, timeline.step_ns / time_unit)
    panels[0].set_title(_title(prediction, report), loc="left", fontsize=10)
    _draw_bytes(panels[0], timeline, prediction, played)
    written = [(begin, end) for begin, end in timeline.evictions if end > begin]
    dropped = [begin for begin, end in timeline.evictions if end == begin]
    strips = (
        (f"written {format_bytes(prediction.bytes_written)}", _WRITTEN_COLOR, written),
        (f"dropped {format_bytes(prediction.bytes_dropped)}", _DROPPED_COLOR, None),
        (f"read {format_bytes(prediction.bytes_read)}", _READ_COLOR, timeline.fetches),
        (f"stall {format_time(prediction.stall_ns)}", _STALL_COLOR, timeline.stalls),
    )
    for panel, (name, color, spans) in zip(panels[1:], strips, strict=True):
        heights = timeline.marks(dropped) if spans is None else timeline.shares(spans)
        panel.stairs(*_runs(heights, played), fill=True, color=color, linewidth=0)
        panel.set_ylim(0, 1.1)
        panel.set_yticks([])
        panel.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    work = ""
    if timeline.work_ns:
        work = (
            f"; grey: the {format_time(timeline.work_ns)} of processor time that moving takes from "
            "all ops"
        )
    panels[-1].set_xlabel(f"time ({time_name}){work}")
    return figure


def _title(prediction: Prediction, report: Report) -> str:
    return (
        f"{report.file.name} under {format_bytes(prediction.budget_bytes)}, "
        f"{prediction.share_of_peak:.0%} of its peak; {speeds(report.planner.pipe)}\n"
        f"predicted step {format_time(prediction.step_ns)}: "
        f"{format_time(prediction.compute_ns)} computing, "
        f"{format_time(prediction.stall_ns)} stall, {format_time(prediction.work_ns)} moving"
    )


def _draw_bytes(panel: Any, timeline: Timeline, prediction: Prediction, played: float) -> None:
    """Draws the bytes on the device, those that exist, and the budget, each with its name."""
    used, existing = timeline.most(timeline.used_bytes), timeline.most(timeline.existing_bytes)
    top = max(*used, *existing) * _HEADROOM
    size_unit, size_name = size_unit_for(max(existing))
    panel.set_ylim(0, top / size_unit)
    panel.set_ylabel(size_name)
    for values, how in (
        (used, {"fill": True, "color": _USED_COLOR, "linewidth": 0}),
        (existing, {"baseline": None, "color": _EXISTING_COLOR, "linewidth": 0.8}),
    ):
        panel.stairs(*_runs([value / size_unit for value in values], played), **how)
    width = played / STRETCHES
    highest = max(range(STRETCHES), key=existing.__getitem__)
    # The label goes to the peak, on the side with more room.
    side, offset = ("right", -4) if highest > STRETCHES / 2 else ("left", 4)
    point = (highest * width, existing[highest] / size_unit)
    write_beside(panel, "all that exists", point, (offset, 4), _EXISTING_COLOR, ha=side)
    write_beside(panel, "on the device", (0, 0), (6, 6), _BUDGET_COLOR)
    # A budget far above everything would leave no room for the rest; the title names it.
    if prediction.budget_bytes <= top:
        budget = prediction.budget_bytes / size_unit
        panel.axhline(budget, color=_BUDGET_COLOR, linewidth=1.2)
        end = timeline.step_ns / timeline.played_ns * played
        write_beside(panel, "budget", (end, budget), (4, 0), _BUDGET_COLOR, va="center")


def _runs(values: Sequence[float], end: float) -> tuple[list[float], list[float]]:
    """Values and the borders between them for `stairs`; equal neighbours become one."""
    starts = [0, *(at for at in range(1, len(values)) if values[at] != values[at - 1])]
    borders = [end * start / len(values) for start in starts]
    return [values[start] for start in starts], [*borders, end]
