# SPDX-License-Identifier: Apache-2.0
"""`tencache plan --timeline` draws exactly what was simulated.

The tests read the figures that were given to matplotlib. Tensors have 10 bytes and the disk moves a
byte a nanosecond, so a move takes 10 ns; ops compute for 100 ns. test_plan.py has the checks that
every drawing of the command shares.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from test_cli import assert_refused
from test_plan import FOUR_IN_TURN, TWO_IN_TURN, write_lines

from tencache import _library, _period_file, _pipe, _plan, _plan_timeline
from tencache._library import core

# Planning needs no torch.
pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(("name", "begin"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
def test_timeline_is_drawn(run_tencache, tmp_path, name, begin):
    write_lines(tmp_path / "period.jsonl", *FOUR_IN_TURN)
    done = run_tencache("plan", "period.jsonl", "--device-memory=50%,25%", "--timeline", name)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).read_bytes().startswith(begin)
    assert "cheapest budget" in done.stdout


def timeline_of(path, budgets):
    """The timeline under the first budget, and the figure that shows it."""
    planner = _plan.Planner(core(), _period_file.read_period(path), _pipe.Pipe(1e9, 1e9))
    report = _plan.make_report(planner, path, _plan.parse_budgets(budgets))
    prediction = report.predictions[0]
    timeline = _plan_timeline.Timeline.of(planner.timeline(prediction.budget_bytes))
    return timeline, _plan_timeline.draw(timeline, prediction, report)


def drawn_spans(panel):
    """The coloured stretches of a strip: begin and end of each, in the axis's unit."""
    (steps,) = [patch for patch in panel.patches if hasattr(patch, "get_data")]
    values, borders, _ = steps.get_data()
    spans = []
    for value, (begin, end) in zip(values, pairwise(borders), strict=True):
        if value > 0 and spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], end)
        elif value > 0:
            spans.append((begin, end))
    return spans


def test_timeline_shows_what_was_simulated(tmp_path):
    path = tmp_path / "period.jsonl"
    path.write_text(TWO_IN_TURN)
    timeline, figure = timeline_of(path, "50%,100%")
    # Before op 0 tensor 1 is dropped and 0 is read; before op 1 tensor 0 is written and 1 is read.
    assert timeline.evictions == [(0, 0), (110, 120)]
    assert timeline.fetches == [(0, 10), (120, 130)]
    assert timeline.stalls == [(0, 10), (110, 130)]
    memory, *strips = figure.axes
    assert [strip.get_ylabel() for strip in strips] == [
        "written 10 B",
        "dropped 10 B",
        "read 20 B",
        "stall 30 ns",
    ]
    written, dropped, read, stall = map(drawn_spans, strips)
    width = 230 / _plan_timeline.STRETCHES
    for spans, expected in (
        (written, [(110, 120)]),
        (dropped, [(0, 0)]),
        (read, [(0, 10), (120, 130)]),
        (stall, [(0, 10), (110, 130)]),
    ):
        assert len(spans) == len(expected)
        for drawn, simulated in zip(spans, expected, strict=True):
            assert drawn == pytest.approx(simulated, abs=width * 1.01)
    used, existing = [patch.get_data() for patch in memory.patches if hasattr(patch, "get_data")]
    assert (list(used.values), list(used.edges)) == ([10], [0, 230])
    assert (list(existing.values), list(existing.edges)) == ([20], [0, 230])
    (budget,) = memory.lines
    assert set(budget.get_ydata()) == {10}
    assert "period.jsonl under 10 B, 50% of its peak" in memory.get_title(loc="left")
    assert strips[-1].get_xlabel() == "time (ns)"


def test_timeline_of_what_fits_is_level(tmp_path):
    path = tmp_path / "period.jsonl"
    path.write_text(TWO_IN_TURN)
    timeline, figure = timeline_of(path, "1GiB")
    memory, *strips = figure.axes
    assert timeline.used_bytes == timeline.existing_bytes == [20, 20]
    assert [drawn_spans(strip) for strip in strips] == [[], [], [], []]
    assert not memory.lines, "a budget far above would flatten everything else"


def test_timeline_keeps_the_time_of_moving_apart(tmp_path):
    header = {**FOUR_IN_TURN[0], "read_work_ns_per_byte": 1.0}
    path = write_lines(tmp_path / "period.jsonl", header, *FOUR_IN_TURN[1:])
    timeline, figure = timeline_of(path, "25%")
    assert (timeline.step_ns, timeline.work_ns, timeline.played_ns) == (520, 40, 480)
    assert figure.axes[0].get_xlim() == (0, 520)
    assert "the 40 ns of processor time" in figure.axes[-1].get_xlabel()
    used = next(patch for patch in figure.axes[0].patches if hasattr(patch, "get_data"))
    assert used.get_data().edges[-1] == 480


def make_timeline(op_count, op_ns):
    begins = [op_ns * op for op in range(op_count)]
    return _plan_timeline.Timeline(
        step_ns=op_count * op_ns,
        work_ns=0,
        begin_ns=begins,
        stall_ns=[0] * op_count,
        used_bytes=[1] * op_count,
        existing_bytes=list(range(op_count)),
        evictions=[],
        fetches=[],
    )


def test_many_short_moves_are_drawn_as_the_share_they_take():
    timeline = make_timeline(op_count=80_000, op_ns=10)
    every_other = [(begin, begin + 5) for begin in timeline.begin_ns]
    assert timeline.shares(every_other) == pytest.approx([0.5] * _plan_timeline.STRETCHES)
    most = timeline.most(timeline.existing_bytes)
    assert most == [100 * stretch + 99 for stretch in range(_plan_timeline.STRETCHES)]


def test_what_crosses_the_border_is_cut_there():
    timeline = make_timeline(op_count=8, op_ns=100)  # 1 ns for each stretch
    shares = timeline.shares([(-50, 2), (798, 900), (900, 950)])
    assert [stretch for stretch, share in enumerate(shares) if share] == [0, 1, 798, 799]
    assert timeline.marks([0, 800]) == [1.0, *[0.0] * 798, 1.0]


def test_a_period_without_time_has_no_timeline(run_tencache, tmp_path):
    (tmp_path / "period.jsonl").write_text(TWO_IN_TURN.replace("100", "0"))
    done = run_tencache("plan", "--disk=1GB/s", "period.jsonl", "--timeline=out.svg")
    assert_refused(done, "out.svg cannot be drawn", "takes no time", "compute_ns above 0")


def test_a_timeline_longer_than_foreseen_is_asked_for_again(monkeypatch, tmp_path):
    path = write_lines(tmp_path / "period.jsonl", *FOUR_IN_TURN)
    expected, _ = timeline_of(path, "25%")
    monkeypatch.setattr(_library, "_TIMELINE_BYTES", 1)
    monkeypatch.setattr(_library, "_TIMELINE_BYTES_PER_OP", 0)
    assert timeline_of(path, "25%")[0] == expected
