# SPDX-License-Identifier: Apache-2.0
"""Captures and graphs of the emulated GPU's CUDA runtime, by ctypes.

The expected answers are those that CUDA documents: what a capture forbids, with which error, and
that it is invalid afterwards, whether a program asks the runtime or the driver below it. Nothing
here needs torch. Each test cleans up its captures, so that one process runs them all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import byref, c_float, c_int, c_size_t, c_void_p

import pytest
from requirement import needs_emulated_gpu
from runtime_calls import (
    BY_ADDRESS,
    BYTES,
    CAPTURED,
    GLOBAL,
    ILLEGAL_STATE,
    IMPLICIT,
    INVALID_HANDLE,
    INVALID_VALUE,
    INVALIDATED,
    ISOLATION,
    MERGE,
    RELAXED,
    THREAD_LOCAL,
    TO_HOST,
    UNJOINED,
    UNMATCHED,
    UNSUPPORTED,
    WRONG_THREAD,
    HostFunction,
    bytes_of,
    cuda,
    device_memory,
    done,
    event,
    in_other_thread,
    memset,
    pinned,
    stream,
)

pytestmark = needs_emulated_gpu


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


def test_a_graph_does_with_each_launch_what_was_captured(capturing: c_void_p) -> None:
    # During a capture cudaMalloc is forbidden, except to a thread that relaxes the mode.
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


def test_only_dependencies_order_a_launch(capturing: c_void_p) -> None:
    """Without a dependency, the write that was captured first may run last."""
    mode = c_int(RELAXED)
    done("cudaThreadExchangeStreamCaptureMode", byref(mode))
    memory = device_memory()
    done("cudaThreadExchangeStreamCaptureMode", byref(mode))
    side, fork, join = stream(), event(), event()
    done("cudaEventRecord", fork, capturing)
    done("cudaStreamWaitEvent", side, fork, 0)
    assert memset(memory, 1, side) == 0
    assert memset(memory, 2, capturing) == 0
    done("cudaEventRecord", join, side)
    done("cudaStreamWaitEvent", capturing, join, 0)
    launch(end(capturing), capturing, times=1)
    assert bytes_of(memory) == b"\x01" * BYTES
    done("cudaFree", memory)


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
    # Outside a capture the flag for an external event is refused.
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


def test_asking_the_legacy_stream_harms_no_capture() -> None:
    blocking, other, status = stream(0), stream(), c_int()
    done("cudaStreamBeginCapture", blocking, RELAXED)
    answers = [
        cuda("cudaStreamIsCapturing", None, byref(status)),
        driver("cuStreamIsCapturing", None, byref(status)),
    ]
    end(blocking)
    assert answers == [IMPLICIT, IMPLICIT]
    done("cudaStreamBeginCapture", other, RELAXED)
    done("cudaStreamIsCapturing", None, byref(status))
    end(other)
    assert status.value == 0


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


def driver(name: str, *arguments: object) -> int:
    """A call of the driver itself, as tencache makes it."""
    return int(getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments))


@pytest.fixture
def recorded() -> c_void_p:
    """An event that no capture has recorded."""
    made = event()
    done("cudaEventRecord", made, None)
    done("cudaEventSynchronize", made)
    return made


def pin_for_a_moment() -> int:
    memory = ctypes.create_string_buffer(BYTES)
    found = driver("cuMemHostRegister_v2", memory, c_size_t(BYTES), 0)
    return found or driver("cuMemHostUnregister", memory)


# What a service thread does while the program captures.
UNSAFE: dict[str, Callable[[c_void_p], int]] = {
    "cuEventQuery": lambda recorded: driver("cuEventQuery", recorded),
    "cuEventSynchronize": lambda recorded: driver("cuEventSynchronize", recorded),
    "cuStreamSynchronize": lambda _: driver("cuStreamSynchronize", None),
    "cuMemHostRegister_v2": lambda _: pin_for_a_moment(),
}


def in_other_mode(call: Callable[[], int], mode: int) -> int:
    """The call's result in a thread of that mode, which has a context."""

    def in_mode() -> int:
        done("cudaSetDevice", 0)
        done("cudaThreadExchangeStreamCaptureMode", byref(c_int(mode)))
        return call()

    return in_other_thread(in_mode)


@pytest.mark.parametrize("name", UNSAFE)
def test_the_driver_knows_what_a_capture_forbids_other_threads(
    name: str, recorded: c_void_p, capturing: c_void_p
) -> None:
    assert in_other_mode(lambda: UNSAFE[name](recorded), GLOBAL) == UNSUPPORTED
    end(capturing, INVALIDATED)


@pytest.mark.parametrize("mode", [THREAD_LOCAL, RELAXED])
def test_a_thread_of_another_mode_may_call_the_driver(
    mode: int, recorded: c_void_p, capturing: c_void_p
) -> None:
    for name, call in UNSAFE.items():
        assert in_other_mode(lambda call=call: call(recorded), mode) == 0, name
    end(capturing)


def test_the_drivers_work_in_a_capturing_stream_waits_for_a_launch(recorded: c_void_p) -> None:
    within, memory = stream(), device_memory()
    done("cudaMemset", memory, 1, c_size_t(BYTES))
    calls: list[int] = []
    count = HostFunction(lambda _: calls.append(1))
    done("cudaStreamBeginCapture", within, GLOBAL)
    results = [
        driver("cuMemsetD8Async", memory, 2, c_size_t(BYTES), within),
        driver("cuLaunchHostFunc", within, count, None),
        driver("cuEventRecord", recorded, within),
    ]
    graph = end(within)
    assert results == [0, 0, 0]
    assert driver("cuEventQuery", recorded) == CAPTURED
    done("cudaStreamSynchronize", within)
    assert bytes_of(memory) == b"\x01" * BYTES
    assert not calls
    launch(graph, within, times=1)
    assert bytes_of(memory) == b"\x02" * BYTES
    assert len(calls) == 1
    done("cudaFree", memory)


def test_the_driver_lets_no_capture_depend_on_what_is_outside(capturing: c_void_p) -> None:
    assert driver("cuStreamWaitEvent", capturing, event(), 0) == ISOLATION
    end(capturing, INVALIDATED)
