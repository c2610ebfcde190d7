# SPDX-License-Identifier: Apache-2.0
"""`tencache report`: what a run was like, as one HTML page.

The stats file tells what was counted, and how memory and traffic went over the run. The trace of
the same run adds what moved when and what waited for what; its recorded period adds what other
budgets would do. Where a source is missing, the page says what it would add and how to get it. The
page holds no script and loads nothing. _page.html is its form, _charts.py draws.

Figures are those of the files or follow from them, rounded; nothing is guessed. Threads: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tencache import _charts, _plan_plot
from tencache._drawing import size_unit_for, time_unit_for
from tencache._library import TencacheError
from tencache._messages import shortened
from tencache._page_parts import Section, Table, device_words, of_another_run, scaled
from tencache._page_trace import trace_sections
from tencache._pipe import speeds
from tencache._plan import NEAR_IDEAL, Prediction, Report
from tencache._report import (
    by_budget,
    stall_free_budget,
    stat_rows,
    timed_clause,
    trouble_lines,
)
from tencache._story import Story
from tencache._units import format_bytes, format_seconds, format_time, option_bytes

_TEMPLATE = "_page.html"
# Samples lie 0.2 s apart or more, so a shorter window would not tell step times apart.
_WINDOW_S = 2.0


@dataclass(frozen=True)
class Sources:
    """What is known of a run; a part that is not there is None."""

    path: Path
    stats: Mapping[str, Any]
    story: Story | None = None
    # What the planner says of the run's period under other budgets.
    forecast: Report | None = None
    # The recorded period, even if nothing can be predicted from it.
    period: Path | None = None
    # Files of another run in the places of the trace and the period. They tell nothing of this run.
    other_trace: Path | None = None
    other_period: Path | None = None


@dataclass(frozen=True)
class Card:
    """One figure that everybody wants to see first."""

    name: str
    value: str
    note: str


def render(sources: Sources) -> str:
    """The page. Raises TencacheError if jinja2 is not installed."""
    try:
        import jinja2
    except ImportError as error:
        raise TencacheError(
            "the report needs jinja2, which is not installed here: `pip install 'jinja2>=3.1'`."
        ) from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(
        Path(__file__).with_name(_TEMPLATE).read_text(encoding="utf-8")
    )
    stats = sources.stats
    return template.render(
        title=f"tencache: {sources.path.name}",
        subtitle=_subtitle(stats),
        troubles=trouble_lines(stats),
        cards=list(_cards(stats)),
        sections=[
            _steps(stats),
            _memory(stats),
            _traffic(stats),
            *trace_sections(sources.story, stats, sources.other_trace),
            _budgets(sources),
        ],
        details=list(_details(stats)),
    )


def _subtitle(stats: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in stats["versions"].items())
    rank = f"rank {stats['rank']}; " if stats.get("rank") is not None else ""
    program = f"{shortened(stats['program'])}; " if stats.get("program") else ""
    return f"{rank}{program}{stats['backend']} backend; {versions}"


def _cards(stats: Mapping[str, Any]) -> Iterator[Card]:
    wall_s, steps, plan = stats["wall_s"], stats["steps"], stats.get("plan") or {}
    yield Card("Time in all", format_seconds(wall_s), f"{steps} steps")
    if plan.get("step_s"):
        over = plan["step_s"] / plan["ideal_step_s"] if plan["ideal_step_s"] else 0
        note = f"{over:.2f} times computing alone{timed_clause(plan)}" if over else ""
        yield Card("A learned step", format_seconds(plan["step_s"]), note)
    share = stats["stall_s"] / wall_s if wall_s else 0
    yield Card("Waiting", f"{share:.0%}", f"{format_seconds(stats['stall_s'])} of stall")
    peak, budget = stats["peak"]["device"], stats["budget"]["device"]
    where = device_words(stats).where
    yield Card(f"Peak {where}", format_bytes(peak), f"of a budget of {format_bytes(budget)}")
    moved = stats["bytes"]
    note = f"{format_bytes(moved['evicted'])} left"
    yield Card("Came back", format_bytes(moved["fetched"]), note)
    fetches = stats["fetches"]
    asked = fetches["early"] + fetches["late"]
    if asked:
        note = f"{fetches['late']} late, {fetches['wasted']} wasted"
        yield Card("Fetched in time", f"{fetches['early'] / asked:.0%}", note)


# ---- sections of the stats file ----------------------------------------------------------------


def _steps(stats: Mapping[str, Any]) -> Section:
    section = Section("steps", "Step time against ideal and bound")
    plan = stats.get("plan") or {}
    if plan.get("ideal_step_s"):
        rows = (
            ("computing alone (ideal)", plan["ideal_step_s"], "idle"),
            ("no schedule can beat (bound)", plan["bound_step_s"], "c3"),
            ("predicted for the plan", plan["predicted_step_s"], "c4"),
            ("measured", plan.get("step_s", 0), "c1"),
        )
        section.drawings.append(
            _charts.bars(
                f"Time of the step that was learned last{timed_clause(plan)}",
                [
                    _charts.Bar(name, value, format_time(value * 1e9), style)
                    for name, value, style in rows
                    if value
                ],
            )
        )
        section.texts.append(
            f"Plans foresaw {plan['coverage']:.0%} of the ops. The bars are of the period that was "
            "learned last."
        )
    else:
        section.missing.append(
            "No period was learned, so there is nothing to compare with: the program repeated "
            "nothing, everything fitted, or the option plan is off."
        )
    points = _step_times(stats.get("history", {}))
    if len(points) > 1:
        unit, name = time_unit_for(max(value for _, value in points) * 1e9)
        section.drawings.append(
            _charts.lines(
                "Time of a step over the run",
                [_charts.Line("time of a step", scaled(points, unit * 1e-9), "c1")],
                _charts.second_text,
                lambda value: f"{value:g} {name}",
                160,
            )
        )
    return section


def _step_times(history: Mapping[str, Sequence[float]]) -> list[tuple[float, float]]:
    """(when, seconds of a step), each from the end of a step to that of one some seconds later."""
    if not history:
        return []
    samples = list(zip(history["at_s"], history["steps"], strict=True))
    ends = [now for before, now in pairwise(samples) if now[1] > before[1]]
    window_s = max(_WINDOW_S, samples[-1][0] / 100)
    points: list[tuple[float, float]] = []
    begin_s, begin_count = ends[0] if ends else (0.0, 0.0)
    for now_s, count in ends:
        if now_s - begin_s >= window_s:
            points.append((now_s, (now_s - begin_s) / (count - begin_count)))
            begin_s, begin_count = now_s, count
    return points


def _memory(stats: Mapping[str, Any]) -> Section:
    section = Section("memory", "Memory of each tier over the run")
    history = stats.get("history")
    if not history:
        section.missing.append(_NO_HISTORY)
        return section
    at_s, budget = history["at_s"], stats["budget"]["device"]
    words = device_words(stats)
    largest = max((budget, *history["device"], *history["host"], *history["disk"]))
    unit, name = size_unit_for(largest)
    drawn = [
        _charts.Line(f"{words.name}, in use", _points(at_s, history["device"], unit), "c1", True),
        _charts.Line(f"{words.name}, live", _points(at_s, history["live"], unit), "c3"),
        _charts.Line("host memory", _points(at_s, history["host"], unit), "c4"),
        _charts.Line("disk", _points(at_s, history["disk"], unit), "c2"),
        _charts.Line(
            f"budget of {words.of}", [(at_s[0], budget / unit), (at_s[-1], budget / unit)], "idle"
        ),
    ]
    section.drawings.append(
        _charts.lines(
            "Bytes on each tier",
            [line for line in drawn if any(value for _, value in line.points)],
            _charts.second_text,
            lambda value: f"{value:g} {name}",
        )
    )
    section.texts.append(
        f"What is in use {words.where} includes freed memory that waits for reuse; live is what "
        "the program has."
    )
    return section


_NO_HISTORY = (
    "This stats file has no history. An older tencache wrote it: run the program again with "
    "--stats FILE."
)


def _traffic(stats: Mapping[str, Any]) -> Section:
    section = Section("traffic", "What moved, and how long the program waited")
    history = stats.get("history")
    if not history:
        section.missing.append(_NO_HISTORY)
        return section
    rates = {
        name: _rates(history["at_s"], history[name])
        for name in ("evicted", "fetched", "disk_written", "disk_read", "stall_s")
    }
    if not any(value for points in rates.values() for _, value in points):
        section.texts.append("Nothing moved: everything fitted.")
        return section
    moving = [name for name in rates if name != "stall_s"]
    largest = max(value for name in moving for _, value in rates[name])
    unit, unit_name = size_unit_for(largest)
    styles = {"evicted": "c2", "fetched": "c1", "disk_written": "c4", "disk_read": "c3"}
    section.drawings.append(
        _charts.lines(
            "Bytes that moved in a second",
            [
                _charts.Line(name.replace("_", " "), scaled(rates[name], unit), styles[name])
                for name in moving
            ],
            _charts.second_text,
            lambda value: f"{value:g} {unit_name}/s",
        )
    )
    section.drawings.append(
        _charts.lines(
            f"Share of the time that {device_words(stats).who_waits} waited",
            [_charts.Line("stall", rates["stall_s"], "bad", True)],
            _charts.second_text,
            lambda value: f"{value:.0%}",
            140,
        )
    )
    return section


def _points(
    at_s: Sequence[float], values: Sequence[float], unit: float
) -> list[tuple[float, float]]:
    return [(now_s, value / unit) for now_s, value in zip(at_s, values, strict=True)]


def _rates(at_s: Sequence[float], totals: Sequence[float]) -> list[tuple[float, float]]:
    """The growth between neighbouring samples, by the second."""
    pairs = list(zip(at_s, totals, strict=True))
    return [
        (end_s, (after - before) / (end_s - begin_s))
        for (begin_s, before), (end_s, after) in pairwise(pairs)
        if end_s > begin_s
    ]


# ---- other budgets -----------------------------------------------------------------------------


def _budgets(sources: Sources) -> Section:
    section = Section("budgets", "With which budget learned steps would hardly wait")
    devices = by_budget(sources.stats)
    stall_free = stall_free_budget(devices)
    if stall_free:
        section.texts.append(
            f"With --device-memory {option_bytes(stall_free)} a learned step would wait for at "
            "most 1% of its computing time, by the planner, even with links and disk 20% slower "
            "than measured. Steps that are not learned yet wait with any budget that they exceed."
        )
    elif stall_free is not None:
        section.texts.append(
            "A step waits for at most 1% of its computing time already, by the last plan."
        )
    report = sources.forecast
    if report is None and sources.period is not None:
        section.missing.append(
            f"What other budgets would do is not known: {sources.period} does not say how fast the "
            "tier below is, perhaps because too little moved while it was recorded. Ask "
            f"`tencache plan {sources.period} --disk 5GB/s`, with the speed of yours."
        )
        return section
    if report is None:
        section.missing.append(
            "What other budgets would do is not known without a recorded period"
            f"{of_another_run(sources.other_period)}: run the program with --record FILE beside "
            "--stats, or give such a file with --period."
        )
        return section
    cheapest = report.cheapest
    section.texts.append(
        f"By the planner, {format_bytes(cheapest.budget_bytes)} is the smallest budget found "
        f"within {NEAR_IDEAL - 1:.0%} of computing alone, and "
        f"{format_bytes(report.smallest.budget_bytes)} the smallest that is never "
        f"exceeded. Speeds: {speeds(report.planner.pipe)}."
    )
    section.drawings.append(_curve(report, devices[0]["budget"]["device"]))
    rows = {one.budget_bytes: one for one in (*report.predictions, cheapest, report.smallest)}
    section.tables.append(
        Table(
            "One step under other budgets, as the planner predicts it",
            ("budget", "of the peak", "step", "of ideal", "stall", "read", "written"),
            [_row(rows[size]) for size in sorted(rows, reverse=True)],
        )
    )
    return section


def _curve(report: Report, budget: int) -> str:
    curve = _plan_plot.sample(report)
    unit, name = size_unit_for(max(one.budget_bytes for one in curve))
    longest = max(1, *(one.step_ns for one in curve))
    time_unit, time_name = time_unit_for(longest)
    ideal = report.smallest.compute_ns / time_unit
    planned = [(one.budget_bytes / unit, one.step_ns / time_unit) for one in curve]
    ends = (curve[0].budget_bytes / unit, curve[-1].budget_bytes / unit)
    drawn = [
        _charts.Line("planned step", planned, "c1"),
        _charts.Line("computing alone", [(end, ideal) for end in ends], "idle"),
    ]
    if ends[0] <= budget / unit <= ends[1]:
        here = budget / unit
        drawn.append(
            _charts.Line("this run's budget", [(here, 0), (here, longest / time_unit)], "c2")
        )
    return _charts.lines(
        "Predicted time of a step over the budget",
        drawn,
        lambda value: f"{value:g} {name}",
        lambda value: f"{value:g} {time_name}",
    )


def _row(one: Prediction) -> tuple[str, ...]:
    ratio = one.versus_ideal
    return (
        format_bytes(one.budget_bytes),
        f"{one.share_of_peak:.0%}",
        format_time(one.step_ns),
        "-" if ratio is None else f"{ratio:.2f}x",
        format_time(one.stall_ns),
        format_bytes(one.bytes_read),
        format_bytes(one.bytes_written),
    )


def _details(stats: Mapping[str, Any]) -> Iterator[Table]:
    options = stats.get("options", {})
    if options:
        yield Table("Options", (), [(name, shortened(text)) for name, text in options.items()])
    counted = {name: value for name, value in stats.items() if name != "options"}
    yield Table("Counters and versions", (), list(stat_rows(counted)))
