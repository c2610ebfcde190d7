# SPDX-License-Identifier: Apache-2.0
"""The emulated GPU's CUDA runtime, by ctypes: errors and memory.

The expected answers are those that CUDA documents: the numbers of errors, and whose last error it
is. Nothing here needs torch; test_captures.py has the graphs.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_float, c_int, c_size_t, c_void_p

import pytest
from requirement import needs_emulated_gpu
from runtime_calls import (
    BY_ADDRESS,
    BYTES,
    INVALID_DEVICE,
    INVALID_DIRECTION,
    INVALID_HANDLE,
    INVALID_PITCH,
    INVALID_VALUE,
    NOT_READY,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    UNJOINED,
    UNSUPPORTED,
    HostFunction,
    cuda,
    device_memory,
    done,
    event,
    in_other_thread,
    pinned,
    stream,
)
from runtime_programs import run_alone

pytestmark = needs_emulated_gpu


def test_the_last_error_is_the_threads_until_it_is_taken() -> None:
    assert cuda("cudaSetDevice", 99) == INVALID_DEVICE
    assert cuda("cudaPeekAtLastError") == INVALID_DEVICE
    assert in_other_thread(lambda: cuda("cudaPeekAtLastError")) == 0
    done("cudaStreamSynchronize", None)  # a success changes nothing
    assert cuda("cudaGetLastError") == INVALID_DEVICE
    assert cuda("cudaGetLastError") == 0


def test_work_that_is_not_done_is_no_last_error() -> None:
    gate = threading.Event()
    wait = HostFunction(lambda _: (gate.wait(60), None)[1])
    within = stream()
    done("cudaLaunchHostFunc", within, wait, None)
    assert cuda("cudaStreamQuery", within) == NOT_READY
    assert cuda("cudaGetLastError") == 0
    gate.set()
    done("cudaStreamSynchronize", within)
    done("cudaStreamQuery", within)


def test_errors_have_the_names_of_the_run_time() -> None:
    library = ctypes.CDLL("libcudart.so.13")
    for name in ("cudaGetErrorName", "cudaGetErrorString"):
        getattr(library, name).restype = ctypes.c_char_p
    assert library.cudaGetErrorName(OUT_OF_MEMORY) == b"cudaErrorMemoryAllocation"
    assert library.cudaGetErrorString(UNSUPPORTED) == (
        b"operation not permitted when stream is capturing"
    )
    assert library.cudaGetErrorName(UNJOINED) == b"cudaErrorStreamCaptureUnjoined"
    assert library.cudaGetErrorName(12345) == b"unrecognized error code"


def test_wrong_arguments_are_errors() -> None:
    size = c_size_t(1)
    assert cuda("cudaMalloc", None, size) == INVALID_VALUE
    assert cuda("cudaFree", c_void_p(4096)) == INVALID_VALUE
    assert cuda("cudaFreeHost", c_void_p(4096)) == INVALID_VALUE
    assert cuda("cudaMemcpyAsync", None, None, size, 9, None) == INVALID_DIRECTION
    wide = (None, size, None, size, c_size_t(2), size, BY_ADDRESS, None)
    assert cuda("cudaMemcpy2DAsync", *wide) == INVALID_PITCH
    assert cuda("cudaStreamDestroy", None) == INVALID_HANDLE
    assert cuda("cudaEventElapsedTime", byref(c_float()), event(), event()) == INVALID_HANDLE
    assert cuda("cudaGraphLaunch", None, None) == INVALID_VALUE
    assert cuda("cudaGetLastError") == INVALID_VALUE


def test_what_has_no_stand_in_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert cuda("cudaMallocManaged", byref(c_void_p()), c_size_t(1), 1) == NOT_SUPPORTED
    assert cuda("cudaFuncGetAttributes", None, None) == NOT_SUPPORTED
    assert cuda("cudaGetLastError") == NOT_SUPPORTED
    said = capfd.readouterr().err
    assert "cudaMallocManaged is not emulated" in said
    assert "cudaFuncGetAttributes of the kernel of unknown name is not emulated" in said


def test_an_entry_point_that_is_missing_is_an_answer() -> None:
    found, status = c_void_p(), c_int(-1)
    flags = ctypes.c_ulonglong(0)
    get = "cudaGetDriverEntryPointByVersion"
    done(get, b"cuMemCreate", byref(found), 13000, flags, byref(status))
    assert found.value is not None
    assert status.value == 0
    done(get, b"cuNoSuchFunction", byref(found), 13000, flags, byref(status))
    assert found.value is None
    assert status.value == 1


class PointerAttributes(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("device", c_int),
        ("device_pointer", c_void_p),
        ("host_pointer", c_void_p),
        ("reserved", ctypes.c_long * 8),
    ]


def test_a_pointer_tells_what_it_points_to() -> None:
    on_device, on_host, plain = device_memory(), pinned(), ctypes.create_string_buffer(BYTES)
    found = PointerAttributes()
    within = c_void_p((on_device.value or 0) + 100)
    done("cudaPointerGetAttributes", byref(found), within)
    assert (found.type, found.device, found.device_pointer) == (2, 0, within.value)
    done("cudaPointerGetAttributes", byref(found), on_host)
    assert (found.type, found.host_pointer) == (1, on_host.value)
    done("cudaPointerGetAttributes", byref(found), plain)
    assert (found.type, found.device, found.device_pointer) == (0, -2, None)
    reserved, none, size = c_size_t(), c_size_t(0), c_size_t(2 << 20)
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuMemAddressReserve(byref(reserved), size, none, none, none) == 0
    done("cudaPointerGetAttributes", byref(found), c_void_p(reserved.value))
    assert (found.type, found.device, found.device_pointer) == (0, -2, None)  # nothing is mapped
    assert driver.cuMemAddressFree(reserved, size) == 0
    done("cudaFree", on_device)
    done("cudaFreeHost", on_host)


def test_an_allocation_that_fails_half_way_leaves_nothing() -> None:
    """There is device memory, but the process may get no more addresses."""
    run_alone(
        """
before = free_bytes()
used = int(open("/proc/self/statm").read().split()[0]) * 4096
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), limits[1]))
failed = c_void_p()
assert runtime.cudaMalloc(byref(failed), c_size_t(256 << 20)) == 2
assert failed.value is None
assert free_bytes() == before
resource.setrlimit(resource.RLIMIT_AS, limits)
made = allocate(before)  # all of it
assert free_bytes() == 0
call("cudaFree", made)
assert free_bytes() == before
""",
        gpus=1,
    )


def test_a_kernel_without_a_stand_in_fails_the_context_and_is_named() -> None:
    """PyTorch does not check every launch, and the kernel's results are missing."""
    run_alone(
        """
class Size(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]

runtime.cudaGetErrorString.restype = ctypes.c_char_p
assert runtime.cudaGetErrorString(719) == b"unspecified launch failure"
one = Size(1, 1, 1)
assert runtime.cudaLaunchKernel(None, one, one, None, c_size_t(0), None) == 719
assert runtime.cudaGetLastError() == 719
assert runtime.cudaStreamSynchronize(None) == 719
assert runtime.cudaMalloc(byref(c_void_p()), c_size_t(1)) == 719
assert b"the kernel of unknown name is not emulated" in runtime.cudaGetErrorString(719)
""",
        gpus=1,
    )


def test_torchs_kernel_that_only_takes_time_keeps_its_stream_busy() -> None:
    """torch.cuda._sleep(): a cycle takes a nanosecond, or longer on a busy machine."""
    run_alone(
        """
class Size(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]

code = ctypes.create_string_buffer(1)  # the address stands for the kernel
mangled = b"_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl"
runtime.__cudaRegisterFunction(None, code, None, mangled, -1, None, None, None, None, None)
begun, ended, within = c_void_p(), c_void_p(), c_void_p()
for made in (begun, ended):
    call("cudaEventCreateWithFlags", byref(made), 0)
call("cudaStreamCreateWithFlags", byref(within), 1)
one, cycles = Size(1, 1, 1), ctypes.c_int64(50_000_000)
arguments = (c_void_p * 1)(ctypes.addressof(cycles))
call("cudaEventRecord", begun, within)
call("cudaLaunchKernel", code, one, one, arguments, c_size_t(0), within)
call("cudaEventRecord", ended, within)
cycles.value = 0  # the kernel has a copy
call("cudaStreamSynchronize", within)
taken = ctypes.c_float()
call("cudaEventElapsedTime", byref(taken), begun, ended)
assert taken.value >= 50, taken.value
""",
        gpus=1,
    )


def test_a_task_that_is_refused_is_destroyed_once() -> None:
    run_alone(
        """
Function = ctypes.CFUNCTYPE(None, c_void_p)
class Task(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("run", Function), ("destroy", Function),
                ("state", c_void_p)]

ran, destroyed = [], []
run, destroy = Function(ran.append), Function(destroyed.append)
launch = lambda stream, state: runtime.emulated_gpu_launch(
    stream, byref(Task(b"task", run, destroy, state)), None, c_size_t(0))
assert launch(None, 1) == 0
call("cudaStreamSynchronize", None)
assert (ran, destroyed) == ([1], [1])
assert launch(c_void_p(2), 2) == 400  # the per-thread default stream has no stand-in
ctypes.CDLL("libcuda.so.1").emulated_gpu_fail(719)
assert launch(None, 3) == 719
assert (ran, destroyed) == ([1], [1, 2, 3])
""",
        gpus=1,
    )
