# SPDX-License-Identifier: Apache-2.0
"""Programs that use the emulated GPU's CUDA runtime by ctypes, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

PREAMBLE = """
import ctypes, resource
from ctypes import byref, c_int, c_size_t, c_void_p
runtime = ctypes.CDLL("libcudart.so.13")
def call(name, *arguments):
    error = getattr(runtime, name)(*arguments)
    assert error == 0, (name, error)
def allocate(size):
    made = c_void_p()
    call("cudaMalloc", byref(made), c_size_t(size))
    return made
def free_bytes():
    free, total = c_size_t(), c_size_t()
    call("cudaMemGetInfo", byref(free), byref(total))
    return free.value
"""


def run_alone(program: str, gpus: int) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PREAMBLE + program],
        env={**os.environ, "EMULATED_GPU_COUNT": str(gpus)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
