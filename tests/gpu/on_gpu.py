# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs on a GPU share: the harness, settings, the checks of each run.

A test module takes the fixture over: `harness = on_gpu.harness`. On an emulated GPU
(tests/emulated_gpu) the programs are smaller; see tests/gpu/test_programs.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from conftest import output_of, run_command
from differential import (
    PROGRAMS,
    Harness,
    Outcome,
    assert_budget_kept,
    assert_same_bits,
    program_names,
)

__all__ = [
    "GPU",
    "IS_EMULATED",
    "SWITCH",
    "Harness",
    "Outcome",
    "assert_right_beyond_memory",
    "assert_same_bits",
    "budget_of",
    "missing",
    "output_of",
    "program_names",
    "run_command",
]

IS_EMULATED = "EMULATED_GPU_OPERATORS" in os.environ
GPU = {
    "PROGRAM_DEVICE": "cuda",
    "PROGRAM_EMULATED": "1" if IS_EMULATED else "0",
    # This makes the workspaces of matrix products deterministic, and small: they are no tensors and
    # never leave.
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    # The server that forks the programs must not start CUDA, whoever asks whether there is a GPU.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Scripts in other folders find exact.py here, to write their results.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(PROGRAMS), os.environ.get("PYTHONPATH")])),
}
SWITCH = {"TENCACHE": "1", "TENCACHE_BACKEND": "cuda"}


def missing() -> str:
    """Why the tests cannot run here; empty if they can."""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    # This asks NVIDIA's management library: CUDA itself must not start before the programs are
    # forked.
    if torch.cuda.device_count() == 0:
        return "this machine has no GPU that CUDA can use"
    return ""


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = Harness(tmp_path_factory.mktemp("gpu"), GPU)
    yield harness
    harness.close()


def budget_of(harness: Harness, program: str, share: int) -> dict[str, str]:
    """The variable for a budget of `share` percent of the program's peak."""
    return {"TENCACHE_DEVICE_MEMORY": str(harness.peak_bytes(program) * share // 100)}


def assert_right_beyond_memory(stock: Mapping[str, object], outcome: Outcome) -> None:
    """Asserts the bits of the stock run, within the budget, and that tensors did leave."""
    stats = outcome.stats
    assert stats is not None
    assert_same_bits(stock, outcome)
    assert_budget_kept(stats)
    assert stats["backend"] == "cuda", stats
    assert stats["bytes"]["evicted"] > 0, f"nothing was evicted\n{stats}\n{outcome.output}"
