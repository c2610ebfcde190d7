# SPDX-License-Identifier: Apache-2.0
"""`tencache plan`: predictions that can be checked by hand, and files that are not periods.

Tensors have 10 bytes and the disk moves a byte a nanosecond, so a move takes 10 ns; ops compute for
100 ns.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli import assert_refused

from tencache import _drawing, _period_file, _pipe, _plan, _plan_plot, _units
from tencache._library import OptionError, TencacheError, core

# Planning needs no torch.
pytestmark = pytest.mark.any_torch

HEADER = {"format": "tencache-period", "version": 1}
# Two tensors, each named by one op; the first is written.
TWO_IN_TURN = """\
{"format": "tencache-period", "version": 1}
{"id": 0, "bytes": 10}
{"id": 1, "bytes": 10}
{"name": "first", "compute_ns": 100, "writes": [0]}
{"name": "second", "compute_ns": 100, "reads": [1]}
"""
# Four tensors, each written by one op.
FOUR_IN_TURN = [
    {**HEADER, "ops": 4, "tensors": 4, "read_bytes_per_s": 1e9, "write_bytes_per_s": 1e9},
    *({"id": tensor, "bytes": 10} for tensor in range(4)),
    *({"name": f"op{op}", "compute_ns": 100, "reads": [], "writes": [op]} for op in range(4)),
]


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def predict(run_tencache, tmp_path):
    """`predict("50%", "--disk=1GB/s", text=...)`: the command's JSON output."""

    def run(budgets, *arguments, text=TWO_IN_TURN):
        (tmp_path / "period.jsonl").write_text(text)
        done = run_tencache(
            "plan", "--json", f"--device-memory={budgets}", *arguments, "period.jsonl"
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


def nanoseconds(seconds):
    return round(seconds * 1e9)


# ---- figures -----------------------------------------------------------------------------------


def test_two_in_turn_on_one_place(predict):
    report = predict("50%,20", "--disk=1GB/s")
    assert report["schema"] == 1
    assert (report["ops"], report["tensors"]) == (2, 2)
    assert (report["peak_bytes"], report["largest_op_bytes"]) == (20, 10)
    assert nanoseconds(report["ideal_step_s"]) == 200
    half, all_of_it = report["predictions"]
    # No move can be made ahead: before op 1 tensor 0 is written and 1 is read; before op 0 tensor 1
    # is dropped, for the disk has it, and 0 is read.
    assert half["budget_bytes"] == 10
    assert half["share_of_peak"] == 0.5
    assert nanoseconds(half["step_s"]) == 230
    # Of the three moves each takes 12 or 8 ns instead of 10.
    assert nanoseconds(half["step_slower_s"]) == 236
    assert nanoseconds(half["step_faster_s"]) == 224
    assert nanoseconds(half["stall_s"]) == 30
    # Each op waits for its tensor and then computes.
    assert nanoseconds(half["bound_step_s"]) == 220
    assert half["versus_ideal"] == 1.15
    assert half["versus_bound"] == 230 / 220
    assert half["bytes"] == {"read": 20, "written": 10, "clean_dropped": 10, "late": 20}
    assert half["over_budget_bytes"] == 0
    assert nanoseconds(all_of_it["step_s"]) == 200
    assert all_of_it["bytes"] == {"read": 0, "written": 0, "clean_dropped": 0, "late": 0}
    assert report["smallest"] == half
    assert report["cheapest"] == all_of_it


@pytest.mark.parametrize(
    ("arguments", "step_ns"),
    [
        (["--disk=500MB/s"], 260),
        (["--disk=1GB/s", "--disk-write=0.5GB/s"], 240),
        (["--disk-read=0.5 GB/s", "--disk-write=1GB/s"], 250),
        (["--disk=1GB/s", "--link=100MB/s"], 500),
        (["--disk=1GB/s", "--link=50GB/s"], 230),
        (["--disk=1GB/s", "--link=50GB/s", "--link-write=100MB/s"], 320),
        (["--disk=1GB/s", "--link-read=100MB/s"], 410),
        (["--disk=1GB/s", "--link=100MB/s", "--host-memory=0"], 500),
        (["--disk=1000000000", "--half-duplex"], 230),
    ],
)
def test_the_narrower_of_disk_and_link_decides(predict, arguments, step_ns):
    (prediction,) = predict("50%", *arguments)["predictions"]
    assert nanoseconds(prediction["step_s"]) == step_ns


def test_host_memory_stands_between_link_and_disk(predict, run_tencache):
    text = "\n".join(json.dumps(line) for line in FOUR_IN_TURN)
    arguments = ("--disk=100MB/s", "--link=1GB/s")
    (all_of_it,) = predict("25%", *arguments, "--host-memory=40", text=text)["predictions"]
    # The disk is never used; the link decides.
    assert nanoseconds(all_of_it["step_s"]) == 480
    assert all_of_it["bytes_below_host"] == {"read": 0, "written": 0}
    # 24 bytes of host memory hold two of the four tensors, and what is kept free.
    report = predict("25%", *arguments, "--host-memory=24", text=text)
    (part,) = report["predictions"]
    assert part["step_s"] > all_of_it["step_s"]
    assert part["bytes_below_host"]["read"] > 0
    assert report["pipe"]["host_bytes"] == 24
    (without,) = predict("25%", *arguments, text=text)["predictions"]
    assert part["step_s"] < without["step_s"]
    done = run_tencache(
        "plan", *arguments, "--host-memory=20", "--device-memory=25%", "period.jsonl"
    )
    for words in (
        "link 1.00 GB/s, 20 B of host memory, of which 1/16 is kept free for what leaves the ",
        "device, disk reads 100 MB/s, writes 100 MB/s",
        "under 10 B the disk below host memory reads",
    ):
        assert words in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host-memory=20"], "give both, as in --link 50GB/s --disk 5GB/s"),
        (["--host-memory=9", "--link=1GB/s"], "9 B of host memory hold no tensor of 10 B"),
        (["--host-memory=16e9GiB", "--link=1GB/s"], "is not a size"),
        (["--host-memory=99999999999GiB", "--link=1GB/s"], "it is too large"),
        (["--host-memory=20", "--link=1GB/s", "--half-duplex"], "Leave one of them out"),
        (["--host-memory=20", "--link-read=1GB/s"], "give both, as in --link 50GB/s"),
        (["--host-memory=some", "--link=1GB/s"], '"some" is not a size'),
    ],
)
def test_host_memory_that_cannot_be_is_refused(run_tencache, tmp_path, arguments, words):
    (tmp_path / "period.jsonl").write_text(TWO_IN_TURN)
    done = run_tencache("plan", "--disk=1GB/s", *arguments, "period.jsonl")
    assert_refused(done, words)


def test_four_in_turn_hide_what_two_places_allow(predict):
    text = "\n".join(json.dumps(line) for line in FOUR_IN_TURN)
    report = predict("25%,75%", text=text)
    one_place, three_places = report["predictions"]
    # Every op waits until the previous tensor is written and its own is read.
    assert nanoseconds(one_place["step_s"]) == 480
    assert nanoseconds(three_places["step_s"]) == 400
    assert report["smallest"] == one_place
    # While an op computes in one place, the tensor in the other place is written and the next one
    # is read, in 20 ns.
    assert report["cheapest"]["budget_bytes"] == 20
    assert nanoseconds(report["cheapest"]["step_s"]) == 400


# ---- plans that once were poor, or had a bound that was too low --------------------------------

GB = 10**9
LAYERS = 64


def stack_lines():
    """Layers that each make a gigabyte, which the backward pass needs in reverse."""
    last = 2 * LAYERS - 1
    return [
        HEADER,
        *(
            {"id": layer, "bytes": GB, "allocated_at": layer, "freed_at": last - layer}
            for layer in range(LAYERS)
        ),
        *(
            {
                "name": "forward",
                "compute_ns": 2 * 10**8,
                "reads": [layer - 1] if layer else [],
                "writes": [layer],
            }
            for layer in range(LAYERS)
        ),
        *(
            {"name": "backward", "compute_ns": 4 * 10**8, "reads": [layer]}
            for layer in reversed(range(LAYERS))
        ),
    ]


def weights_lines(layers=8):
    """Weights of a gigabyte that the backward pass writes, and an activation for each."""
    last = 2 * layers - 1
    return [
        HEADER,
        *({"id": layer, "bytes": GB} for layer in range(layers)),
        *(
            {"id": layers + layer, "bytes": GB, "allocated_at": layer, "freed_at": last - layer}
            for layer in range(layers)
        ),
        *(
            {
                "name": "forward",
                "compute_ns": 10**7,
                "reads": [layer] + ([layers + layer - 1] if layer else []),
                "writes": [layers + layer],
            }
            for layer in range(layers)
        ),
        *(
            {
                "name": "backward",
                "compute_ns": 2 * 10**8,
                "reads": [layers + layer],
                "writes": [layer],
            }
            for layer in reversed(range(layers))
        ),
    ]


@pytest.mark.parametrize(
    ("lines", "budget", "arguments", "bound_most", "ideal_most"),
    [
        (stack_lines(), "8GB", ["--link=1GB/s", "--disk=1GB/s"], 1.03, 3.1),
        (weights_lines(), "12GB", ["--disk=10GB/s"], 1.04, 1.04),
        (
            stack_lines(),
            "8GB",
            ["--link=16GB/s", "--host-memory=32GB", "--disk=2GB/s"],
            # The disk begins to write when host memory holds 28 of 32 GB, 5.6 s after the start at
            # best. It has to write 24 GB at 2 GB/s before the last layer has room. That is at 17.6
            # s, but the forward pass takes only 12.8 of the 38.4 s. So 1.125 is the least. Writing
            # from the first layer on would hide it all, but host memory writes nothing ahead of
            # need.
            1.15,
            1.15,
        ),
    ],
    ids=["writes", "chain", "disk"],
)
def test_plan_is_close_to_the_bound(predict, lines, budget, arguments, bound_most, ideal_most):
    text = "\n".join(json.dumps(line) for line in lines)
    (prediction,) = predict(budget, *arguments, text=text)["predictions"]
    assert 1 <= prediction["versus_bound"] <= bound_most
    assert prediction["versus_ideal"] <= ideal_most


@pytest.mark.parametrize("arguments", [["--half-duplex"], ["--link=1GB/s", "--host-memory=20"]])
def test_bound_counts_writes_and_the_disk(predict, arguments):
    text = "\n".join(json.dumps(line) for line in FOUR_IN_TURN[1:])
    text = json.dumps(HEADER) + "\n" + text.replace('"compute_ns": 100', '"compute_ns": 1')
    (plain,) = predict("25%", "--disk=100MB/s", "--link=1GB/s", text=text)["predictions"]
    (prediction,) = predict("25%", "--disk=100MB/s", *arguments, text=text)["predictions"]
    assert prediction["versus_bound"] >= 1
    if "--half-duplex" in arguments:
        assert prediction["bound_step_s"] > plain["bound_step_s"]
    else:
        link_only_s = 4 * (10 + 1) * 1e-9
        assert prediction["bound_step_s"] > link_only_s


@pytest.mark.parametrize(
    ("arguments", "is_half_duplex"),
    [
        ([], True),
        (["--disk-read=1GB/s"], True),
        (["--link=50GB/s"], True),
        (["--disk=1GB/s"], False),
        (["--disk=1GB/s", "--half-duplex"], True),
    ],
)
def test_the_recorded_disk_keeps_its_turns(predict, run_tencache, arguments, is_half_duplex):
    header = {**FOUR_IN_TURN[0], "half_duplex": True}
    text = "\n".join(json.dumps(line) for line in (header, *FOUR_IN_TURN[1:]))
    assert predict("25%", *arguments, text=text)["pipe"]["is_half_duplex"] is is_half_duplex
    done = run_tencache("plan", *arguments, "period.jsonl")
    assert ("writes 1.00 GB/s, in turn" in done.stdout) is is_half_duplex


def test_a_budget_below_the_largest_op_is_told(predict, run_tencache):
    report = predict("5", "--disk=1GB/s")
    (prediction,) = report["predictions"]
    assert prediction["over_budget_bytes"] > 0
    assert prediction["versus_bound"] is None
    done = run_tencache("plan", "--device-memory=5", "--disk=1GB/s", "period.jsonl")
    assert "a budget of 5 B would be exceeded by" in done.stdout


def test_table_shows_each_budget_and_the_two_that_matter(run_tencache, tmp_path):
    write_lines(tmp_path / "period.jsonl", *FOUR_IN_TURN)
    done = run_tencache("plan", "period.jsonl")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "budget share step / ideal / bound stall moving read written" in lines
    assert "40 B 100% 400 ns 1.00x 1.00x 0 ns 0 ns 0 B 0 B" in lines
    assert "10 B 25% 480 ns 1.20x 1.09x 80 ns 0 ns 40 B 40 B" in lines
    for part in (
        "period.jsonl: 4 ops, 4 tensors, peak 40 B; reads 1.00 GB/s, writes 1.00 GB/s",
        "ideal step, computing alone: 400 ns",
        "smallest budget, which the largest op just fits: 10 B (25% of the peak), a step takes "
        "480 ns, 1.20x ideal",
        "cheapest budget within 5% of ideal: 20 B (50% of the peak), a step takes 400 ns",
    ):
        assert part in done.stdout


def test_speeds_that_nobody_knows_have_to_be_given(run_tencache, tmp_path):
    (tmp_path / "period.jsonl").write_text(TWO_IN_TURN)
    assert_refused(run_tencache("plan", "period.jsonl"), "reads and writes", "--disk 5GB/s")
    done = run_tencache("plan", "--disk-read=1GB/s", "period.jsonl")
    assert_refused(done, "does not say how fast the disk writes")


def test_a_period_without_compute_time_has_no_ratio(predict):
    report = predict("50%,100%", "--disk=1GB/s", text=TWO_IN_TURN.replace("100", "0"))
    assert [p["versus_ideal"] for p in report["predictions"]] == [None, None]
    assert nanoseconds(report["predictions"][0]["step_s"]) == 30


@pytest.mark.parametrize(
    ("flag", "text", "parts"),
    [
        ("--device-memory", "50%,lots", ["'lots' is not a budget", "1.5GiB"]),
        ("--device-memory", "0%", ["'0%' is not a budget"]),
        ("--device-memory", "-5", ["'-5' is not a budget"]),
        ("--disk", "fast", ["'fast' is not a speed", "5GB/s"]),
        ("--disk", "5Gb/s", ["'5Gb/s' counts bits", "800MB/s"]),
        ("--link", "0", ["'0' is not a speed"]),
    ],
)
def test_value_that_cannot_be_used_is_named(run_tencache, tmp_path, flag, text, parts):
    (tmp_path / "period.jsonl").write_text(TWO_IN_TURN)
    assert_refused(run_tencache("plan", flag, text, "period.jsonl"), flag, *parts)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5GB/s", 5e9), ("800 MB/s", 8e8), ("1GiB/s", 2.0**30), ("1.5 GB / s", 1.5e9), ("7e", None)],
)
def test_speeds_are_read(text, rate):
    if rate is None:
        with pytest.raises(OptionError, match="is not a speed"):
            _pipe.parse_rate(text)
    else:
        assert _pipe.parse_rate(text) == rate


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 us"), (41.25e6, "41.2 ms"), (312e9, "312 s")],
)
def test_times_have_three_digits(ns, text):
    assert _units.format_time(ns) == text


def test_planning_needs_no_torch(run_python, tmp_path):
    (tmp_path / "period.jsonl").write_text(TWO_IN_TURN)
    run_python(
        """
        import sys
        from tencache import _cli
        sys.argv = ["tencache", "plan", "--disk=1GB/s", "period.jsonl"]
        try:
            _cli.main()
        except SystemExit as end:
            assert end.code == 0, end.code
        assert not {"torch", "matplotlib"} & set(sys.modules)
        """
    )


# ---- the file ----------------------------------------------------------------------------------


def plan_file(path, budget_bytes):
    period = _period_file.read_period(path)
    pipe = _pipe.Pipe(1e9, 1e9)
    return _plan.Planner(core(), period, pipe).predict(budget_bytes)


def test_ids_are_names_and_lives_end(tmp_path):
    """A file as another tool may write it: its own ids and fields, no counts, empty lines."""
    path = tmp_path / "period.jsonl"
    path.write_text(
        '{"format": "tencache-period", "version": 1, "fixed_bytes": 3, "made_by": "hand"}\n\n'
        '{"id": 140737488355328, "bytes": 10, "shape": [10]}\n'
        '{"id": 7, "bytes": 100, "allocated_at": 1, "freed_at": 2}\n'
        '{"id": 9, "bytes": 1000, "allocated_at": 3, "freed_at": 0}\n'
        '{"name": "a", "compute_ns": 5, "reads": [140737488355328, 9]}\n'
        '{"name": "b", "compute_ns": 6, "reads": [140737488355328], "writes": [7]}\n'
        '{"name": "c", "compute_ns": 7, "reads": [7]}\n'
        '{"name": "d", "compute_ns": 8, "writes": [9, 9]}'
    )
    period = _period_file.read_period(path)
    assert (period.op_count, period.tensor_count) == (4, 3)
    assert period.read_bytes_per_s == period.device_budget_bytes == 0
    prediction = plan_file(path, 10_000)
    assert prediction.compute_ns == prediction.step_ns == 26
    assert prediction.peak_bytes == 3 + 10 + 1000
    assert prediction.largest_op_bytes == 3 + 10 + 1000  # op a


def test_the_file_in_the_documents_is_a_whole_one(tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "planning.md"
    block = page.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    assert '"tencache-period"' in block
    path = tmp_path / "period.jsonl"
    path.write_text(block)
    prediction = plan_file(path, 8 << 20)
    assert prediction.step_ns == prediction.compute_ns == 1_500_000
    assert prediction.largest_op_bytes == prediction.peak_bytes == 8 << 20


def test_header_tells_where_it_was_recorded(tmp_path, run_tencache):
    header = {**FOUR_IN_TURN[0], "device_budget_bytes": 30, "read_bytes_per_s": 2.5e9}
    write_lines(tmp_path / "period.jsonl", header, *FOUR_IN_TURN[1:])
    done = run_tencache("plan", "period.jsonl")
    assert "reads 2.50 GB/s, writes 1.00 GB/s; recorded under 30 B" in done.stdout


def test_what_is_overwritten_need_not_be_kept(tmp_path):
    """Two buffers that are each filled, used and filled anew, and one that lives only a while."""
    ops = [
        {"name": "fill", "compute_ns": 100, "writes": [0], "overwrites": [0]},
        {"name": "use", "compute_ns": 100, "reads": [0], "writes": [2]},
        {"name": "fill", "compute_ns": 100, "writes": [1, 2], "overwrites": [1, 2]},
        {"name": "use", "compute_ns": 100, "reads": [1]},
        {"name": "fill", "compute_ns": 100, "writes": [0], "overwrites": [0]},
        {"name": "use", "compute_ns": 100, "reads": [0, 2]},
    ]
    tensors = [
        {"id": 0, "bytes": 10},
        {"id": 1, "bytes": 10},
        {"id": 2, "bytes": 10, "allocated_at": 1, "freed_at": 5},
    ]
    path = write_lines(tmp_path / "period.jsonl", HEADER, *tensors, *ops)
    prediction = plan_file(path, 20)
    assert (prediction.peak_bytes, prediction.bytes_read, prediction.step_ns) == (20, 0, 600)
    period = _period_file.read_period(path)
    struct = period.struct
    assert (period.tensor_count, struct.tensor_count) == (3, 5)
    lives = list(zip(struct.allocated_at[:5], struct.freed_at[:5], strict=True))
    # The first lives keep their places; those of tensors 0 and 2 that follow come after them.
    assert lives == [(0, 1), (2, 3), (1, 1), (4, 5), (2, 5)]
    assert struct.access_tensors[:9] == [0, 0, 2, 1, 4, 1, 3, 3, 4]
    kept = write_lines(tmp_path / "kept.jsonl", HEADER, *tensors, *map(without_overwrites, ops))
    assert plan_file(kept, 20).bytes_read > 0


def without_overwrites(op):
    return {name: value for name, value in op.items() if name != "overwrites"}


OP = {"name": "op", "compute_ns": 1, "reads": [0]}
TENSOR = {"id": 0, "bytes": 10}


@pytest.mark.parametrize(
    ("lines", "line", "parts"),
    [
        ([], 1, ["not tencache-period but None", "tencache run --record"]),
        ([{"format": "a-format", "version": 1}], 1, ["'a-format'"]),
        ([{**HEADER, "version": 2}], 1, ["version 2", "reads version 1"]),
        ([HEADER], 1, ["no ops follow"]),
        ([HEADER, {"name": "a", "compute_ns": 1}], 1, ["no tensors follow", '{"id": …, "bytes"']),
        ([HEADER, [1]], 2, ["not a JSON object"]),
        ([HEADER, {"bytes": 1}], 2, ["neither a tensor", '"id"', '"name"']),
        ([HEADER, {"id": 0}], 2, ["it lacks bytes"]),
        ([HEADER, {"id": 0, "bytes": 0}], 2, ["bytes is 0", "from 1 to"]),
        ([HEADER, {"id": "a", "bytes": 1}], 2, ["id is 'a'", "whole number"]),
        ([HEADER, {"id": 0, "bytes": 1.5}], 2, ["bytes is 1.5"]),
        ([HEADER, {"id": True, "bytes": 1}], 2, ["id is True"]),
        ([HEADER, TENSOR, TENSOR], 3, ["line 2 also has a tensor with id 0"]),
        ([HEADER, {**TENSOR, "freed_at": 1}], 2, ["only one of allocated_at and freed_at"]),
        ([HEADER, TENSOR, OP, {**TENSOR, "id": 1}], 4, ["after the first op"]),
        ([HEADER, OP], 2, ["op 0 names tensor 0, which no line above describes"]),
        ([HEADER, TENSOR, {**OP, "reads": 0}], 3, ["reads is 0", "list of tensors' ids"]),
        ([HEADER, TENSOR, {**OP, "writes": ["0"]}], 3, ["names tensor '0'"]),
        ([HEADER, TENSOR, {"name": "op"}], 3, ["it lacks compute_ns"]),
        ([HEADER, TENSOR, {**OP, "compute_ns": -1}], 3, ["compute_ns is -1", "from 0"]),
        (
            [HEADER, {**TENSOR, "allocated_at": 1, "freed_at": 1}, OP, OP],
            3,
            ["op 0 names tensor 0, which exists only from op 1 to op 1", "Correct line 2"],
        ),
        (
            [HEADER, {**TENSOR, "allocated_at": 0, "freed_at": 1}, OP],
            2,
            ["from op 0 to op 1, and the file has 1 ops"],
        ),
        ([HEADER, TENSOR, {**OP, "overwrites": [0]}], 3, ["overwrites tensor 0", "not in reads"]),
        ([HEADER, TENSOR, {**OP, "overwrites": 0}], 3, ["overwrites is 0", "list of tensors' ids"]),
        ([{**HEADER, "ops": 2}, TENSOR, OP], 1, ["announces 2 ops, and the file has 1", "cut"]),
        ([{**HEADER, "tensors": 0}, TENSOR, OP], 1, ["announces 0 tensors"]),
        ([{**HEADER, "read_bytes_per_s": "fast"}, TENSOR, OP], 1, ["read_bytes_per_s is 'fast'"]),
        ([{**HEADER, "half_duplex": 1}, TENSOR, OP], 1, ["half_duplex is 1", "true or false"]),
        ([{**HEADER, "fixed_bytes": -1}, TENSOR, OP], 1, ["fixed_bytes is -1"]),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, lines, line, parts):
    path = write_lines(tmp_path / "period.jsonl", *lines)
    with pytest.raises(TencacheError) as caught:
        _period_file.read_period(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line {line}: ")
    assert message.endswith(".")
    for part in parts:
        assert part in message


def test_what_is_always_there_may_be_all(tmp_path):
    path = write_lines(tmp_path / "p.jsonl", {**HEADER, "fixed_bytes": 9}, {**OP, "reads": []})
    assert plan_file(path, 10).peak_bytes == 9


@pytest.mark.parametrize("content", [b"hello\n", b"\xff\xfe\x00", b'{"format": "tencache-period"'])
def test_a_file_that_is_no_json_is_one_message(run_tencache, tmp_path, content):
    (tmp_path / "period.jsonl").write_bytes(content)
    done = run_tencache("plan", "--disk=1GB/s", "period.jsonl")
    assert_refused(done, "period.jsonl, line 1: it is not JSON")
    assert_refused(run_tencache("plan", "missing.jsonl"), "missing.jsonl", "does not exist")


def test_sizes_that_no_machine_has_are_refused_by_the_core(run_tencache, tmp_path):
    write_lines(tmp_path / "period.jsonl", HEADER, {"id": 0, "bytes": 2**62}, OP)
    done = run_tencache("plan", "--disk=1GB/s", "period.jsonl")
    assert_refused(done, "more than 1.00 EiB")
    (tmp_path / "period.jsonl").write_text(TWO_IN_TURN.replace('"bytes": 10', '"bytes": 100000000'))
    assert_refused(run_tencache("plan", "--disk=1", "period.jsonl"), "1.000000 bytes/s")


# ---- the plot ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "begin"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
def test_plot_is_drawn(run_tencache, tmp_path, name, begin):
    write_lines(tmp_path / "period.jsonl", *FOUR_IN_TURN)
    done = run_tencache("plan", "period.jsonl", "--plot", name)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_plot_shows_the_curve_from_the_smallest_budget_to_the_peak(tmp_path):
    path = write_lines(tmp_path / "period.jsonl", *FOUR_IN_TURN)
    planner = _plan.Planner(core(), _period_file.read_period(path), _pipe.Pipe(1e9, 1e9))
    budgets = _plan.parse_budgets("5,90%,1GiB")
    report = _plan.make_report(planner, path, budgets)
    curve = _plan_plot.sample(report)
    budgets = [p.budget_bytes for p in curve]
    assert budgets == sorted(set(budgets))
    assert {10, 20, 36, 40} < set(budgets)
    assert len(budgets) >= 16
    assert (budgets[0], curve[0].step_ns) == (10, 480)
    assert (budgets[-1], curve[-1].step_ns) == (40, 400)


@pytest.mark.parametrize("flag", ["--plot", "--timeline"])
@pytest.mark.parametrize(
    ("name", "parts"),
    [("out.pdf", [".png", ".svg", "out.png"]), ("no/such/out.png", ["does not exist"])],
)
def test_drawing_that_cannot_be_written_is_refused_before_planning(
    run_tencache, tmp_path, flag, name, parts
):
    (tmp_path / "period.jsonl").write_text("not even a period\n")
    assert_refused(run_tencache("plan", "period.jsonl", flag, name), flag, name, *parts)


def test_two_drawings_need_two_files(run_tencache, tmp_path):
    (tmp_path / "period.jsonl").write_text("not even a period\n")
    done = run_tencache("plan", "period.jsonl", "--plot=out.svg", "--timeline=./out.svg")
    assert_refused(done, "out.svg", "both --plot and --timeline")


@pytest.mark.parametrize("flag", ["--plot", "--timeline"])
def test_a_drawing_does_not_replace_the_period(run_tencache, tmp_path, flag):
    (tmp_path / "period.svg").write_text(TWO_IN_TURN)
    done = run_tencache("plan", "--disk=1GB/s", "period.svg", f"{flag}=./period.svg")
    assert_refused(done, "which this command reads", f"Name another file with {flag}")
    assert (tmp_path / "period.svg").read_text() == TWO_IN_TURN


def test_drawing_without_matplotlib_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(_drawing.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(TencacheError, match=r"--plot needs .*pip install 'matplotlib"):
        _drawing.check_path(tmp_path / "out.png", "--plot")
