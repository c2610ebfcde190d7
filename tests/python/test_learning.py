# SPDX-License-Identifier: Apache-2.0
"""From a training loop to a plan: learned, fetching ahead of use, recorded and predicted."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAIN = """\
import sys, time
import torch, tencache
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(12)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

def train_step():
    loss = model(torch.randn(256, 512)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

for step in range(16):
    loss = train_step()
print(loss.item().hex())
# Plans are made in the background; the program may be far ahead of them.
deadline = time.monotonic() + 100
while "until-learned" in sys.argv and time.monotonic() < deadline:
    stats = tencache.stats()
    if stats["plan"].get("coverage", 0) > 0.3 and stats["fetches"]["early"] > 0:
        break
    train_step()
"""
# Half of the memory of twelve 1 MiB matrices with gradients, Adam's state and activations.
BUDGET = "--device-memory=28MiB"


@pytest.fixture
def train(
    run_tencache: Callable[..., Any], tmp_path: Path
) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Runs the loop with these arguments of `tencache`; returns its last loss and the stats."""

    def run(*command: str, arguments: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
        (tmp_path / "train.py").write_text(TRAIN)
        done = run_tencache(
            *command,
            BUDGET,
            "--extent-min=64KiB",
            "--stats=s.json",
            "--",
            sys.executable,
            "train.py",
            *arguments,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / "s.json").read_text())

    return run


def test_a_training_loop_is_learned(train: Callable[..., Any]) -> None:
    reactive_loss, reactive = train("run", "--no-plan")
    loss, stats = train("run", arguments=("until-learned",))
    assert loss == reactive_loss
    assert reactive["plan"] is None
    assert reactive["fetches"]["early"] == 0
    plan = stats["plan"]
    assert plan["kinds"] >= 1, stats
    assert plan["coverage"] > 0.3, stats
    assert plan["ideal_step_s"] <= plan["bound_step_s"] <= plan["predicted_step_s"], stats
    assert 0 <= plan["simulated"]["bytes_late"] <= plan["simulated"]["bytes_read"], stats
    assert stats["fetches"]["early"] > 0, stats
    assert 0 < stats["bytes"]["fetched_early"] <= stats["bytes"]["fetched"], stats


@pytest.mark.any_torch
def test_what_was_recorded_can_be_planned(
    train: Callable[..., Any], run_tencache: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "period.jsonl").symlink_to("kept.jsonl")
    train("trace", "record", "-o", "period.jsonl")
    assert (tmp_path / "period.jsonl").is_symlink()
    done = run_tencache("plan", "--json", "--device-memory=100%,50%", "period.jsonl")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["predictions"]
    whole, half = rows
    assert whole["bytes"]["read"] == 0, rows
    assert half["bytes"]["read"] > 0, rows
    assert half["step_s"] >= whole["step_s"] > 0, rows


@pytest.mark.any_torch
def test_period_that_cannot_be_written_is_told_with_the_reason(
    run_tencache: Callable[..., Any], tmp_path: Path
) -> None:
    device = tmp_path / "full"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("this user cannot make a device")
    (tmp_path / "train.py").write_text(TRAIN)
    command = ("trace", "record", "--quiet", "-o", str(device), BUDGET, "--extent-min=64KiB")
    done = run_tencache(*command, "--", sys.executable, "train.py", "until-learned")
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stderr.splitlines()
    assert first == (
        f"tencache: error: the learned period could not be written to {device}: No space left on "
        "device"
    )
    assert last == f"tencache: error: {device} was not written: an earlier line tells why"


# Twelve matrices used in turn, with room for three and nearly nothing to compute. The budget is
# searched for in the background, so the program goes on until it is found.
TURNS = """\
import sys, time
import torch, tencache
torch.set_num_threads(1)
matrices = [torch.full((512, 512), float(index)) for index in range(12)]
deadline = time.monotonic() + 100
while time.monotonic() < deadline:
    matrices[0].neg_()
    for matrix in matrices:
        matrix.add_(1)
    plan = tencache.stats()["plan"]
    if plan.get("stall_free_budget_bytes"):
        sys.exit(0)
sys.exit(f"not found: {plan}")
"""


@pytest.mark.any_torch
def test_the_budget_without_waiting_is_found(
    run_tencache: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "turns.py").write_text(TURNS)
    done = run_tencache(
        "run",
        "--device-memory=4MiB",
        "--extent-min=64KiB",
        "--stats=s.json",
        "--",
        sys.executable,
        "turns.py",
    )
    assert done.returncode == 0, done.stderr
    stats = json.loads((tmp_path / "s.json").read_text())
    plan = stats["plan"]
    found = plan["stall_free_budget_bytes"]
    waits = plan["simulated"]["stall_s"] > 0.01 * plan["ideal_step_s"]
    assert (found > stats["budget"]["device"]) == waits, stats
    # Plans use 15 parts of 16 of the budget.
    assert found <= max(plan["simulated"]["peak_bytes"] * 16 / 15, 4 << 20), stats
    assert ("would hardly wait" in done.stderr) == waits, done.stderr


STEPS = """
import torch, tencache
layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
optimizers = {p: torch.optim.SGD([p], 0.1) for p in layers.parameters()}

def train():
    layers(torch.ones(1, 8)).sum().backward()

for _ in range(2):
    train()
    for optimizer in optimizers.values():
        optimizer.step()
print(tencache.stats()["steps"])

def step_at_once(parameter):
    optimizers[parameter].step()

for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(step_at_once)
for _ in range(2):
    train()
print(tencache.stats()["steps"])
"""


def test_an_optimizer_within_the_backward_pass_ends_no_step(run_python: Callable[..., Any]) -> None:
    """Each parameter has an optimizer, so between two of these lies a piece of the iteration."""
    done = run_python(STEPS, env={"TENCACHE": "1"})
    assert done.stdout == "12\n12\n", done.stderr
