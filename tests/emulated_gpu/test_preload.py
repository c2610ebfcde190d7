# SPDX-License-Identifier: Apache-2.0
"""A Python program that is started with `LD_PRELOAD=$(tencache preload)` on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tencache import _library

pytestmark = pytest.mark.skipif(
    "EMULATED_GPU_OPERATORS" not in os.environ, reason="make test-gpu runs it on an emulated GPU"
)

BUDGET_BYTES = 96 << 20
# Parameters, gradients and Adam's state take 192 MiB.
TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12))).cuda()
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(4):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


def run(*command: str, **variables: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_preloaded_program_trains_beyond_the_memory_of_its_gpu(tmp_path: Path) -> None:
    preload = run(sys.executable, "-m", "tencache", "preload").strip()
    assert preload == f"{_library.guard_path()}:{_library.preload_path()}"
    stock = run(sys.executable, "-c", TRAIN)
    stats = tmp_path / "stats.json"
    trained = run(
        *(sys.executable, "-c", TRAIN),
        LD_PRELOAD=f"{preload}:{os.environ['LD_PRELOAD']}",
        TENCACHE_DEVICE_MEMORY=str(BUDGET_BYTES),
        TENCACHE_STATS=str(stats),
    )
    assert trained == stock
    told = json.loads(stats.read_text())
    assert told["backend"] == "cuda"
    assert told["launches"]["seen"]
    assert told["bytes"]["fetched"] > 0
    assert told["over_budget"]["events"] == 0
