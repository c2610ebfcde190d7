# SPDX-License-Identifier: Apache-2.0
"""Failures below a program on the cuda backend.

The driver refuses a call, others take the GPU's memory or its link, the disk below host memory is
full or fails. Each program fits neither on the GPU nor, in part, in host memory, so its tensors are
on all three tiers. It must find the right bits or get a Python error that names the cause, and must
end. emulated_gpu_fail_call makes the driver fail, a filter of system calls the disk; the program
itself, bypassing tencache, is the other user of the GPU. Several faults share a process, since most
of the time goes into the start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from requirement import needs_emulated_gpu

pytestmark = needs_emulated_gpu

TIMEOUT_S = 240
# docs/troubleshooting.md has this text.
NOTHING_GOES_TO_DISK = "cold tensors cannot go from host memory to disk: …"

# 12 tensors of 8 MiB: 40 MiB on the GPU, 24 MiB in host memory at most, the others on disk.
PRELUDE = """
    import ctypes, errno, struct, sys, tencache, torch
    driver = ctypes.CDLL("libcuda.so.1")

    def fail_call(name, nth, result):
        driver.emulated_gpu_fail_call(name.encode(), ctypes.c_uint64(nth), ctypes.c_int(result))

    def full(value):
        return torch.full((2 << 20,), float(value), device="cuda")

    tensors = [full(index) for index in range(12)]
    rounds = 0

    def go_round():
        global rounds
        for tensor in tensors:
            tensor.add_(1)
        rounds += 1

    def check():
        for index, tensor in enumerate(tensors):
            assert bool((tensor == index + rounds).all()), f"wrong bits: tensor {index}"

    go_round()
    check()
"""


def run(
    program: str, tmp_path: Path, *options: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(program))
    budgets = ("--device-memory", "40MiB", "--host-memory", "24MiB", "--spill-dir", str(tmp_path))
    command = [sys.executable, "-m", "tencache", "run", "--quiet", "--backend", "cuda", *budgets]
    return subprocess.run(
        [*command, *options, "--", sys.executable, str(file)],
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def assert_passed(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def test_calls_that_are_refused_once_cost_no_bit(tmp_path: Path) -> None:
    """Refuses calls that tencache makes by itself: it calls again, or leaves the tensor there."""
    program = """
        for function in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemMap", "cuMemCreate",
                         "cuMemSetAccess", "cuMemHostRegister"):
            for nth in (1, 3):
                fail_call(function, nth, 2)
                go_round()
        check()
        stats = tencache.stats()
        assert stats["bytes"]["evicted"] > 0 and stats["peak"]["disk"] > 0, stats
    """
    assert_passed(run(program, tmp_path))


# All functions that are called after the start. The others report facts of the machine, or end the
# process.
CALLS_THAT_MAY_FAIL = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuMemGetInfo",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer",
    "cuLaunchKernel",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamWaitValue64",
    "cuStreamWriteValue64",
    "cuLaunchHostFunc",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync",
    "cuMemsetD8Async",
    "cuThreadExchangeStreamCaptureMode",
)


@pytest.mark.parametrize("nth", [1, 2, 5, 17])
def test_any_call_may_fail_once(tmp_path: Path, nth: int) -> None:
    """A program finds right bits, or gets an error of PyTorch's and goes on with right bits.

    PyTorch may report the error of a call after it has queued the op's kernel. So an op that raised
    has changed its tensor as a whole or not at all.
    """
    program = f"""
        UNKNOWN = 999
        added = [rounds] * len(tensors)

        def is_refused(act):
            try:
                act()
            except RuntimeError as error:
                assert "CUDA" in str(error) or "out of memory" in str(error), error
                return True
            return False

        def check(index):
            value = tensors[index][0].item() - index
            assert value in (added[index], added[index] + refused[index]), (index, value)
            assert bool((tensors[index] == index + value).all()), index
            added[index], refused[index] = int(value), 0

        for function in {CALLS_THAT_MAY_FAIL}:
            fail_call(function, {nth}, UNKNOWN)
            refused = [0] * len(tensors)
            for index, tensor in enumerate(tensors):
                refused[index] = int(is_refused(lambda: tensor.add_(1)))
                added[index] += 1 - refused[index]
            for index in range(len(tensors)):
                while is_refused(lambda: check(index)):
                    pass
        stats = tencache.stats()
        assert stats["gpus"][0]["failure"] is None, stats
        assert stats["bytes"]["evicted"] > 0 and min(added) > rounds, (added, stats)
    """
    assert_passed(run(program, tmp_path))


def test_others_take_memory_of_the_gpu_for_a_while(tmp_path: Path) -> None:
    """Leaves the GPU less than the budget: tensors leave earlier, and nothing is lost."""
    program = """
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int),
                        ("location", ctypes.c_int * 2), ("data", ctypes.c_void_p),
                        ("flags", ctypes.c_uint8 * 8)]

        device = Properties(type=1, location=(1, 0))
        taken = []
        free, _ = torch.cuda.mem_get_info()
        step = 2 << 20
        while free > 16 << 20:
            handle = ctypes.c_uint64()
            result = driver.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(step),
                                        ctypes.byref(device), ctypes.c_uint64(0))
            if result != 0:
                break
            taken.append(handle)
            free -= step
        torch.cuda.empty_cache()
        go_round()
        check()
        for handle in taken:
            assert driver.cuMemRelease(handle) == 0
        go_round()
        check()
        assert len(taken) > 100, len(taken)
    """
    assert_passed(run(program, tmp_path))


DENY = """
    def deny(number, error_number):
        # prctl(NO_NEW_PRIVS) lets seccomp(SET_MODE_FILTER, TSYNC) set this filter for all threads.
        code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error_number),
                (0x06, 0, 0, 0x7FFF0000)]
        text = b"".join(struct.pack("HBBI", *line) for line in code)
        lines = ctypes.create_string_buffer(text, len(text))
        program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(lines))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.syscall(317, 1, 1, program) == 0, ctypes.get_errno()
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls by their numbers")
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_takes_no_more_loses_nothing(tmp_path: Path, error: str) -> None:
    """Bytes that cannot be written stay where they are; more than fits is an error."""
    program = f"""
        deny(18, errno.{error})  # pwrite64
        more = []
        try:
            for index in range(40):
                more.append(full(-index))
                more[-1].add_(0)
        except torch.OutOfMemoryError as failure:
            print(failure)
        else:
            raise AssertionError("it should have run out of memory")
        del more
        check()
    """
    options = ("--io-uring", "off", "--disk-wait", "2s")
    done = run(textwrap.dedent(DENY) + textwrap.dedent(program), tmp_path, *options)
    assert_passed(done)
    assert "out of memory" in done.stdout, done.stdout
    assert NOTHING_GOES_TO_DISK.rstrip("…") in done.stderr, done.stderr


def test_a_link_that_is_ten_times_slower_for_a_while(tmp_path: Path) -> None:
    """Nine other streams copy as much over the same engine."""
    program = """
        source = torch.full((2 << 20,), 5.0).pin_memory()
        target = torch.empty(2 << 20, device="cuda")
        torch.cuda.synchronize()
        for _ in range(9):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(6):
                    target.copy_(source, non_blocking=True)
        go_round()
        torch.cuda.synchronize()
        go_round()
        check()
        assert bool((target == 5).all())
    """
    link = {"EMULATED_GPU_LINK": str(10**9), "EMULATED_GPU_KERNEL_BYTES_PER_S": str(10**9)}
    assert_passed(run(program, tmp_path, "--host-memory", "32MiB", variables=link))


def test_a_disk_that_cannot_be_used_is_named_before_anything_runs(tmp_path: Path) -> None:
    done = run("", tmp_path, "--spill-dir", "/dev/shm")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Cannot spill to /dev/shm: it is in memory" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
