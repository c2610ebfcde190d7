# SPDX-License-Identifier: Apache-2.0
"""`tencache plan --gpus`: a GPU is planned as one on a machine with its part of the shared tiers.

Tensors have 10 bytes and ops compute for 100 ns, as in test_plan.py; the links move a byte a
nanosecond. Where nothing of a step comes to a shared tier's limits, the number of GPUs changes no
figure.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from test_cli import assert_refused
from test_plan import FOUR_IN_TURN, TWO_IN_TURN, write_lines

from tencache import _period_file, _pipe, _plan, _plan_timeline
from tencache._library import OptionError, TencacheError, core
from tencache._pipe import Given, Pipe

# Planning needs no torch.
pytestmark = pytest.mark.any_torch

WHOLE = Given(disk_read=200e6, disk_write=100e6, link_read=1e9, link_write=1e9, host_bytes=48)
HALF = Given(disk_read=100e6, disk_write=50e6, link_read=1e9, link_write=1e9, host_bytes=24)


@pytest.fixture
def period(tmp_path):
    return _period_file.read_period(write_lines(tmp_path / "period.jsonl", *FOUR_IN_TURN))


def planner_of(period, given):
    return _plan.Planner(core(), period, Pipe.of(period, given))


def predict(period, given, budgets=(10, 20, 30, 40)):
    planner = planner_of(period, given)
    return [planner.predict(budget) for budget in budgets]


def with_gpus(given, gpus):
    return dataclasses.replace(given, gpus=gpus)


# ---- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "half"),
    [
        (WHOLE, HALF),
        (dataclasses.replace(WHOLE, host_bytes=0), dataclasses.replace(HALF, host_bytes=0)),
        (
            Given(disk_read=1e9, disk_write=1e9, is_half_duplex=True),
            Given(disk_read=5e8, disk_write=5e8, is_half_duplex=True),
        ),
        # What cannot be divided goes to nobody.
        (dataclasses.replace(WHOLE, host_bytes=49), HALF),
    ],
    ids=["host", "disk", "in-turn", "odd"],
)
def test_two_gpus_are_one_on_half_the_machine(period, whole, half):
    pipe = Pipe.of(period, with_gpus(whole, 2))
    assert dataclasses.replace(pipe, gpus=1) == Pipe.of(period, half)
    halves = predict(period, with_gpus(whole, 2))
    assert halves == predict(period, half)
    # With one place for four tensors the disk decides, so a GPU alone is faster.
    alone = predict(period, whole)
    assert alone[0].step_ns < halves[0].step_ns
    assert alone[3] == halves[3], "in 40 B everything fits"


def test_the_command_says_what_was_shared(run_tencache, tmp_path):
    write_lines(tmp_path / "period.jsonl", *FOUR_IN_TURN)
    budgets = ("plan", "period.jsonl", "--device-memory=25%,50%", "--link=1GB/s")
    shared = ("--gpus=2", "--host-memory=48", "--disk=200MB/s")
    done = run_tencache(*budgets, *shared, "--json")
    halved = run_tencache(*budgets, "--host-memory=24", "--disk=100MB/s", "--json")
    assert done.returncode == halved.returncode == 0, done.stderr + halved.stderr
    report, expected = json.loads(done.stdout), json.loads(halved.stdout)
    assert report["pipe"].pop("gpus") == 2
    assert expected["pipe"].pop("gpus") == 1
    assert report == expected
    assert report["predictions"][0]["bytes_below_host"]["read"] > 0
    table = run_tencache(*budgets, *shared, "--timeline=step.svg")
    for words in (
        "link 1.00 GB/s, 24 B of host memory, of which 1/16 is kept free for what leaves the "
        "device, disk reads 100 MB/s, writes 100 MB/s, for each of 2 GPUs",
        "2 GPUs run this period at the same time, each with the budget and a link for itself, and "
        "with 1/2 of host memory and of the disk's speed",
    ):
        assert words in table.stdout, table.stdout + table.stderr
    assert (tmp_path / "step.svg").read_bytes().startswith(b"<?xml")


def test_without_host_memory_the_disk_alone_is_shared(period):
    disk = Given(disk_read=1e9, disk_write=1e9, gpus=4)
    assert "and with 1/4 of the disk's speed" in str(_pipe.sharing(Pipe.of(period, disk)))
    assert _pipe.sharing(Pipe.of(period, with_gpus(disk, 1))) is None


def test_links_are_not_shared(period):
    """A link that is narrower than each GPU's part of the disk decides alone."""
    given = Given(disk_read=1e9, disk_write=1e9, link_read=1e8, link_write=1e8)
    expected = predict(period, given)
    assert expected[0].step_ns > 480, "the step of a link of 1 GB/s"
    for gpus in (2, 10):
        assert predict(period, with_gpus(given, gpus)) == expected
    assert predict(period, with_gpus(given, 20)) != expected


def test_host_memory_that_holds_everything_leaves_nothing_to_share(period):
    given = dataclasses.replace(WHOLE, host_bytes=400)
    expected = predict(period, given)
    assert expected[0].step_ns == 480  # of the links
    for gpus in (2, 7, 10):
        assert predict(period, with_gpus(given, gpus)) == expected
    assert predict(period, with_gpus(given, 11))[0].disk_bytes_read > 0, "36 B for each of 11"


def test_timeline_is_that_of_one_gpu(period, tmp_path):
    pipe = Pipe.of(period, with_gpus(WHOLE, 2))
    planner = _plan.Planner(core(), period, pipe)
    report = _plan.make_report(planner, tmp_path / "period.jsonl", _plan.parse_budgets("25%"))
    answer = planner.timeline(10)
    assert answer == planner_of(period, HALF).timeline(10)
    figure = _plan_timeline.draw(_plan_timeline.Timeline.of(answer), report.predictions[0], report)
    assert "for each of 2 GPUs" in figure.axes[0].get_title(loc="left")


# ---- what cannot be ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "-2", "two", "", "1.5", "1025", "99999999999", "٤", " 4"])
def test_text_that_is_no_number_of_gpus_is_named(text):
    with pytest.raises(OptionError) as refusal:
        _pipe.parse_gpus(text)
    assert str(refusal.value) == (
        f"{text!r} is not a number of GPUs: write a whole number from 1 to 1024, as in 8."
    )


def test_numbers_of_gpus_are_read():
    assert [_pipe.parse_gpus(text) for text in ("1", "8", "1024")] == [1, 8, 1024]


def test_the_command_names_a_wrong_number(run_tencache, tmp_path):
    (tmp_path / "period.jsonl").write_text(TWO_IN_TURN)
    done = run_tencache("plan", "--disk=1GB/s", "--gpus=none", "period.jsonl")
    assert_refused(done, "--gpus", "'none' is not a number of GPUs", "from 1 to 1024")


@pytest.mark.parametrize(("host_bytes", "gpus", "part"), [(48, 5, 9), (48, 49, 0)])
def test_parts_of_host_memory_that_hold_no_tensor_are_refused(period, host_bytes, gpus, part):
    given = dataclasses.replace(WHOLE, host_bytes=host_bytes, gpus=gpus)
    with pytest.raises(TencacheError) as refusal:
        Pipe.of(period, given)
    for words in (
        f"--host-memory {host_bytes} B for --gpus {gpus} is {part} B for each",
        "holds no tensor of 10 B",
        "Give at least --host-memory 1MiB, or fewer GPUs.",
    ):
        assert words in str(refusal.value)


@pytest.mark.parametrize(
    "given",
    [Given(gpus=2), Given(link_read=1e9, link_write=1e9, gpus=2), Given(disk_read=1e9, gpus=2)],
    ids=["nothing", "link", "reads"],
)
def test_the_speed_of_the_shared_disk_has_to_be_given(period, given):
    """The file has speeds, but whose they are it does not tell."""
    assert Pipe.of(period, with_gpus(given, 1)).gpus == 1
    with pytest.raises(TencacheError) as refusal:
        Pipe.of(period, given)
    for words in ("--gpus 2 divides the speed of one disk", "one GPU's link", "Give --disk 5GB/s"):
        assert words in str(refusal.value)
