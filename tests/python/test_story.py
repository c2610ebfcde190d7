# SPDX-License-Identifier: Apache-2.0
"""What a trace tells, and the file that Perfetto's viewer opens."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from tencache import _perfetto, _story, _trace
from tencache._library import TencacheError

pytestmark = pytest.mark.any_torch

MIB = 1 << 20
HEADER = {
    "format": "tencache-events",
    "version": 2,
    "threads": 2,
    "events": 0,
    "lost": 5,
    "moves_lost": 1,
    "names": {"17": "layers.0.weight"},
}


def event(ns, kind, thread=0, **fields):
    return {"ns": ns, "thread": thread, "kind": kind, **fields}


def move(ns, kind, extent, took_ns, size=MIB, device_used=0, **fields):
    tiers = {
        "fetch": ("disk", "device"),
        "evict": ("device", "disk"),
        "demote": ("host", "disk"),
        "read_back": ("disk", "host"),
    }[kind]
    return {
        "ns": ns,
        "kind": kind,
        "took_ns": took_ns,
        "extent": extent,
        "bytes": size,
        "from": tiers[0],
        "to": tiers[1],
        "device_used": device_used,
        **fields,
    }


# A late fetch of 17 and 18 in mm, an early one of 19, two evictions at once, a wait for room.
EVENTS = [
    event(1000, "op_begin", op="aten::linear"),
    event(1000, "op_begin", op="aten::mm"),
    event(1000, "read", extent=17, bytes=3 * MIB),
    event(1000, "read", extent=18, bytes=MIB),
    event(1000, "read", extent=19, bytes=MIB),
    move(1100, "fetch", 19, 50, ahead=True, device_used=5 * MIB),
    move(1500, "fetch", 17, 2500, 3 * MIB, ahead=False, device_used=8 * MIB),
    move(1500, "fetch", 18, 3000, ahead=False, device_used=9 * MIB),
    event(2000, "op_begin", thread=1, op="aten::add"),
    move(2100, "evict", 30, 1000, copied=True, device_used=7 * MIB),
    move(2200, "evict", 31, 5000, copied=False, device_used=6 * MIB),
    event(4600, "wait", waited_ns=3400),
    event(5000, "allocate", extent=40, bytes=2 * MIB),
    event(6000, "op_end", op="aten::mm"),
    event(6500, "op_end", op="aten::linear"),
    event(6600, "step"),
    event(7000, "op_begin", op="aten::relu"),
    event(7000, "write", extent=40, bytes=2 * MIB),
    event(8000, "wait", waited_ns=1000),
    event(8000, "op_end", op="aten::relu"),
    event(8100, "free", extent=40, bytes=2 * MIB),
    event(8200, "free", extent=30, bytes=MIB),
]


@pytest.fixture
def trace_file(tmp_path):
    def write(events=EVENTS, **changes):
        path = tmp_path / "run.trace"
        lines = [json.dumps(line) for line in [{**HEADER, **changes}, *events]]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def test_a_wait_is_joined_with_the_fetches_it_was_for(trace_file):
    story = _story.tell(trace_file())
    late, for_room = story.waits
    assert late.op is not None and late.op.name == "aten::mm"
    assert [fetch.extent for fetch in late.fetches] == [17, 18], "19 was there before"
    assert (late.begin_ns, late.end_ns) == (1200, 4600)
    assert for_room.op is not None and for_room.op.name == "aten::relu"
    assert for_room.fetches == ()
    assert (story.lost_events, story.lost_moves) == (5, 1)


def test_stalls_are_told_by_op_and_by_tensor(trace_file):
    story = _story.tell(trace_file())
    assert [(stall.name, stall.ns) for stall in story.stalls_by_op()] == [
        ("aten::mm", 3400),
        ("aten::relu", 1000),
    ]
    by_tensor = {stall.name: stall.ns for stall in story.stalls_by_tensor()}
    assert by_tensor == {
        "layers.0.weight": 2550,  # three quarters of the bytes
        "1.00 MiB allocated before the trace, or outside of ops": 850,
        "room: nothing had left yet": 1000,
    }


def test_a_tensor_without_a_name_is_known_by_the_op_that_made_it(trace_file):
    story = _story.tell(trace_file())
    assert story.tensor_name(40, 2 * MIB) == "2.00 MiB made by aten::mm"
    assert story.tensor_name(17, 1) == "layers.0.weight"


def test_cold_bytes_follow_the_moves(trace_file):
    cold = _story.tell(trace_file()).cold_bytes()["disk"]
    # 17, 18 and 19 were cold at first; 30 leaves and is freed cold, 31 leaves and stays.
    assert cold[0] == (1000, 5 * MIB)
    assert [size // MIB for _, size in cold] == [5, 4, 5, 2, 1, 2, 1]


def test_copies_in_host_memory_and_on_disk_are_told_apart(trace_file):
    host = {"from": "device", "to": "host"}
    events = [
        {**move(10, "evict", 1, 5, copied=True), **host},
        {**move(20, "evict", 2, 5, copied=True), **host},
        move(30, "demote", 1, 5),
        move(40, "read_back", 1, 5),
        {**move(50, "fetch", 1, 5, ahead=True), "from": "host"},
    ]
    cold = _story.tell(trace_file(events)).cold_bytes()
    assert [size // MIB for _, size in cold["host"]] == [1, 2, 1, 2, 1]
    assert [size // MIB for _, size in cold["disk"]] == [1, 0]


def test_a_trace_of_version_1_has_no_moves(trace_file):
    path = trace_file([EVENTS[0], EVENTS[14]], version=1)
    header, *rest = path.read_text().splitlines()
    kept = {key: value for key, value in json.loads(header).items() if key[:2] not in ("mo", "na")}
    path.write_text("\n".join([json.dumps(kept), *rest]) + "\n")
    story = _story.tell(path)
    assert not story.has_moves
    assert story.moves == [] and story.names == {}


def test_damaged_move_names_the_line(trace_file):
    whole = move(1100, "fetch", 19, 50, ahead=True)
    for field in ("took_ns", "extent", "bytes", "from", "to", "device_used"):
        path = trace_file([{key: value for key, value in whole.items() if key != field}])
        with pytest.raises(TencacheError, match=f"line 2, .* it lacks '{field}'"):
            _story.tell(path)


def test_moves_are_dumped_with_their_tiers(trace_file):
    lines = list(_trace.table_lines(_trace.TraceReader(trace_file()).events()))
    [fetch] = [line for line in lines if line.split()[1:4] == ["fetch", "2.5", "17"]]
    assert fetch.endswith("3.00 MiB  disk to device")


# ---- Perfetto ----------------------------------------------------------------------------------


def check_perfetto(content):
    """Asserts what the viewer relies on; returns the events by their kind."""
    by_kind = defaultdict(list)
    for one in content["traceEvents"]:
        by_kind[one["ph"]].append(one)
        assert isinstance(one["pid"], int)
        if one["ph"] != "M":
            assert one["ts"] >= 0
    assert set(by_kind) <= {"M", "X", "C", "i", "s", "f"}
    tracks = defaultdict(list)
    for one in by_kind["X"]:
        assert one["dur"] >= 0
        tracks[one["pid"], one["tid"]].append((one["ts"], -one["dur"], one["name"]))
    named = {(one["pid"], one["tid"]) for one in by_kind["M"] if one["name"] == "thread_name"}
    assert set(tracks) <= named
    for slices in tracks.values():
        check_nesting(sorted(slices))
    begins, ends = ({one["id"]: one for one in by_kind[kind]} for kind in ("s", "f"))
    assert set(begins) == set(ends)
    assert len(begins) == len(by_kind["s"]) == len(by_kind["f"])
    for number, begin in begins.items():
        assert begin["ts"] <= ends[number]["ts"]
        for point in (begin, ends[number]):
            around = [
                name
                for ts, minus_dur, name in tracks[point["pid"], point["tid"]]
                if ts <= point["ts"] <= ts - minus_dur
            ]
            assert around, f"{point} lies in no slice"
    return by_kind


def check_nesting(slices):
    """No slice of a track may end in the middle of another one."""
    open_ends = []
    for ts, minus_dur, name in slices:
        while open_ends and open_ends[-1] <= ts:
            open_ends.pop()
        end = ts - minus_dur
        # The format's times are floats of microseconds.
        assert not open_ends or end <= open_ends[-1] + 1e-6, f"{name} at {ts} overlaps"
        open_ends.append(end)


def test_perfetto_shows_ops_moves_waits_counters_and_arrows(trace_file):
    content = json.loads(_perfetto.to_json(_story.tell(trace_file())))
    by_kind = check_perfetto(content)
    assert content["otherData"]["lost_events"] == 5
    groups = {
        one["args"]["name"]: one["pid"] for one in by_kind["M"] if one["name"] == "process_name"
    }
    assert set(groups) == {"program", "waits", "moves", "tiers"}
    tracks = {one["args"]["name"] for one in by_kind["M"] if one["name"] == "thread_name"}
    assert tracks == {
        "thread 0",
        "thread 1",
        "waits of thread 0",
        "fetch disk to device",
        "fetch disk to device (2)",
        "evict device to disk",
        "evict device to disk (2)",
    }
    ops = {one["name"]: one for one in by_kind["X"] if one["pid"] == groups["program"]}
    assert ops["aten::mm"]["ts"] == 1 and ops["aten::mm"]["dur"] == 5
    assert ops["aten::mm"]["args"]["reads"] == ["layers.0.weight", 18, 19]
    assert ops["aten::add"]["args"] == {"unfinished": True}
    waits = [one for one in by_kind["X"] if one["pid"] == groups["waits"]]
    assert [one["name"] for one in waits] == ["wait for a fetch", "wait for room"]
    assert waits[0]["args"]["tensors"][0] == "layers.0.weight"
    assert [one["ts"] for one in by_kind["i"]] == [6.6]
    assert len(by_kind["s"]) == 2, "19 was early"
    used = [one["args"]["bytes"] for one in by_kind["C"] if one["name"].startswith("device")]
    assert used == [size * MIB for size in (5, 7, 8, 9, 6)]
    assert any(one["name"] == "disk, cold bytes" for one in by_kind["C"])


def test_moves_that_overlap_lie_on_tracks_of_their_own(trace_file):
    events = [move(at, "fetch", at, 100, ahead=True) for at in range(0, 1000, 30)]
    content = json.loads(_perfetto.to_json(_story.tell(trace_file(events))))
    by_kind = check_perfetto(content)
    lanes = defaultdict(list)
    for one in by_kind["X"]:
        lanes[one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    assert len(lanes) == 4
    for spans in lanes.values():
        assert all(left[1] <= right[0] for left, right in pairwise(sorted(spans)))


def test_an_empty_trace_is_a_file_that_can_be_opened(trace_file):
    content = json.loads(_perfetto.to_json(_story.tell(trace_file([]))))
    by_kind = check_perfetto(content)
    assert [kind for kind, found in by_kind.items() if found] == ["M"]
