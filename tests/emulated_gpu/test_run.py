# SPDX-License-Identifier: Apache-2.0
"""tests/emulated_gpu/run: what the command sees, how it ends, and what the emulation refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from requirement import needs_emulated_gpu

RUN = Path(__file__).with_name("run")

pytestmark = needs_emulated_gpu


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs tests/emulated_gpu/run as from a shell without an emulated GPU."""
    ours = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("EMULATED_GPU_")
    }
    return subprocess.run(
        [str(RUN), "--torch", ".".join(torch.__version__.split(".")[:2]), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def python(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return run(*options, "--", sys.executable, "-c", program)


def test_the_command_sees_the_gpus_that_were_asked_for() -> None:
    program = """
import torch
print(torch.cuda.device_count(), torch.cuda.get_device_properties(1).total_memory)
"""
    done = python(program, "--gpus", "2", "--memory", "96MiB")
    assert done.stdout.split() == ["2", str(96 << 20)], done.stdout + done.stderr


def test_its_exit_status_is_the_commands() -> None:
    assert run("--", "sh", "-c", "exit 7").returncode == 7


def test_it_ends_by_the_signal_that_ends_the_command() -> None:
    assert run("sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


def test_a_command_that_is_not_there_is_named() -> None:
    done = run("--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr


def test_without_a_command_it_says_so() -> None:
    done = run("--gpus", "1")
    assert done.returncode == 2
    assert "no command was given" in done.stderr


def test_a_kernel_without_a_stand_in_fails_with_its_name() -> None:
    program = """
import torch
scale = torch.cuda._compile_kernel(
    'extern "C" __global__ void scale(float* data) { data[0] *= 2; }', "scale"
)
scale((1, 1, 1), (1, 1, 1), (torch.ones(1, device="cuda"),))
"""
    done = python(program)
    assert done.returncode != 0, done.stdout
    assert "Error" in done.stderr, done.stderr


def test_a_kernel_that_touches_unmapped_memory_is_found_out() -> None:
    """Addresses beyond a tensor's memory are not mapped."""
    program = """
import torch
held = torch.zeros(4 << 20, device="cuda")
torch.cuda.synchronize()
import ctypes, os
library = ctypes.CDLL(os.environ["EMULATED_GPU_OPERATORS"])
library.emulated_gpu_unannounced_scale.argtypes = [
    ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float
]
library.emulated_gpu_unannounced_scale(held.data_ptr(), 1 << 32, 2.0)
torch.cuda.synchronize()
"""
    done = python(program)
    assert done.returncode != 0, done.stdout
    assert "ILLEGAL ADDRESS" in done.stderr, done.stderr
    assert "emulated_gpu_unannounced_scale" in done.stderr, done.stderr
