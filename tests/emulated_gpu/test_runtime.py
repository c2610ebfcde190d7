# SPDX-License-Identifier: Apache-2.0
"""The emulated GPU's CUDA runtime, by ctypes: errors, graph captures, memory.

The expected answers are those that CUDA documents: the numbers of errors, whose last error it is,
what a capture forbids, and that it is invalid afterwards. Nothing here needs torch. Each test
cleans up its captures, so that one process runs them all.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from typing import Any

import pytest
from runtime_programs import run_alone

pytestmark = pytest.mark.skipif(
    "EMULATED_GPU_OPERATORS" not in os.environ, reason="make test-gpu runs it on an emulated GPU"
)

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_PITCH = 12
INVALID_DIRECTION = 21
INVALID_DEVICE = 101
INVALID_HANDLE = 400
ILLEGAL_STATE = 401
NOT_READY = 600
NOT_SUPPORTED = 801
(
    UNSUPPORTED,
    INVALIDATED,
    MERGE,
    UNMATCHED,
    UNJOINED,
    ISOLATION,
    IMPLICIT,
    CAPTURED,
    WRONG_THREAD,
) = range(900, 909)
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
TO_DEVICE, TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS = range(1, 5)
NON_BLOCKING = 1
HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
BYTES = 4096


def cuda(name: str, *arguments: Any) -> int:
    return int(getattr(ctypes.CDLL("libcudart.so.13"), name)(*arguments))


def done(name: str, *arguments: Any) -> None:
    assert cuda(name, *arguments) == 0, name


def stream(flags: int = NON_BLOCKING) -> c_void_p:
    made = c_void_p()
    done("cudaStreamCreateWithFlags", byref(made), flags)
    return made


def event() -> c_void_p:
    made = c_void_p()
    done("cudaEventCreate", byref(made))
    return made


def pinned() -> c_void_p:
    made = c_void_p()
    done("cudaMallocHost", byref(made), c_size_t(BYTES))
    return made


def device_memory() -> c_void_p:
    made = c_void_p()
    done("cudaMalloc", byref(made), c_size_t(BYTES))
    return made


def bytes_of(memory: c_void_p) -> bytes:
    host = ctypes.create_string_buffer(BYTES)
    done("cudaMemcpy", host, memory, c_size_t(BYTES), BY_ADDRESS)
    return host.raw


def memset(memory: c_void_p, value: int, within: c_void_p) -> int:
    return cuda("cudaMemsetAsync", memory, value, c_size_t(BYTES), within)


def in_other_thread(call: Callable[[], int]) -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def end(within: c_void_p, expected: int = 0) -> c_void_p:
    graph = c_void_p()
    assert cuda("cudaStreamEndCapture", within, byref(graph)) == expected
    assert (graph.value is None) == (expected != 0)
    return graph


def launch(graph: c_void_p, within: c_void_p, times: int) -> None:
    executable = c_void_p()
    done("cudaGraphInstantiate", byref(executable), graph, ctypes.c_ulonglong(0))
    done("cudaGraphDestroy", graph)
    for _ in range(times):
        done("cudaGraphLaunch", executable, within)
    done("cudaStreamSynchronize", within)
    done("cudaGraphExecDestroy", executable)


@pytest.fixture
def capturing() -> Iterator[c_void_p]:
    """A stream that captures in torch's mode."""
    made = stream()
    done("cudaStreamBeginCapture", made, GLOBAL)
    yield made
    cuda("cudaStreamEndCapture", made, byref(c_void_p()))
    done("cudaStreamDestroy", made)
    cuda("cudaGetLastError")


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


def test_a_graph_does_with_each_launch_what_was_captured(capturing: c_void_p) -> None:
    # cudaMalloc is forbidden meanwhile, except to a thread that relaxes the mode.
    mode = c_int(RELAXED)
    done("cudaThreadExchangeStreamCaptureMode", byref(mode))
    a, b, on_host, copied = device_memory(), device_memory(), pinned(), pinned()
    done("cudaThreadExchangeStreamCaptureMode", byref(mode))
    calls: list[int] = []
    count = HostFunction(lambda _: calls.append(1))
    assert memset(a, 0x11, capturing) == 0
    done("cudaMemcpyAsync", b, a, c_size_t(BYTES), BY_ADDRESS, capturing)
    done("cudaMemcpyAsync", on_host, b, c_size_t(BYTES), TO_HOST, capturing)
    done("cudaMemcpyAsync", copied, on_host, c_size_t(BYTES), BY_ADDRESS, capturing)
    done("cudaLaunchHostFunc", capturing, count, None)
    graph = end(capturing)
    nodes = c_size_t()
    done("cudaGraphGetNodes", graph, None, byref(nodes))
    assert nodes.value == 5
    assert not calls
    assert bytes_of(b) != b"\x11" * BYTES
    launch(graph, capturing, times=3)
    assert len(calls) == 3
    assert ctypes.string_at(copied, BYTES) == b"\x11" * BYTES
    for memory, free in ((a, "cudaFree"), (b, "cudaFree"), (on_host, "cudaFreeHost")):
        done(free, memory)


def test_streams_join_a_capture_by_events_and_come_back(capturing: c_void_p) -> None:
    side, fork, join = stream(), event(), event()
    order: list[str] = []
    functions = [HostFunction(lambda _, name=name: order.append(name)) for name in "abc"]
    done("cudaLaunchHostFunc", capturing, functions[0], None)
    done("cudaEventRecord", fork, capturing)
    done("cudaStreamWaitEvent", side, fork, 0)
    status = c_int()
    done("cudaStreamIsCapturing", side, byref(status))
    assert status.value == 1
    done("cudaLaunchHostFunc", side, functions[1], None)
    done("cudaEventRecord", join, side)
    done("cudaStreamWaitEvent", capturing, join, 0)
    done("cudaLaunchHostFunc", capturing, functions[2], None)
    graph = end(capturing)
    nodes, parents, count = (c_void_p * 3)(), (c_void_p * 3)(), c_size_t(3)
    done("cudaGraphGetNodes", graph, nodes, byref(count))
    done("cudaGraphNodeGetDependencies", c_void_p(nodes[2]), parents, None, byref(count))
    assert parents[: count.value] == nodes[:2]
    done("cudaStreamIsCapturing", side, byref(status))
    assert status.value == 0
    launch(graph, side, times=2)
    assert order == ["a", "b", "c"] * 2


def test_graphs_keep_what_they_were_given(capturing: c_void_p) -> None:
    gone: list[int] = []
    destroy = HostFunction(lambda value: gone.append(value))
    made = c_void_p()
    create = ("cudaUserObjectCreate", byref(made), c_void_p(7), destroy, 2)
    assert cuda(*create, 0) == INVALID_VALUE  # a flag that CUDA requires is missing
    done(*create, 1)
    graph = end(capturing)
    executable = c_void_p()
    move = 1
    done("cudaGraphRetainUserObject", graph, made, 1, move)
    done("cudaGraphInstantiate", byref(executable), graph, ctypes.c_ulonglong(0))
    done("cudaGraphDestroy", graph)
    done("cudaUserObjectRetain", made, 1)
    done("cudaUserObjectRelease", made, 2)
    done("cudaGraphLaunch", executable, capturing)
    assert gone == []  # the executable shares the graph's reference
    done("cudaGraphExecDestroy", executable)
    assert gone == [7]


def test_work_that_did_not_come_back_gives_no_graph(capturing: c_void_p) -> None:
    side, fork = stream(), event()
    done("cudaEventRecord", fork, capturing)
    done("cudaStreamWaitEvent", side, fork, 0)
    done("cudaLaunchHostFunc", side, HostFunction(lambda _: None), None)
    end(capturing, UNJOINED)
    done("cudaStreamSynchronize", side)  # it captures no longer


def test_a_graph_that_is_launched_in_a_capture_becomes_a_part_of_it(capturing: c_void_p) -> None:
    calls: list[int] = []
    count = HostFunction(lambda _: calls.append(1))
    done("cudaLaunchHostFunc", capturing, count, None)
    inner = end(capturing)
    executable = c_void_p()
    done("cudaGraphInstantiate", byref(executable), inner, ctypes.c_ulonglong(0))
    done("cudaStreamBeginCapture", capturing, GLOBAL)
    done("cudaGraphLaunch", executable, capturing)
    done("cudaGraphLaunch", executable, capturing)
    outer = end(capturing)
    assert not calls
    done("cudaGraphExecDestroy", executable)
    launch(outer, capturing, times=2)
    assert len(calls) == 4


def test_an_external_event_is_recorded_by_each_launch(capturing: c_void_p) -> None:
    external, start = event(), event()
    done("cudaEventRecordWithFlags", external, capturing, 1)
    graph = end(capturing)
    done("cudaEventRecord", start, capturing)
    elapsed = c_float()
    assert cuda("cudaEventElapsedTime", byref(elapsed), start, external) == INVALID_HANDLE
    launch(graph, capturing, times=1)
    done("cudaEventElapsedTime", byref(elapsed), start, external)
    assert elapsed.value >= 0
    # Outside a capture there is no such flag.
    assert cuda("cudaEventRecordWithFlags", external, capturing, 1) == INVALID_VALUE


def wait_for_other_capture(within: c_void_p) -> int:
    other, recorded = stream(), event()
    done("cudaStreamBeginCapture", other, GLOBAL)
    done("cudaEventRecord", recorded, other)
    found = cuda("cudaStreamWaitEvent", within, recorded, 0)
    end(other, INVALIDATED)
    return found


def captured_event(within: c_void_p) -> c_void_p:
    recorded = event()
    done("cudaEventRecord", recorded, within)
    return recorded


FORBIDDEN: dict[str, tuple[Callable[[c_void_p], int], int]] = {
    "wait_for_the_stream": (lambda s: cuda("cudaStreamSynchronize", s), UNSUPPORTED),
    "ask_the_stream": (lambda s: cuda("cudaStreamQuery", s), UNSUPPORTED),
    "wait_for_the_device": (lambda _: cuda("cudaDeviceSynchronize"), UNSUPPORTED),
    "malloc": (lambda _: cuda("cudaMalloc", byref(c_void_p()), c_size_t(1)), UNSUPPORTED),
    "malloc_of_another_thread": (
        lambda _: in_other_thread(lambda: cuda("cudaMalloc", byref(c_void_p()), c_size_t(1))),
        UNSUPPORTED,
    ),
    "free": (lambda _: cuda("cudaFree", c_void_p(4096)), UNSUPPORTED),
    "host_alloc": (lambda _: cuda("cudaMallocHost", byref(c_void_p()), c_size_t(1)), UNSUPPORTED),
    "free_host": (lambda _: cuda("cudaFreeHost", c_void_p(4096)), UNSUPPORTED),
    "callback": (
        lambda s: cuda("cudaStreamAddCallback", s, HostFunction(lambda _: None), None, 0),
        UNSUPPORTED,
    ),
    "ask_a_captured_event": (lambda s: cuda("cudaEventQuery", captured_event(s)), CAPTURED),
    "wait_for_a_captured_event": (
        lambda s: cuda("cudaEventSynchronize", captured_event(s)),
        CAPTURED,
    ),
    "depend_on_a_captured_event_of_the_legacy_stream": (
        lambda s: cuda("cudaStreamWaitEvent", None, captured_event(s), 0),
        IMPLICIT,
    ),
    "depend_on_what_is_outside": (
        lambda s: cuda("cudaStreamWaitEvent", s, event(), 0),
        ISOLATION,
    ),
    "depend_on_another_capture": (wait_for_other_capture, MERGE),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_a_capture_forbids_makes_it_invalid(name: str, capturing: c_void_p) -> None:
    call, expected = FORBIDDEN[name]
    assert call(capturing) == expected
    assert cuda("cudaLaunchHostFunc", capturing, HostFunction(lambda _: None), None) == INVALIDATED
    status = c_int()
    done("cudaStreamIsCapturing", capturing, byref(status))
    assert status.value == 2
    end(capturing, INVALIDATED)
    done("cudaStreamSynchronize", capturing)


@pytest.mark.parametrize("mode", [THREAD_LOCAL, RELAXED])
def test_other_modes_forbid_other_threads_nothing(mode: int) -> None:
    within, memory = stream(), c_void_p()
    done("cudaStreamBeginCapture", within, mode)
    assert in_other_thread(lambda: cuda("cudaMalloc", byref(memory), c_size_t(1))) == 0
    own = cuda("cudaFree", memory)
    assert own == (UNSUPPORTED if mode == THREAD_LOCAL else 0)
    end(within, INVALIDATED if mode == THREAD_LOCAL else 0)
    if mode == THREAD_LOCAL:
        done("cudaFree", memory)


def test_the_legacy_stream_waits_for_blocking_streams_alone() -> None:
    memory, blocking, other = device_memory(), stream(0), stream()
    host = ctypes.create_string_buffer(BYTES)
    legacy: list[Callable[[], int]] = [
        lambda: cuda("cudaMemset", memory, 0, c_size_t(BYTES)),
        lambda: cuda("cudaMemcpy", host, memory, c_size_t(BYTES), BY_ADDRESS),
        lambda: cuda("cudaStreamSynchronize", None),
    ]
    for call in legacy:
        done("cudaStreamBeginCapture", blocking, RELAXED)
        assert call() == IMPLICIT
        end(blocking, INVALIDATED)
        done("cudaStreamBeginCapture", other, RELAXED)
        assert call() == 0
        end(other)
    done("cudaFree", memory)


def test_a_capture_ends_where_it_began(capturing: c_void_p) -> None:
    side, fork, graph = stream(), event(), c_void_p()
    assert cuda("cudaStreamBeginCapture", None, GLOBAL) == UNSUPPORTED
    assert cuda("cudaStreamBeginCapture", capturing, GLOBAL) == ILLEGAL_STATE
    assert cuda("cudaStreamEndCapture", side, byref(graph)) == ILLEGAL_STATE
    done("cudaEventRecord", fork, capturing)
    done("cudaStreamWaitEvent", side, fork, 0)
    assert cuda("cudaStreamEndCapture", side, byref(graph)) == UNMATCHED
    other_end = in_other_thread(lambda: cuda("cudaStreamEndCapture", capturing, byref(graph)))
    assert other_end == WRONG_THREAD
    # The event belongs to the capture until it is recorded elsewhere.
    done("cudaGraphDestroy", end(capturing))
    assert cuda("cudaEventQuery", fork) == CAPTURED
    done("cudaEventRecord", fork, side)
    done("cudaEventSynchronize", fork)


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
