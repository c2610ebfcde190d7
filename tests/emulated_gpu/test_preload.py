# SPDX-License-Identifier: Apache-2.0
"""Programs in Python and C++ that are started with `LD_PRELOAD=$(tencache preload)` on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from conftest import output_of
from requirement import needs_emulated_gpu

from environment import MAIN, cpp_example_folder
from tencache import _library

pytestmark = needs_emulated_gpu

# Parameters, gradients and Adam's state exceed this budget: they take 192 MiB in the program below,
# and 128 MiB in the program in C++ (examples/cpp).
BUDGET_BYTES = 80 << 20
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


# This gives a C++ program the emulated operators, as if they were part of its libtorch.
LOAD_OPERATORS = """
#include <dlfcn.h>
#include <stdlib.h>
__attribute__((constructor)) static void load() {
  if (!dlopen(getenv("EMULATED_GPU_OPERATORS"), RTLD_NOW)) abort();
}
"""


def assert_bits_are_kept(folder: Path, *command: str, preloaded: str) -> None:
    """Compares the command with its run under the preload library."""
    preload = output_of([sys.executable, "-m", "tencache", "preload"]).strip()
    assert preload == f"{_library.guard_path()}:{_library.preload_path()}"
    stock = output_of(command, env={"LD_PRELOAD": preloaded})
    trained = output_of(
        command,
        env={
            "LD_PRELOAD": f"{preload}:{preloaded}",
            "TENCACHE_DEVICE_MEMORY": str(BUDGET_BYTES),
            "TENCACHE_STATS": str(folder / "stats.json"),
        },
    )
    assert trained == stock
    told = json.loads((folder / "stats.json").read_text())
    assert told["backend"] == "cuda"
    assert told["launches"]["seen"]
    assert told["bytes"]["fetched"] > 0
    assert told["over_budget"]["events"] == 0


def test_a_python_program_trains_beyond_the_memory_of_its_gpu(tmp_path: Path) -> None:
    assert_bits_are_kept(tmp_path, sys.executable, "-c", TRAIN, preloaded=os.environ["LD_PRELOAD"])


@pytest.mark.skipif(
    not torch.__version__.startswith(MAIN.torch.removeprefix("torch-")),
    reason="the example is built for another torch",
)
def test_a_cpp_program_trains_beyond_the_memory_of_its_gpu(tmp_path: Path) -> None:
    program = cpp_example_folder(MAIN) / "plain"
    assert program.exists(), f"{program} is not built; run `make test-gpu`, which builds it"
    source, library = tmp_path / "operators.cpp", tmp_path / "operators.so"
    source.write_text(LOAD_OPERATORS, encoding="utf-8")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    preloaded = f"{os.environ['LD_PRELOAD']}:{library}"
    assert_bits_are_kept(tmp_path, str(program), preloaded=preloaded)
