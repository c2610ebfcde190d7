# SPDX-License-Identifier: Apache-2.0
"""The summary and the files written at exit, and how a trace is shown."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path

import pytest

from tencache import _build_info, _doctor, _messages, _report, _trace, _units
from tencache._library import TencacheError, core
from tencache._torch_version import TorchVersion

# These tests do not depend on the installed torch.
pytestmark = pytest.mark.any_torch

STATS = {
    "backend": "cpu",
    "budget": {"device": 2 << 30, "host": 0, "disk": 50 << 30},
    "peak": {"device": 2 << 30, "host": 0, "disk": 3 << 30},
    "bytes": {
        "evicted": 10 << 30,
        "fetched": 9 << 30,
        "disk_written": 6 << 30,
        "disk_read": 9 << 30,
        "clean_dropped": 4 << 30,
    },
    "fetches": {"early": 1, "late": 200, "wasted": 3},
    "stall_s": 12.5,
    "thread_wait_s": 12.5,
    "unannounced": {"reads": 0, "writes": 0},
    "over_budget": {"events": 0, "peak_bytes": 0},
    "ops": 40000,
    "steps": 10,
    "extents": 321,
    "wall_s": 50.0,
    "versions": {"tencache": "0.1.0"},
}


def stats_with(**changes):
    stats = copy.deepcopy(STATS)
    stats.update(changes)
    return stats


def test_summary_holds_every_figure():
    text = "\n".join(_report.summary_lines(STATS))
    for figure in (
        "50.0 s in all, 10 steps",
        "device peak 2.00 GiB of a budget of 2.00 GiB",
        "evicted 10.0 GiB, fetched 9.00 GiB",
        "6.00 GiB written, 9.00 GiB read, 4.00 GiB clean",
        "waited 12.5 s (25% of the time)",
        "200 late, 1 early, 3 wasted",
    ):
        assert figure in text
    assert 2 <= len(_report.summary_lines(STATS)) <= 5


def test_summary_of_gpus_speaks_of_host_memory():
    stats = stats_with(backend="cuda", eviction_failures=2, thread_wait_s=40.0)
    stats["peak"]["host"] = 7 << 30
    text = "\n".join(_report.summary_lines(stats))
    assert "evicted 10.0 GiB, fetched 9.00 GiB; host memory: peak 7.00 GiB" in text
    assert "4.00 GiB clean and not copied again" in text
    assert "2 evictions failed, since host memory could not take them" in text
    assert "the GPU waited 12.5 s (25% of the time), threads 40.0 s; fetches" in text
    assert "disk" not in text
    assert "spill" not in text


def test_summary_tells_what_plans_foresaw():
    plan = {
        "coverage": 0.934,
        "step_s": 5.0,
        "predicted_step_s": 4.8,
        "ideal_step_s": 4.5,
        "bound_step_s": 4.6,
    }
    text = "\n".join(_report.summary_lines(stats_with(plan=plan)))
    assert "would hardly wait" not in text
    assert "foresaw 93% of the ops" in text
    assert "took 5.00 s, predicted 4.80 s" in text
    assert "alone 4.50 s, no schedule could beat 4.60 s" in text
    for count, clause in ((5, "5.00 s (median of 5), "), (1, "5.00 s (measured once), ")):
        timed = stats_with(plan={**plan, "timed_periods": count})
        assert clause in "\n".join(_report.summary_lines(timed))
    for nothing in (None, {"kinds": 0, "coverage": 0.0, "step_s": 0.0}):
        assert _report.summary_lines(stats_with(plan=nothing)) == _report.summary_lines(STATS)


@pytest.mark.parametrize(
    ("stall_free_bytes", "clause"),
    [
        (0, None),  # not known
        (2 << 30, None),  # nothing waits under this budget
        ((3 << 30) + 1, "; learned periods would hardly wait with --device-memory 3073MiB"),
    ],
)
def test_summary_names_the_budget_without_waiting(stall_free_bytes, clause):
    plan = dict.fromkeys(("coverage", "step_s", "predicted_step_s"), 1.0)
    plan |= {"ideal_step_s": 0.5, "bound_step_s": 0.5, "stall_free_budget_bytes": stall_free_bytes}
    line = _report.summary_lines(stats_with(plan=plan))[-1]
    assert line.endswith(clause or "could beat 0.50 s"), line


def gpu_with(ordinal, stall_free_bytes, events=0, peak_bytes=0):
    """The stats of one of several GPUs, with a budget of 2 GiB each."""
    plan = dict.fromkeys(("coverage", "step_s", "predicted_step_s"), 1.0)
    plan |= {"ideal_step_s": 0.5, "bound_step_s": 0.5, "stall_free_budget_bytes": stall_free_bytes}
    over = {"events": events, "peak_bytes": peak_bytes}
    budget = {"device": 2 << 30, "host": 0, "disk": 0}
    return {"ordinal": ordinal, "plan": plan, "over_budget": over, "budget": budget}


def stats_of_gpus(*gpus):
    over = {
        name: sum(gpu["over_budget"][name] for gpu in gpus) for name in ("events", "peak_bytes")
    }
    return stats_with(
        backend="cuda",
        budget={"device": len(gpus) * (2 << 30), "host": 0, "disk": 0},
        over_budget=over,
        plan=gpus[0]["plan"],
        gpus=list(gpus),
    )


@pytest.mark.parametrize(
    ("stall_free", "clause"),
    [
        ((2 << 30, 2 << 30), None),  # nothing waits
        ((0, 2 << 30), None),  # not known of the first
        ((3 << 30, 2 << 30), "; learned periods would hardly wait with --device-memory 3072MiB"),
        ((2 << 30, 3 << 30), "; learned periods would hardly wait with --device-memory 3072MiB"),
        ((5 << 30, 3 << 30), "; learned periods would hardly wait with --device-memory 5120MiB"),
    ],
)
def test_summary_of_gpus_names_the_budget_of_each_without_waiting(stall_free, clause):
    """The budget that one GPU needs once had to exceed the sum of all budgets to be named."""
    stats = stats_of_gpus(*(gpu_with(*gpu) for gpu in enumerate(stall_free)))
    line = _report.summary_lines(stats)[-1]
    assert line.endswith(clause or "could beat 0.50 s"), line


def test_summary_of_gpus_names_the_budget_of_each_that_would_do():
    lines = _report.summary_lines(
        stats_of_gpus(gpu_with(0, 0, 2, 5 << 20), gpu_with(1, 3 << 30, 1, 6 << 20))
    )
    assert "would hardly wait" not in "\n".join(lines), "ops alone exceed the budgets"
    (line,) = [line for line in lines if "over budget" in line]
    assert "3 times, by up to 6.00 MiB" in line
    assert "--device-memory 2054MiB would hold them" in line


def test_summary_is_empty_without_extents():
    assert _report.summary_lines(stats_with(extents=0)) == []


def test_summary_says_that_everything_fitted():
    still = dict.fromkeys(STATS["bytes"], 0)
    lines = _report.summary_lines(stats_with(bytes=still))
    assert len(lines) == 1
    assert "nothing was evicted" in lines[0]


def test_summary_names_the_budget_that_would_do():
    lines = _report.summary_lines(
        stats_with(over_budget={"events": 2, "peak_bytes": (5 << 20) + 1})
    )
    line = next(line for line in lines if "over budget" in line)
    assert "2 times" in line
    assert "--device-memory 2054MiB" in line


def test_summary_tells_unannounced_accesses_and_failed_evictions():
    stats = stats_with(unannounced={"reads": 2, "writes": 1}, eviction_failures=4)
    text = "\n".join(_report.summary_lines(stats))
    assert "2 reads and 1 write" in text
    assert "4 evictions failed" in text


def test_summary_of_a_failed_gpu_blames_no_memory():
    gpus = [{"ordinal": 0, "failure": None}, {"ordinal": 1, "failure": "an illegal address"}]
    stats = stats_with(
        backend="cuda",
        eviction_failures=2,
        over_budget={"events": 2, "peak_bytes": 5 << 20},
        gpus=gpus,
    )
    stats["peak"]["host"] = 7 << 30
    text = "\n".join(_report.summary_lines(stats))
    assert "GPU 1 has failed: an illegal address;" in text
    assert "GPU 0" not in text
    assert "could not take them" not in text
    assert "would hold them" not in text


@pytest.mark.parametrize(("count", "text"), [(1, "1 launch used"), (7, "7 launches used")])
def test_summary_tells_launches_that_no_op_announced(count, text):
    stats = stats_with(launches={"seen": True, "unannounced": count, "unreadable": 0})
    assert text in _report.summary_lines(stats)[-1]
    none = stats_with(launches={"seen": True, "unannounced": 0, "unreadable": 0})
    assert _report.summary_lines(none) == _report.summary_lines(STATS)


def test_summary_of_a_program_without_steps_or_time():
    lines = _report.summary_lines(stats_with(steps=0, wall_s=0.0))
    assert lines[0].startswith("0.00 s; ")
    assert "of the time" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1023 << 10, "1023 KiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (3 << 29, "1.50 GiB"),
    ],
)
def test_sizes_are_written_as_the_core_writes_them(count, text):
    assert _units.format_bytes(count) == text


def test_each_rank_has_its_own_file():
    path = Path("/x/run.json")
    assert _report.ranked_path(path, {"RANK": "1", "WORLD_SIZE": "4"}) == Path("/x/run.rank1.json")
    assert _report.ranked_path(path, {"RANK": "0", "WORLD_SIZE": "1"}) == path
    assert _report.ranked_path(path, {}) == path


def test_a_process_of_multiprocessing_leaves_its_parents_file_alone(monkeypatch):
    path = Path("/x/run.json")
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    assert _report.ranked_path(path, {}) == Path(f"/x/run.pid{os.getpid()}.json")
    ranked = _report.ranked_path(path, {"RANK": "1", "WORLD_SIZE": "2"})
    assert ranked == Path(f"/x/run.rank1.pid{os.getpid()}.json")


@pytest.mark.parametrize("path", ["/dev/null", "/dev/stdout", "/dev/fd/1"])
def test_a_device_or_a_pipe_has_one_name_for_all_ranks(path, monkeypatch):
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    assert _report.ranked_path(Path(path), {"RANK": "1", "WORLD_SIZE": "4"}) == Path(path)


TRACE = '{"kind":"step"}\n'


class Library:
    """What `finish` asks of the core."""

    def __init__(self, recorded=0):
        self.recorded = lambda: recorded
        self.write_file = core().write_file

    def write_trace(self, path):
        path.write_text(TRACE)


OPTION_OF = {"stats_path": "stats", "trace_path": "trace", "period_path": "record"}


def finish(stats=STATS, *, recorded=0, quiet=True, **paths):
    files = {OPTION_OF[name]: path for name, path in paths.items()}
    _report.finish(stats, files, quiet=quiet, library=Library(recorded))


def test_file_that_cannot_be_written_is_one_line_and_no_exception(tmp_path, capsys):
    finish(stats_path=tmp_path / "gone" / "run.json")
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / "gone" / "run.json") in error
    assert "does not exist" in error


@pytest.mark.parametrize("stream", [None, "closed"])
def test_nobody_is_told_where_there_is_no_stderr(stream, tmp_path, monkeypatch):
    if stream == "closed":
        stream = (tmp_path / "stream").open("w")
        stream.close()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    finish(stats_path=tmp_path / "run.json", period_path=tmp_path / "period", quiet=False)
    assert json.loads((tmp_path / "run.json").read_text()) == STATS


def test_summary_of_each_rank_names_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    finish(trace_path=tmp_path / "run.trace", quiet=False)
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines == [f"tencache: rank 3: {line}" for line in _report.summary_lines(STATS)]
    [path] = tmp_path.iterdir()
    assert path.name == "run.rank3.trace"
    assert last == f"tencache: rank 3: the trace is in {path} ({len(TRACE)} B)"


def test_several_processes_name_themselves(monkeypatch):
    ranks = {"RANK": "3", "WORLD_SIZE": "4"}
    assert _messages.process_label({}) == ""
    assert _messages.process_label(ranks) == "rank 3"
    assert _messages.process_label({**ranks, "WORLD_SIZE": "1"}) == ""
    monkeypatch.setattr("multiprocessing.parent_process", lambda: object())
    assert _messages.process_label(ranks) == f"rank 3 pid {os.getpid()}"
    assert _messages.process_label({}) == f"pid {os.getpid()}"
    monkeypatch.delitem(sys.modules, "multiprocessing")
    assert _messages.process_label({}) == ""


def test_finish_writes_both_files_and_prints_the_summary(tmp_path, capsys):
    finish(stats_path=tmp_path / "run.json", trace_path=tmp_path / "run.trace", quiet=False)
    assert json.loads((tmp_path / "run.json").read_text()) == STATS
    path = tmp_path / "run.trace"
    assert path.read_text() == TRACE
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines == [f"tencache: {line}" for line in _report.summary_lines(STATS)]
    assert last == f"tencache: the trace is in {path} ({len(TRACE)} B)"


def test_a_trace_that_goes_to_a_device_has_no_size(capsys):
    finish(trace_path=Path("/dev/null"), quiet=False)
    assert "the trace is in" not in capsys.readouterr().err


def test_rows_of_the_stats_have_units():
    stats = stats_with(
        now={"device": 3 << 30, "cold": 1 << 20, "cold_extents": 5000},
        plan={
            "coverage": 0.934,
            "ticks_seen": 123456,
            "step_s": 0.25,
            "stored": None,
            "bound_bytes_read": 5 << 20,
            "simulated": {"bytes_late": 7 << 20, "moves": 70000, "read_bytes_per_s": 2.5e9},
        },
        gpus=[{"ordinal": 1, **{name: STATS[name] for name in ("budget", "peak", "bytes")}}],
        armed=True,
    )
    rows = dict(_report.stat_rows(stats))
    assert rows["now.device"] == "3.00 GiB"
    assert rows["now.cold"] == "1.00 MiB"
    assert rows["now.cold_extents"] == "5000"
    assert rows["plan.coverage"] == "93.4%"
    assert rows["plan.ticks_seen"] == "123456"
    assert rows["plan.step_s"] == "250 ms"
    assert rows["plan.stored"] == "none"
    assert rows["plan.bound_bytes_read"] == "5.00 MiB"
    assert rows["plan.simulated.bytes_late"] == "7.00 MiB"
    assert rows["plan.simulated.moves"] == "70000"
    assert rows["plan.simulated.read_bytes_per_s"] == "2.50 GB/s"
    assert rows["gpu 1: peak.disk"] == "3.00 GiB"
    assert rows["over_budget.peak_bytes"] == "0 B"
    assert rows["stall_s"] == "12.5 s"
    assert rows["armed"] == "yes"
    assert not any("{" in text for text in rows.values())


@pytest.mark.parametrize(
    ("recorded", "line"),
    [
        (1, "tencache: one period was recorded: tencache plan {path}\n"),
        (0, "tencache: error: {path} was not written: no repeating period was seen; "),
        (-1, "tencache: error: {path} was not written: an earlier line tells why\n"),
    ],
)
def test_what_became_of_the_period_is_told(recorded, line, tmp_path, capsys):
    path = tmp_path / "period.jsonl"
    finish(stats_with(extents=0), period_path=path, recorded=recorded, quiet=False)
    assert capsys.readouterr().err.startswith(line.format(path=path))


def test_summary_tells_what_became_of_a_recorded_period():
    for followed, words in (
        (0, "learn_from: the recorded period was not followed"),
        (1, "learn_from: the recorded period was followed for 1 op, until"),
        (77, "followed for 77 ops"),
    ):
        plan = {"stored": {"ticks": 100, "ticks_followed": followed}}
        text = "\n".join(_report.summary_lines(stats_with(plan=plan)))
        assert words in text
    for plan in (None, {}, {"stored": None}):
        assert "learn_from" not in "\n".join(_report.summary_lines(stats_with(plan=plan)))


def write_trace_file(path, events, **changes):
    head = {"format": "tencache-events", "version": 1, "threads": 2, "events": 0, "lost": 0}
    lines = [json.dumps(line) for line in [{**head, **changes}, *events]]
    path.write_text("\n".join(lines) + "\n")


def event(ns, kind, thread=0, **fields):
    return {"ns": ns, "thread": thread, "kind": kind, **fields}


EVENTS = [
    event(500, "op_end", op="aten::lost_begin"),
    event(1000, "op_begin", op="aten::linear"),
    event(1500, "op_begin", op="aten::mm"),
    event(1500, "read", extent=17, bytes=3 << 20),
    event(1600, "read", thread=1, extent=18, bytes=1 << 20),
    event(4000, "op_end", op="aten::mm"),
    event(4500, "allocate", extent=19, bytes=1 << 20),
    event(6000, "op_end", op="aten::linear"),
    event(7000, "step"),
]


def test_trace_gives_each_event_its_op_and_each_op_its_time(tmp_path):
    path = tmp_path / "run.trace"
    write_trace_file(path, EVENTS, lost=3)
    reader = _trace.TraceReader(path)
    events = list(reader.events())
    assert reader.lost_count == 3
    assert [e.written for e in events] == EVENTS
    assert [e.op for e in events] == [
        "aten::lost_begin",
        "aten::linear",
        "aten::mm",
        "aten::mm",
        "",
        "aten::mm",
        "aten::linear",
        "aten::linear",
        "",
    ]
    assert [e.took_ns for e in events if e.kind == "op_end"] == [None, 2500, 5000]


def test_trace_is_selected_by_op_and_kind(tmp_path):
    path = tmp_path / "run.trace"
    write_trace_file(path, EVENTS)

    def chosen(**how):
        events = _trace.select(_trace.TraceReader(path).events(), **how)
        return [e.written for e in events]

    assert chosen(op="mm", kinds=frozenset()) == [EVENTS[2], EVENTS[3], EVENTS[5]]
    assert chosen(op=None, kinds=frozenset({"read"})) == [EVENTS[3], EVENTS[4]]
    assert chosen(op="mm", kinds=frozenset({"read"})) == [EVENTS[3]]


def test_trace_table_is_aligned(tmp_path):
    path = tmp_path / "run.trace"
    write_trace_file(path, EVENTS)
    head, *lines = _trace.table_lines(_trace.TraceReader(path).events())
    assert len(lines) == len(EVENTS)
    assert head.index("op", head.index("size")) == lines[3].index("aten::mm")
    assert "17" in lines[3] and "3.00 MiB" in lines[3]
    assert lines[5].split() == ["0.004", "0", "op_end", "2.5", "aten::mm"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "line 1, is not from a trace"),
        ('{"a": 1}\n', "its format is not tencache-events"),
        ('{"format": "tencache-events", "version": 9}\n', "version 9, and this tencache"),
        ('{"format": "tencache-events", "version": 1}\n', "how many events were lost"),
        pytest.param("[" * 100_000, "line 1, .* it is not JSON", id="deep"),
        ("\udcff\n", "line 1, is not from a trace"),
        ("", "line 1, is not from a trace"),
    ],
)
def test_file_that_is_no_trace_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / "run.trace"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(TencacheError, match=message) as caught:
        _trace.TraceReader(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"names": []}, {"names": {"a": "w"}}, {"moves_lost": "x"}, {"moves_lost": float("inf")}],
)
def test_a_trace_with_a_damaged_head_is_refused(tmp_path, changes):
    path = tmp_path / "run.trace"
    write_trace_file(path, [], **changes)
    with pytest.raises(TencacheError, match=r"line 1, .* moves_lost or names are damaged"):
        _trace.TraceReader(path)


def test_damaged_trace_names_the_line(tmp_path):
    path = tmp_path / "run.trace"
    write_trace_file(path, [EVENTS[1], {"ns": 1, "thread": 0}])
    with pytest.raises(TencacheError, match=r"run\.trace, line 3, .* it lacks 'kind'"):
        list(_trace.TraceReader(path).events())


# ---- doctor ------------------------------------------------------------------------------------


def report_with(**changes):
    report = {
        "tencache": {"unused_variables": []},
        "torch": {"installed": "2.11.0+cu130", "supported": ["2.11"], "fits": True},
        "huge_pages": "madvise",
        "map_count_max": 65530,
        "page_map": {"works": True, "reason": ""},
        "userfaultfd": {"works": True, "reason": ""},
        "disk": {"directory": "/var/tmp", "direct_io": True, "io_uring": True},
        "gpu": {"devices": [], "reason": "no driver", "served": False, "served_reason": "none"},
        "options": {"backend": "auto", "strict": "off"},
    }
    report.update(changes)
    return report


def test_doctor_has_nothing_to_say_about_a_good_machine():
    assert _doctor.blockers(report_with()) == []
    assert _doctor.hints(report_with()) == []


def test_doctor_says_what_to_do_about_another_torch(monkeypatch):
    monkeypatch.setattr(_build_info, "TORCH_SHIMS", {"2.11": "2.11.0+cu130"})
    section = _doctor.torch_section(TorchVersion("2.12.0+cpu", None))
    assert section["fits"] is False
    (text,) = _doctor.blockers(report_with(torch=section))
    for part in ("2.12.0+cpu", "2.11.0+cu130", "--no-build-isolation --force-reinstall"):
        assert part in text
    (text,) = _doctor.blockers(report_with(torch=_doctor.torch_section(None)))
    assert "pip install 'torch==2.11.*'" in text
    assert _doctor.torch_section(TorchVersion("2.11.3+cpu", None))["fits"] is True


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        (
            {"disk": {"directory": "/d", "io_uring": False, "io_uring_reason": "EPERM"}},
            "seccomp",
        ),
        (
            {"disk": {"directory": "/d", "direct_io": False, "direct_io_reason": "EINVAL"}},
            "--spill-dir",
        ),
        (
            {"tencache": {"unused_variables": ["TENCACHE_DEVICE_MEMORY"]}},
            "TENCACHE_DEVICE_MEMORY is set, and TENCACHE is not",
        ),
        ({"huge_pages": "never"}, "transparent_hugepage/enabled"),
        ({"map_count_max": 1000}, "sysctl vm.max_map_count"),
        (
            {"userfaultfd": {"works": False, "reason": "EPERM"}},
            "sysctl vm.unprivileged_userfaultfd=1",
        ),
    ],
)
def test_doctor_names_a_remedy_for_what_could_be_better(changes, remedy):
    (text,) = _doctor.hints(report_with(**changes))
    assert remedy in text


def test_doctor_says_when_torch_would_not_load_tencache():
    torch = {**report_with()["torch"], "loads_extensions": False, "loads_extensions_reason": "why"}
    assert _doctor.blockers(report_with(torch=torch)) == ["why"]


def test_doctor_reports_a_spill_directory_that_cannot_be_used():
    report = report_with(disk={"error": "/x does not exist"})
    assert _doctor.blockers(report) == ["/x does not exist"]
    assert _doctor.hints(report) == []


def test_doctor_shows_sizes_and_reasons_beside_what_they_explain():
    section = {
        "free_bytes": 3 << 30,
        "io_uring": False,
        "io_uring_reason": "EPERM",
        "limit_bytes": None,
        "direct_io": True,
        "direct_io_reason": "",
    }
    assert list(_doctor.rows(section)) == [
        ("free", "3.00 GiB"),
        ("io uring", "no (EPERM)"),
        ("limit", "none"),
        ("direct io", "yes"),
    ]
    same = {"devices": [], "reason": "no driver", "served": False, "served_reason": "no driver"}
    assert list(_doctor.rows(same)) == [("devices", "none (no driver)"), ("served", "no")]
    assert list(_doctor.rows({"bytes": 1 << 30, "reason": "half of it"})) == [
        ("bytes", "1.00 GiB (half of it)")
    ]
    assert list(_doctor.rows({"devices": ["A, 2 GiB", "B"], "reason": ""})) == [
        ("devices", "A, 2 GiB; B")
    ]
    assert list(_doctor.rows({"devices": [], "reason": "no driver"})) == [
        ("devices", "none (no driver)")
    ]
