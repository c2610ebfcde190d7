# SPDX-License-Identifier: Apache-2.0
"""Draws what `tencache plan` predicts: step time over budget, as PNG or SVG.

One curve is the plan, sampled evenly between the smallest budget and the peak. Two thin lines give
it scale: the time of computing alone, and the bound that no schedule beats. Each line has its name
at its end, so there is no legend. The time axis begins at 0: the height of the curve above the
ideal line is the cost of the missing memory.

matplotlib is loaded only when something is drawn (_drawing.py). Threads: none of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tencache._drawing import save, size_unit_for, time_unit_for, write_beside
from tencache._pipe import speeds
from tencache._plan import NEAR_IDEAL, Prediction, Report
from tencache._units import format_bytes, format_time

_SAMPLES = 16
_HEADROOM = 1.25  # above the curve, for a name
_PLAN_COLOR, _BOUND_COLOR, _IDEAL_COLOR = "#1f5fa8", "#b4552d", "#555555"


def write_plot(path: Path, report: Report) -> None:
    """Draws the report and budgets in between; `check_path` has accepted the path."""
    from matplotlib.figure import Figure

    curve = sample(report)
    size_unit, size_name = size_unit_for(curve[-1].budget_bytes)
    longest_ns = max(1, *(prediction.step_ns for prediction in curve))
    time_unit, time_name = time_unit_for(longest_ns)

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(0, report.smallest.peak_bytes / size_unit * 1.02)
    axes.set_ylim(0, longest_ns / time_unit * _HEADROOM)
    axes.set_xlabel(f"device budget ({size_name})")
    axes.set_ylabel(f"time of a step ({time_name})")
    title = f"Predicted step time of {report.file.name}: {speeds(report.planner.pipe)}"
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    _add_percent_axis(axes, report.smallest.peak_bytes / size_unit)
    _draw_lines(axes, report, curve, (size_unit, time_unit))
    save(figure, path)


def sample(report: Report) -> list[Prediction]:
    """The curve from the smallest budget to the peak, through all earlier predictions."""
    low, high = report.smallest.largest_op_bytes, report.smallest.peak_bytes
    even = {low + (high - low) * step // _SAMPLES for step in range(_SAMPLES + 1)}
    known = {budget for budget in report.planner.known_budgets() if low <= budget <= high}
    return report.planner.predict_all(sorted(even | known))


def _draw_lines(
    axes: Any, report: Report, curve: list[Prediction], units: tuple[float, float]
) -> None:
    """The plan, the bound and the ideal, each with its name beside it."""
    size_unit, time_unit = units
    sizes = [prediction.budget_bytes / size_unit for prediction in curve]
    steps = [prediction.step_ns / time_unit for prediction in curve]
    bounds = [prediction.bound_step_ns / time_unit for prediction in curve]
    ideal_ns = report.smallest.compute_ns
    ideal = ideal_ns / time_unit

    axes.axhline(ideal, color=_IDEAL_COLOR, linewidth=0.8)
    axes.plot(sizes, steps, color=_PLAN_COLOR, marker="o", markersize=3)
    write_beside(axes, "planned", (sizes[0], steps[0]), (6, 4), _PLAN_COLOR)
    ideal_name = f"ideal, computing alone: {format_time(ideal_ns)}"
    # If the links never limit a step, the bound equals the ideal and needs no line of its own.
    if max(bounds) > ideal * 1.005:
        axes.plot(sizes, bounds, color=_BOUND_COLOR, linewidth=0.8, linestyle="--")
        write_beside(axes, "lower bound", (sizes[0], bounds[0]), (6, 4), _BOUND_COLOR)
    else:
        ideal_name += "; no schedule is faster"
    write_beside(axes, ideal_name, (sizes[-1], ideal), (0, -12), _IDEAL_COLOR, ha="right")
    # The name goes above the curve, which is highest at the left: nothing else is up there.
    cheapest = report.cheapest
    size, top = cheapest.budget_bytes / size_unit, max(steps) * _HEADROOM
    axes.vlines(size, cheapest.step_ns / time_unit, top, color=_PLAN_COLOR, linewidth=0.8)
    is_right = cheapest.share_of_peak > 0.5
    text = f"within {NEAR_IDEAL - 1:.0%} of ideal from {format_bytes(cheapest.budget_bytes)}"
    offset, side = (-4, "right") if is_right else (4, "left")
    write_beside(axes, text, (size, top), (offset, -12), _PLAN_COLOR, ha=side)


def _add_percent_axis(axes: Any, peak: float) -> None:
    above = axes.secondary_xaxis(
        "top", functions=(lambda size: size / peak * 100, lambda percent: percent * peak / 100)
    )
    above.set_xlabel("% of the peak")
