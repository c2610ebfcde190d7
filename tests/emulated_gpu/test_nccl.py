# SPDX-License-Identifier: Apache-2.0
"""NCCL's stand-in, and tencache under programs of two ranks (nccl_ranks.py).

Each rank is a process with an emulated GPU of its own. tencache, where it runs, is enabled by the
environment and not by the launcher, so only the ops tell it what NCCL's streams use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from differential import assert_budget_kept
from ranks import run_processes
from requirement import needs_emulated_gpu

RANKS = Path(__file__).with_name("nccl_ranks.py")
TIMEOUT_S = 600

pytestmark = needs_emulated_gpu

Finished = tuple[list[int], list[str]]


def with_tencache(budget: str, **more: str) -> dict[str, str]:
    return {
        "TENCACHE": "1",
        "TENCACHE_BACKEND": "cuda",
        "TENCACHE_DEVICE_MEMORY": budget,
        "TENCACHE_QUIET": "1",
        **more,
    }


def run_ranks(part: str, folder: Path, variables: Mapping[str, str]) -> Finished:
    """Runs both ranks to their end; returns their exit statuses and outputs."""
    folder.mkdir()
    return run_processes(
        [[RANKS, part, str(rank), folder / "store", folder / f"{rank}.json"] for rank in range(2)],
        cwd=folder,
        environment={**os.environ, "EMULATED_GPU_COUNT": "2", **variables},
        timeout_s=TIMEOUT_S,
    )


def reports(part: str, folder: Path, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    statuses, outputs = run_ranks(part, folder, variables)
    assert statuses == [0, 0], "\n".join(outputs)
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def test_collectives_give_what_the_cpu_gives(tmp_path: Path) -> None:
    """Tencache runs in chaos mode: the bits must be right however tensors move meanwhile."""
    chaos = {"TENCACHE_CHAOS": "1", "TENCACHE_EXTENT_MIN": "64KiB", "TENCACHE_ARM_AT": "0.0001"}
    for report in reports("collectives", tmp_path / "ranks", with_tencache("64MiB", **chaos)):
        assert report["stats"]["bytes"]["fetched"] > 0


def test_a_rank_that_dies_is_an_error_for_the_other(tmp_path: Path) -> None:
    statuses, outputs = run_ranks("killed", tmp_path / "ranks", {})
    assert statuses[0] != 0
    assert "rank 0 waits for ncclAllReduce, but rank 1" in outputs[0]
    assert "CUDA error" in outputs[0]


def test_a_tensor_stays_while_nccl_uses_it_though_nobody_keeps_the_work(tmp_path: Path) -> None:
    first, second = reports("dropped", tmp_path / "ranks", with_tencache("32MiB"))
    assert first["digests"][0] == second["digests"][0]
    assert first["stats"]["bytes"]["evicted"] > 0


def test_the_tensors_of_a_group_stay_until_its_work_is_complete(tmp_path: Path) -> None:
    first, second = reports("grouped", tmp_path / "ranks", with_tencache("32MiB"))
    assert first["digests"] == second["digests"]
    assert first["stats"]["bytes"]["evicted"] > 0


def test_a_work_that_cannot_be_asked_ends_no_program(tmp_path: Path) -> None:
    # PyTorch's own watchdog would end the rank.
    quiet = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"}
    statuses, outputs = run_ranks("broken", tmp_path / "ranks", with_tencache("64MiB", **quiet))
    assert statuses[0] == 0, outputs[0]
    assert "the step was made" in outputs[0]


@pytest.mark.parametrize(("part", "budget_mib"), [("ddp", 45), ("fsdp2", 20)])
def test_training_at_half_the_memory_has_the_native_allocators_bits(
    tmp_path: Path, part: str, budget_mib: int
) -> None:
    native = reports(part, tmp_path / "native", {})
    ours = reports(part, tmp_path / "ours", with_tencache(f"{budget_mib}MiB"))
    for one, other in zip(native, ours, strict=True):
        assert one["digests"] == other["digests"]
        assert other["stats"]["bytes"]["fetched"] > 0
        assert_budget_kept(other["stats"])
        assert 0.9 < other["allocated"] / one["allocated"] < 1.2
        # Small tensors stay, whatever the budget, but they lie in few segments.
        assert other["reserved"] < 0.75 * one["reserved"]
