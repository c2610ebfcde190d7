# SPDX-License-Identifier: Apache-2.0
"""Messages of docs/troubleshooting.md that need a GPU: programs on an emulated one say them.

test_faults.py has the one about the disk. All that need no GPU are in
tests/python/test_troubleshooting.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from requirement import needs_emulated_gpu
from test_faults import NOTHING_GOES_TO_DISK
from troubleshooting import has, messages

pytestmark = needs_emulated_gpu

TIMEOUT_S = 240
WITHOUT_THE_LAUNCHER = (
    "this process was not started by … so two things are not seen in it.",
    "tencache ignores these settings of PyTorch's CUDA allocator: …",
    "first spill: use of GPU … came near its budget; …",
    "tencache does not support …: …",
    "CUDA out of memory. Tried to allocate ….",
)
BY_AN_EXTENSION = (
    "… used tensors that no op had announced, and passed the gate as ops of their own …",
    "GPU … has failed: …",
)


def test_the_page_has_these_messages_and_no_others() -> None:
    here = (*WITHOUT_THE_LAUNCHER, *BY_AN_EXTENSION, NOTHING_GOES_TO_DISK)
    assert sorted(here) == sorted(messages(with_gpus=True))


def output_of(
    program: str, *command: str, variables: Mapping[str, str] | None = None
) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *command, "-c", textwrap.dedent(program)],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def assert_said(output: str, said: Sequence[str]) -> None:
    for message in said:
        assert has(output, message), f"{message}\n{output}"


def test_program_that_the_launcher_has_not_started() -> None:
    program = """
        import torch
        from torch.cuda.green_contexts import GreenContext
        tensors = [torch.full((2 << 20,), float(index), device="cuda") for index in range(12)]
        for tensor in tensors:
            tensor.add_(1)
        for refused, arguments in (
            (torch._C._cuda_cudaCachingAllocator_enable, (False,)),
            (GreenContext.create, (1,)),
            (torch.empty, (1 << 45,)),
        ):
            try:
                refused(*arguments, **({"device": "cuda"} if refused is torch.empty else {}))
            except RuntimeError as error:
                print(error)
            else:
                raise AssertionError(refused)
    """
    variables = {
        "TENCACHE": "1",
        "TENCACHE_BACKEND": "cuda",
        "TENCACHE_DEVICE_MEMORY": "40MiB",
        "PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8",
    }
    status, output = output_of(program, variables=variables)
    assert status == 0, output
    assert_said(output, WITHOUT_THE_LAUNCHER)
    assert "tencache does not support green contexts" in output, output


def test_kernel_of_an_extension() -> None:
    """The kernel uses a cold tensor, which the guard brings back; then far too many bytes."""
    program = """
        import ctypes, os, torch
        library = ctypes.CDLL(os.environ["EMULATED_GPU_OPERATORS"])
        scale = library.emulated_gpu_unannounced_scale
        scale.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float]
        tensors = [torch.full((2 << 20,), float(index), device="cuda") for index in range(12)]
        for tensor in tensors:
            tensor.add_(1)
        scale(tensors[0].data_ptr(), 2 << 20, 2.0)
        assert bool((tensors[0] == 2).all())
        scale(tensors[0].data_ptr(), 1 << 32, 2.0)
        torch.cuda.synchronize()
    """
    command = ("-m", "tencache", "run", "--backend=cuda", "--device-memory=40MiB", "--")
    status, output = output_of(program, *command, sys.executable)
    assert status == 1, output
    assert_said(output, BY_AN_EXTENSION)
