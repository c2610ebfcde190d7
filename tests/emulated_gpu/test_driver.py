# SPDX-License-Identifier: Apache-2.0
"""libcuda.so.1 of the emulated GPU by itself.

The tests check its answers before cuInit and in a child, its refusals, how the process ends, and
whose memory a copy between two GPUs may touch. All programs but one know no torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from requirement import needs_emulated_gpu

pytestmark = needs_emulated_gpu

# The driver, a call that must succeed, a context of each device, and memory of a device.
PRELUDE = """
import ctypes, os
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
INVALID_VALUE, NOT_INITIALIZED, INVALID_DEVICE, INVALID_CONTEXT = 1, 3, 101, 201
NOT_FOUND, NOT_SUPPORTED = 500, 801
BYTES = 4 << 20

def do(result):
    assert result == 0, result

def retain(device):
    context = c_void_p()
    do(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    return context

def memory_of(device):
    address, handle = c_uint64(), c_uint64()
    properties = (c_int * 8)(1, 0, 1, device)
    access = (c_int * 3)(1, device, 3)
    size, none = c_size_t(BYTES), c_uint64(0)
    do(cuda.cuMemAddressReserve(byref(address), size, none, none, none))
    do(cuda.cuMemCreate(byref(handle), size, properties, none))
    do(cuda.cuMemMap(address, size, none, handle, none))
    do(cuda.cuMemSetAccess(address, size, access, c_size_t(1)))
    return address
"""


def run(
    program: str,
    variables: dict[str, str] | None = None,
    *,
    arguments: Sequence[str] = (),
    knows_torch: bool = False,
) -> subprocess.CompletedProcess[str]:
    alone = [] if knows_torch else ["-S"]
    return subprocess.run(
        [sys.executable, *alone, "-c", PRELUDE + program, *arguments],
        env=os.environ | {"EMULATED_GPU_COUNT": "2"} | (variables or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_it_answers_before_it_is_started_and_after() -> None:
    program = """
value, context = c_int(), c_void_p()
do(cuda.cuDriverGetVersion(byref(value)))
text = ctypes.c_char_p()
do(cuda.cuGetErrorName(NOT_INITIALIZED, byref(text)))
assert text.value == b"CUDA_ERROR_NOT_INITIALIZED"
assert cuda.cuDeviceGetCount(byref(value)) == NOT_INITIALIZED
assert cuda.cuCtxGetCurrent(byref(context)) == NOT_INITIALIZED
assert cuda.cuCtxSynchronize() == NOT_INITIALIZED
assert cuda.cuMemsetD32Async(c_uint64(0), 0, c_size_t(1), None) == NOT_INITIALIZED
if os.fork() == 0:
    do(cuda.cuInit(0))  # nobody has started the driver yet
    do(cuda.cuDeviceGetCount(byref(value)))
    os._exit(0)
do(os.wait()[1])

do(cuda.cuInit(0))
do(cuda.cuDeviceGetCount(byref(value)))
assert value.value == 2
for needs_context in (
    lambda: cuda.cuCtxSynchronize(),
    lambda: cuda.cuMemsetD32Async(c_uint64(0), 0, c_size_t(1), None),
    lambda: cuda.cuStreamWriteValue32_v2(None, c_uint64(0), c_uint32(0), 0),
    lambda: cuda.cuCtxGetDevice(byref(value)),
):
    assert needs_context() == INVALID_CONTEXT
uuid = (ctypes.c_char * 16)()
assert cuda.cuDeviceGetUuid_v2(uuid, 2) == INVALID_DEVICE
do(cuda.cuDeviceGetUuid_v2(uuid, 1))
do(cuda.cuCtxPushCurrent_v2(retain(1)))
do(cuda.cuCtxGetDevice(byref(value)))
assert value.value == 1
do(cuda.cuCtxSynchronize())
if os.fork() == 0:
    assert cuda.cuInit(0) == NOT_INITIALIZED
    assert cuda.cuCtxSynchronize() == NOT_INITIALIZED
    os._exit(0)
do(os.wait()[1])
do(cuda.cuCtxSynchronize())
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_what_it_refuses_stands_on_stderr() -> None:
    program = """
do(cuda.cuInit(0))
do(cuda.cuCtxPushCurrent_v2(retain(0)))
assert cuda.cuModuleLoad(None, b"kernels.cubin") == NOT_SUPPORTED
address, value = memory_of(0), c_int()
do(cuda.cuPointerGetAttribute(byref(value), 2, address))  # the type of memory: a device's
assert value.value == 2
assert cuda.cuPointerGetAttribute(byref(value), 3, address) == NOT_SUPPORTED
function, status = c_void_p(), c_int()

def get(name):
    return cuda.cuGetProcAddress_v2(name, byref(function), 13000, c_uint64(0), byref(status))

do(get(b"cuStreamSynchronize"))
assert get(b"cuNoSuchFunction") == NOT_FOUND and function.value is None and status.value == 1
assert cuda.cuGetProcAddress(b"cuNoSuchFunction", byref(function), 11000, c_uint64(0)) == NOT_FOUND
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert "cuModuleLoad " in done.stderr
    assert "cuPointerGetAttribute " in done.stderr


def test_the_process_ends_after_the_work_that_is_running(tmp_path: Path) -> None:
    """Queued work behind the running work is dropped. The shell asks whether the process lives."""
    program = """
import sys, time
libc = ctypes.CDLL(None)
folder, texts = sys.argv[1], []
do(cuda.cuInit(0))
do(cuda.cuCtxPushCurrent_v2(retain(0)))
runs = f"cd {folder}; touch begun; sleep 3; grep -q . /proc/$PPID/cmdline && touch lives"
for command in (runs, f"touch {folder}/queued"):
    text = ctypes.create_string_buffer(command.encode())
    texts.append(text)
    do(cuda.cuLaunchHostFunc(None, libc.system, text))
while not os.path.exists(folder + "/begun"):
    time.sleep(0.001)
"""
    done = run(program, arguments=[str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "lives"]


def test_a_copy_between_gpus_is_of_the_memory_of_its_contexts() -> None:
    program = """
do(cuda.cuInit(0))
contexts = [retain(device) for device in (0, 1)]
do(cuda.cuCtxPushCurrent_v2(contexts[0]))
first, second = memory_of(0), memory_of(1)
word = lambda address: c_uint32.from_address(address.value + BYTES - 4).value
do(cuda.cuMemsetD32Async(first, 0x01020304, c_size_t(BYTES // 4), None))
copy = lambda *ends: cuda.cuMemcpyPeerAsync(*ends, c_size_t(BYTES), None)
do(copy(second, contexts[1], first, contexts[0]))
do(cuda.cuCtxSynchronize())
assert word(second) == 0x01020304
do(cuda.cuMemsetD32Async(first, 0, c_size_t(BYTES // 4), None))
assert copy(second, contexts[0], first, contexts[0]) == INVALID_VALUE
assert copy(second, contexts[1], first, contexts[1]) == INVALID_VALUE
assert copy(second, None, first, contexts[0]) == INVALID_CONTEXT
do(cuda.cuCtxSynchronize())
assert word(second) == 0x01020304
can = c_int(1)
do(cuda.cuDeviceCanAccessPeer(byref(can), 0, 1))
assert can.value == 0
assert cuda.cuDeviceCanAccessPeer(byref(can), 0, 2) == INVALID_DEVICE
"""
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_tensors_move_between_gpus() -> None:
    program = """
import torch
torch.manual_seed(0)
plain = torch.randn(3000, 700)
first = plain.to("cuda:0")
assert first.to("cuda:1").device.index == 1
assert torch.equal(first.to("cuda:1").cpu(), plain)
assert torch.equal(first.t()[5:].to("cuda:1").cpu(), plain.t()[5:])
assert torch.equal(first.to("cuda:1", torch.float64).cpu(), plain.double())
with torch.cuda.device(1):
    second = torch.empty(700, 3000, device="cuda:1").t()
    second.copy_(first, non_blocking=True)
    doubled = second * 2
back = torch.empty_like(first)
back.copy_(doubled, non_blocking=True)
assert torch.equal(back.cpu(), plain * 2)
streams = [torch.cuda.Stream(device) for device in (0, 1)]
with torch.cuda.stream(streams[0]):
    produced = torch.full((4 << 20,), 3.0, device="cuda:0")
    for _ in range(20):
        produced += 1
    moved = produced.to("cuda:1", non_blocking=True)
    produced.zero_()
assert torch.cuda.current_stream(1) != streams[1]
assert (moved.cpu() == 23).all()
"""
    done = run(program, knows_torch=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("EMULATED_GPU_MEMORY", "4 apples"), ("EMULATED_GPU_COUNT", "0")]
)
def test_a_value_of_the_environment_that_cannot_be_read_is_named(name: str, value: str) -> None:
    done = run("cuda.cuInit(0)", {name: value})
    assert done.returncode == 1
    assert f"{name}={value}: " in done.stderr
