# SPDX-License-Identifier: Apache-2.0
"""Two runs of a program: the second follows what the first has recorded, from its first step on.

Files that cannot be followed, and files of other programs, do no harm.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cli import assert_refused

from tencache import _period_file
from tencache._library import OptionError, TencacheError, core

# The core learns and follows; these tests do not depend on the installed torch.
pytestmark = pytest.mark.any_torch

# The program prints for each step the loss and the stats.
TRAIN = """\
import json, os, sys, time
import torch, tencache
torch.manual_seed(0)
torch.set_num_threads(1)
width = int(sys.argv[1])
recorded = tencache.options()["record"]
followed = tencache.options()["learn_from"]
deadline = time.monotonic() + 100
# Plans are made in the background.
while followed != "off" and not tencache.stats()["plan"]["kinds"] and time.monotonic() < deadline:
    time.sleep(0.01)
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(12)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
step = 0
while step < 5 or (recorded != "off" and not os.path.exists(recorded)):
    assert time.monotonic() < deadline
    loss = model(torch.randn(256, width)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    stats = tencache.stats()
    step += 1
    if step <= 5:
        print(json.dumps({
            "loss": loss.item().hex(),
            "early": stats["fetches"]["early"],
            "plan": stats["plan"],
        }))
"""
WIDTH = 768
# Half of the memory of twelve matrices of 2.25 MiB with gradients, Adam's state and activations.
BUDGET = "--device-memory=64MiB"


@pytest.fixture
def train(
    run_tencache: Callable[..., Any], tmp_path: Path
) -> Callable[..., tuple[list[dict[str, Any]], str]]:
    """Runs the loop with these arguments of `tencache run`; returns its steps and its stderr."""

    def run(
        *arguments: str, width: int = WIDTH, budget: str = BUDGET
    ) -> tuple[list[dict[str, Any]], str]:
        (tmp_path / "train.py").write_text(TRAIN)
        command = ("run", budget, "--extent-min=64KiB", *arguments)
        done = run_tencache(*command, "--", sys.executable, "train.py", str(width))
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return run


def losses(steps: list[dict[str, Any]]) -> list[str]:
    return [step["loss"] for step in steps]


def test_the_second_run_follows_what_the_first_has_recorded(train: Callable[..., Any]) -> None:
    first, first_said = train("--record=period.jsonl")
    second, said = train("--learn-from=period.jsonl")
    assert losses(second) == losses(first)
    assert "were not used for the longest time go to" in first_said
    assert "from now on, so steps get slower" in first_said
    assert "so steps get slower" not in said, "the first spill comes with a plan"
    assert "first spill: " in said
    assert first[0]["plan"]["ticks_followed"] == 0, "in the first step nothing is planned"
    assert first[0]["plan"]["stored"] is None
    stored = second[0]["plan"]["stored"]
    assert stored["ticks_followed"] > stored["ticks"] / 2, "in the first step"
    assert second[1]["early"] > 0, second
    assert second[-1]["plan"]["lost"] == 0, second
    assert "learn_from: the recorded period was followed for" in said


def test_the_file_of_another_program_does_no_harm(train: Callable[..., Any]) -> None:
    train("--record=period.jsonl", width=512, budget="--device-memory=28MiB")
    alone, _ = train()
    steps, said = train("--learn-from=period.jsonl")
    assert losses(steps) == losses(alone)
    assert steps[-1]["plan"]["stored"]["ticks_followed"] == 0
    assert "the recorded period was not followed" in said


# ---- files that cannot be followed -------------------------------------------------------------

HEADER = '{"format": "tencache-period", "version": 1, "ops": 1}\n'
TENSORS = '{"id": 0, "bytes": 4096}\n{"id": 1, "bytes": 4096}\n'
MIXED = '{"name": "aten::mm", "compute_ns": 1, "reads": [0], "writes": [1]}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["cannot be read: No such file"]),
        ("", ["line 1", "not tencache-period"]),
        (HEADER.replace("1,", "2,", 1) + TENSORS + MIXED, ["line 1", "version 2", "reads version"]),
        (HEADER + TENSORS, ["line 1", "announces 1 ops", "cut short"]),
        (HEADER + TENSORS + MIXED, ["line 4", "lacks order", "record the program again"]),
        (HEADER + TENSORS + MIXED.replace("}", ', "order": "rr"}'), ["line 4", "order is 'rr'"]),
    ],
)
def test_a_file_that_cannot_be_followed_stops_the_start(
    run_tencache: Callable[..., Any], tmp_path: Path, text: str | None, words: list[str]
) -> None:
    if text is not None:
        (tmp_path / "p.jsonl").write_text(text)
    done = run_tencache("run", "--learn-from=p.jsonl", "--", sys.executable, "-c", "print('ran')")
    assert_refused(done, "learn_from", str(tmp_path / "p.jsonl"), "--record FILE", *words)
    assert done.stdout == ""


def test_what_is_no_file_stops_the_start(run_tencache: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("directory", "directory is not a regular file"),
        ("pipe", "pipe is not a regular file"),
        ("x" * 300, "cannot be read: File name too long"),
    ):
        done = run_tencache("run", f"--learn-from={name}", "--", sys.executable, "-c", "print(1)")
        assert_refused(done, "learn_from", words, "--record FILE")


def test_a_period_that_the_core_refuses_is_named(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    text = HEADER + TENSORS.replace("4096", str(1 << 51)) + MIXED.replace("}", ', "order": "rw"}')
    (tmp_path / "p.jsonl").write_text(text)
    done = run_python(
        """
        import tencache
        try:
            tencache.enable(device_memory="64MiB", learn_from="p.jsonl")
        except tencache.OptionError as error:
            print(error)
        """
    )
    assert f"{tmp_path / 'p.jsonl'}: trace: its tensors have more than" in done.stdout
    assert "record the program again. Give a file that" in done.stdout


def test_a_worker_goes_without(run_tencache: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(HEADER + TENSORS + MIXED.replace("}", ', "order": "rw"}'))
    (tmp_path / "program.py").write_text(
        """\
import multiprocessing
import torch, tencache

def show():
    print(tencache.options()["learn_from"])

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=show)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
"""
    )
    done = run_tencache("run", "--learn-from=p.jsonl", "--", sys.executable, "program.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "off\n"
    assert "learn_from" not in done.stderr


def test_after_a_refused_file_it_can_be_enabled_without(run_python: Callable[..., Any]) -> None:
    done = run_python(
        """
        import tencache
        try:
            tencache.enable(device_memory="64MiB", learn_from="missing.jsonl")
        except tencache.OptionError as error:
            print(error)
        tencache.enable(device_memory="64MiB")
        print(tencache.stats()["plan"]["stored"])
        """
    )
    assert "missing.jsonl cannot be read" in done.stdout
    assert done.stdout.endswith("\nNone\n")


@pytest.mark.parametrize(("option", "text"), [("strict", "strict=on"), ("no-plan", "plan=off")])
def test_where_nothing_is_planned_a_warning_says_so(
    run_tencache: Callable[..., Any], tmp_path: Path, option: str, text: str
) -> None:
    (tmp_path / "p.jsonl").write_text(HEADER + TENSORS + MIXED.replace("}", ', "order": "rw"}'))
    done = run_tencache(
        "run", "--learn-from=p.jsonl", f"--{option}", "--", sys.executable, "-c", "import torch"
    )
    assert done.returncode == 0, done.stderr
    assert f"has no effect: with {text} nothing is planned" in done.stderr


def test_each_rank_follows_its_own_file(run_tencache: Callable[..., Any], tmp_path: Path) -> None:
    text = HEADER + TENSORS + MIXED.replace("}", ', "order": "rw"}')
    for rank in range(2):
        (tmp_path / f"p.rank{rank}.jsonl").write_text(text)
    # The launcher is no rank.
    program = "import os; os.environ.update(RANK='1', WORLD_SIZE='2'); import torch, tencache; "
    program += "print(tencache.options()['learn_from'])"
    done = run_tencache("run", "--learn-from=p.jsonl", "--", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'p.rank1.jsonl'}\n"


def test_a_rank_without_a_file_goes_without(
    run_tencache: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "p.rank3.jsonl").write_text(
        HEADER + TENSORS + MIXED.replace("}", ', "order": "rw"}')
    )
    program = "import os; os.environ.update(RANK='4', WORLD_SIZE='8'); import torch, tencache; "
    program += "print(tencache.options()['learn_from'])"
    done = run_tencache("run", "--learn-from=p.jsonl", "--", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "off\n"
    assert done.stderr.count("so this rank learns without the option learn_from") == 1
    assert f"there is no {tmp_path / 'p.rank4.jsonl'}" in done.stderr


# ---- the reader --------------------------------------------------------------------------------


def valid_lines() -> list[str]:
    header = {"format": "tencache-period", "version": 1, "ops": 8, "tensors": 5, "fixed_bytes": 7}
    tensors = [{"id": tensor, "bytes": 4096} for tensor in range(4)]
    born = {"id": 4, "bytes": 65536, "allocated_at": 1, "freed_at": 6}
    ops = [
        {
            "name": f"aten::op{op % 3}",
            "compute_ns": 1000 + op,
            "reads": [op % 4, (op + 1) % 4],
            "writes": [4] if 1 <= op <= 6 else [],
            "order": "rwr" if 1 <= op <= 6 else "rr",
        }
        for op in range(8)
    ]
    return [json.dumps(line) for line in (header, *tensors, born, *ops)]


def test_accesses_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(valid_lines()) + "\n")
    period = _period_file.read_period_to_follow(path)
    assert period.op_names[4] == b"aten::op1"
    assert period.op_names[4] is period.op_names[1], "a name is kept once, however many ops have it"
    # The second op names 1, then writes 4, then names 2.
    assert list(period.struct.access_tensors[2:5]) == [1, 4, 2]
    assert list(period.struct.access_writes[2:5]) == [0, 1, 0]


def test_a_damaged_file_is_read_or_refused(tmp_path: Path) -> None:
    seed = int(os.environ.get("TENCACHE_TEST_SEED", random.randrange(2**32)))
    print(f"TENCACHE_TEST_SEED={seed}")
    source = random.Random(seed)
    whole = ("\n".join(valid_lines()) + "\n").encode()
    path = tmp_path / "p.jsonl"
    refused = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(source.randint(1, 3)):
            kind, place = source.randrange(4), source.randrange(len(data))
            if kind == 0:
                del data[place:]
                data += b" "
            elif kind == 1:
                data[place] ^= 1 << source.randrange(8)
            elif kind == 2:
                data[place] = source.choice(b'0123456789-.eE[]{}",:rw\n\xff\0')
            else:
                data[place:place] = whole[place : place + source.randrange(40)]
        path.write_bytes(data)
        try:
            period = _period_file.read_period_to_follow(path)
            core().learn_from(period.struct, period.op_names)
        except OptionError as error:
            assert str(error)
            refused += 1
        except TencacheError as error:
            assert str(error).startswith(f"{path}, line ")
            refused += 1
    assert 0 < refused < 2000
