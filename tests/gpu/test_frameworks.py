# SPDX-License-Identifier: Apache-2.0
"""Programs that do more on GPUs than train, and every door by which tencache comes into a program.

The programs use the Hugging Face Trainer with checkpoints, accelerate and peft, several streams,
pinned batches, other processes, and two GPUs. Each runs at half of the memory that PyTorch's own
allocator takes, with the same bits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import on_gpu
import pytest
import torch
from on_gpu import (
    GPU,
    IS_EMULATED,
    SWITCH,
    Harness,
    Outcome,
    assert_right_beyond_memory,
    budget_of,
    missing,
    run_command,
)

harness = on_gpu.harness
pytestmark = pytest.mark.skipif(missing() != "", reason=missing())

SCRIPTS = Path(__file__).resolve().parent / "scripts"


def script(name: str) -> str:
    """The harness's name for the script."""
    return str(SCRIPTS / name)


def assert_same_at_half(harness: Harness, program: str, fresh: bool = False) -> Outcome:
    outcome = harness.run(program, {**SWITCH, **budget_of(harness, program, 50)}, fresh)
    assert_right_beyond_memory(harness.stock(program), outcome)
    return outcome


def test_trainer_with_checkpoints(harness: Harness) -> None:
    assert_same_at_half(harness, script("trainer_resume"))


def test_accelerate_and_peft(harness: Harness) -> None:
    assert_same_at_half(harness, script("accelerate_lora"))


def test_streams_pinned_batches_dlpack_and_pools(harness: Harness) -> None:
    assert_same_at_half(harness, script("streams"))


def test_forked_and_spawned_processes(harness: Harness) -> None:
    # A program that spawns must be started from the command line.
    assert_same_at_half(harness, script("processes"), fresh=True)


@pytest.mark.parametrize(("program", "has_peers"), [("two_gpus", True), ("data_parallel", False)])
def test_two_gpus_in_one_process(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    has_peers: bool,
) -> None:
    """With peers, PyTorch asks for access before the first copy."""
    if IS_EMULATED:
        monkeypatch.setenv("EMULATED_GPU_COUNT", "2")
        monkeypatch.setenv("EMULATED_GPU_PEERS", "1" if has_peers else "0")
    elif torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    harness = Harness(tmp_path_factory.mktemp(program), GPU)
    try:
        outcome = assert_same_at_half(harness, script(program))
    finally:
        harness.close()
    assert outcome.stats is not None
    for gpu in outcome.stats["gpus"]:
        assert gpu["bytes"]["evicted"] > 0, outcome.stats
    assert len(outcome.stats["gpus"]) == 2, outcome.stats


@pytest.mark.xdist_group("doors")
@pytest.mark.parametrize("door", ["environment", "change", "pluggable"])
def test_doors(harness: Harness, door: str) -> None:
    program = script("doors")
    switch = SWITCH if door == "environment" else {"TENCACHE_BACKEND": "cuda", "DOOR": door}
    outcome = harness.run(program, {**switch, **budget_of(harness, program, 50)})
    assert_right_beyond_memory(harness.stock(program), outcome)


def assert_same_under_the_launcher(
    harness: Harness, program: str, folder: Path, variables: Mapping[str, str] | None = None
) -> None:
    results, stats = folder / "results.json", folder / "stats.json"
    budget = budget_of(harness, program, 50)["TENCACHE_DEVICE_MEMORY"]
    # There is no --backend: the launcher and the program find the GPU themselves.
    launcher = [sys.executable, "-m", "tencache", "run"]
    launcher += ["--device-memory", budget, "--stats", str(stats)]
    done = run_command(
        [*launcher, "--", sys.executable, f"{program}.py", str(results)],
        cwd=folder,
        env={**GPU, **(variables or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = Outcome(
        json.loads(results.read_text()), json.loads(stats.read_text()), done.stdout + done.stderr
    )
    assert_right_beyond_memory(harness.stock(program), outcome)
    assert outcome.stats is not None
    assert outcome.stats["backend"] == "cuda"
    assert outcome.stats["launches"]["seen"], outcome.stats


@pytest.mark.xdist_group("doors")
def test_the_launcher(harness: Harness, tmp_path: Path) -> None:
    assert_same_under_the_launcher(harness, script("doors"), tmp_path)


@pytest.mark.parametrize("reuses", ["0", "1"] if IS_EMULATED else ["as the driver does"])
def test_streams_that_the_program_destroys(harness: Harness, tmp_path: Path, reuses: str) -> None:
    """A driver ends the process when it is asked about a destroyed stream."""
    variables = {"EMULATED_GPU_REUSE_STREAMS": reuses} if IS_EMULATED else {}
    assert_same_under_the_launcher(harness, script("destroyed_streams"), tmp_path, variables)
