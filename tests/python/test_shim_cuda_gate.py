# SPDX-License-Identifier: Apache-2.0
"""The suite of the gate for CUDA tensors: C++ over a simulated driver (tests/shim).

`scripts/dev.py` builds it beside the package (`make test-python`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import run_command

ROOT = Path(__file__).resolve().parents[2]
MINOR = ".".join(torch.__version__.split(".")[:2])
SUITE = ROOT / "build" / f"torch-{MINOR}" / "tests" / "shim" / "shim_cuda_gate_test"


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")
def test_the_suite_passes(tmp_path: Path) -> None:
    assert SUITE.exists(), f"{SUITE} is not built; run `make test-python`, which builds it"
    done = run_command([str(SUITE)], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
