# SPDX-License-Identifier: Apache-2.0
"""The guard that `tencache run` preloads where GPUs are used.

The tests show which programs are started with it, that they do the same as without it, and that
CUDA's libraries ask it for the driver's functions. What it does with these is tested in C++:
tests/guard, tests/allocator/cuda/launch_gate_test.cpp.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tencache import _library, _preload

GUARD = _library.guard_path()
has_cuda_torch = pytest.mark.skipif(
    torch.version.cuda is None, reason="this torch is built without CUDA"
)
CUDA = {"TENCACHE_BACKEND": "cuda"}
PATH = Path("/opt/tencache/libtencache_guard.so")


@pytest.fixture
def preloaded(monkeypatch):
    def preload(environment, guard=PATH):
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        _library.core().read_environment()
        environment = dict(environment)
        _preload.add_guard(environment, _library.core(), guard)
        return environment.get("LD_PRELOAD")

    return preload


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"TENCACHE_BACKEND": "cpu"}, None),
        (CUDA, str(PATH)),
        ({**CUDA, "TENCACHE_LAUNCH_GUARD": "1"}, str(PATH)),
        ({**CUDA, "TENCACHE_LAUNCH_GUARD": "off"}, None),
        # The guard goes first, unless it is there already.
        ({**CUDA, "LD_PRELOAD": "/lib/libjemalloc.so"}, f"{PATH}:/lib/libjemalloc.so"),
        ({**CUDA, "LD_PRELOAD": f"/lib/a.so {PATH}"}, f"/lib/a.so {PATH}"),
    ],
)
def test_programs_on_gpus_are_started_with_the_guard(preloaded, environment, expected):
    assert preloaded(environment) == expected


def test_without_a_guard_nothing_is_preloaded(preloaded):
    assert preloaded(CUDA, guard=None) is None


@pytest.mark.parametrize("folder", ["/opt/my tencache", "/opt/ten:cache"])
def test_a_path_that_cannot_be_preloaded_is_told(preloaded, folder, capsys):
    assert preloaded(CUDA, Path(folder) / PATH.name) is None
    error = capsys.readouterr().err
    assert folder in error
    assert "--no-launch-guard" in error


TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item().hex())
"""


def run_preloaded(code, **variables):
    environment = {**os.environ, "LD_PRELOAD": str(GUARD), **variables}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


def test_a_program_does_with_it_what_it_does_without():
    stock = subprocess.run(
        [sys.executable, "-c", TRAIN], capture_output=True, text=True, timeout=300, check=True
    )
    done = run_preloaded(TRAIN)
    assert done.stdout == stock.stdout
    assert done.stderr == stock.stderr


@has_cuda_torch
def test_the_libraries_of_cuda_find_the_guard_first(tmp_path):
    """The linker's own record of which `dlsym` each library calls."""
    log = tmp_path / "bindings"
    code = "import torch; torch.cuda.is_available()"
    run_preloaded(code, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(log))
    (written,) = tmp_path.iterdir()
    binding = re.compile(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: normal symbol `dlsym'")
    asked = {
        Path(match[1]).name.split(".so")[0]: match[2]
        for match in map(binding.search, written.read_text(errors="replace").splitlines())
        if match
    }
    for library in ("libcudart", "libcublasLt", "libcublas", "libcudnn"):
        assert asked.get(library) == str(GUARD), asked
