# SPDX-License-Identifier: Apache-2.0
"""Calls torch.cuda's memory, streams, events and graphs, and writes the results as JSON.

test_memory_functions.py runs it once with PyTorch's own allocator and once with tencache, and
compares. Each call begins with nothing allocated, caches emptied and figures reset. A result holds
nothing that differs from run to run: no address, no time, nothing about other programs.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.cuda import _memory_viz, memory

MIB = 1 << 20
CALLS: dict[str, Callable[[], Any]] = {}


def call(function: Callable[[], Any]) -> Callable[[], Any]:
    CALLS[function.__name__] = function
    return function


def empty(size: int, pinned: bool = False) -> torch.Tensor:
    place: dict[str, Any] = {"pin_memory": True} if pinned else {"device": "cuda"}
    return torch.empty(size, dtype=torch.uint8, **place)


def outcome(function: Callable[[], Any]) -> str:
    """Names the kind of error, or that there was none."""
    try:
        function()
    except Exception as error:
        return type(error).__name__
    return "ok"


def refusal(function: Callable[[], Any]) -> str:
    """Names what tencache does not support, or that there was no error."""
    try:
        function()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "ok"


class Held:
    """A stream that waits, on the device, until the block ends."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.may_go = threading.Event()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.function = kind(lambda _: self.may_go.wait(60) and None)

    def __enter__(self) -> None:
        name = f"libcudart.so.{str(torch.version.cuda).split('.')[0]}"
        handle = ctypes.c_void_p(self.stream.cuda_stream)
        assert ctypes.CDLL(name).cudaLaunchHostFunc(handle, self.function, None) == 0

    def __exit__(self, *_: object) -> None:
        self.may_go.set()
        self.stream.synchronize()


def segments(pool: Any = None) -> list[Any]:
    return sorted(
        [
            segment["total_size"],
            segment["allocated_size"],
            segment["active_size"],
            segment["segment_type"],
            segment["stream"] == 0,
            segment["segment_pool_id"] == (0, 0),
            [
                [block["size"], block["requested_size"], block["state"]]
                for block in segment["blocks"]
            ],
        ]
        for segment in memory.memory_snapshot(pool)
    )


def stats(*prefixes: str) -> dict[str, int]:
    return {k: v for k, v in memory.memory_stats().items() if k.startswith(prefixes or ("",))}


@call
def figures() -> Any:
    kept = [empty(size) for size in (1, MIB, 30 * MIB, 40 * MIB, 3000)]
    del kept[1:3]
    in_use = stats(), segments()
    kept.clear()
    freed = memory.memory_stats_as_nested_dict()
    memory.empty_cache()
    emptied = stats(), memory.memory_summary(), memory.memory_summary(abbreviated=True)
    memory.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()
    return in_use, freed, emptied, stats()


@call
def figures_of_middling_sizes() -> Any:
    kept = [empty(size * MIB) for size in (3, 5)]
    return sum(t.numel() for t in kept), stats("reserved_bytes.all", "allocated_bytes.all")


@call
def single_figures() -> Any:
    kinds = ("allocated", "reserved", "cached")
    names = [f"{prefix}memory_{kind}" for kind in kinds for prefix in ("", "max_")]
    tensor = empty(30 * MIB)
    values = [[getattr(memory, name)() for name in names]]
    del tensor
    values.append([getattr(memory, name)() for name in names])
    memory.reset_max_memory_allocated()
    memory.reset_max_memory_cached()
    values.append([getattr(memory, name)() for name in names])
    return values


@call
def what_other_streams_use() -> Any:
    side = torch.cuda.Stream()
    tensor, small = empty(30 * MIB), empty(1000)
    with Held(side):
        tensor.record_stream(side)
        small.record_stream(side)
        del tensor, small
        waiting = stats("active", "allocat", "requested", "inactive"), segments()
    torch.cuda.synchronize()
    memory.empty_cache()
    return waiting, stats("active", "allocat", "requested", "inactive", "reserved", "segment")


@call
def raw_allocation() -> Any:
    address = memory.caching_allocator_alloc(3 * 30 * MIB)
    before = memory.memory_allocated()
    memory.caching_allocator_delete(address)
    return before, memory.memory_allocated()


@call
def the_drivers_view() -> Any:
    free, total = memory.mem_get_info()
    tensor = empty(30 * MIB)
    grown = free - memory.mem_get_info()[0]
    del tensor
    memory.empty_cache()
    return grown, free - memory.mem_get_info()[0], total >= free


@call
def processes() -> Any:
    try:
        return memory.list_gpu_processes().splitlines()[0]
    except Exception as error:
        return type(error).__name__


@call
def backend() -> Any:
    return memory.get_allocator_backend()


@call
def another_allocator() -> Any:
    return [
        outcome(lambda: memory.CUDAPluggableAllocator("/nowhere.so", "take", "give")),
        outcome(lambda: memory.change_current_allocator(memory._get_current_allocator())),
    ]


@call
def caching_off() -> Any:
    refused = refusal(lambda: memory.caching_allocator_enable(False))
    memory.caching_allocator_enable(True)
    return refused


@call
def running_out() -> Any:
    before = stats("num_")
    results = [outcome(lambda: empty(1 << 44)), outcome(lambda: empty(1 << 61))]
    after = stats("num_")
    return results, {k: after[k] - before[k] for k in after}


@call
def fraction() -> Any:
    device = torch.cuda.current_device()
    total = memory.mem_get_info()[1]
    results: list[Any] = [memory.get_per_process_memory_fraction(device)]
    for value in (0.0, 0.5, 1.5, -0.1, 1):
        set_to = functools.partial(memory.set_per_process_memory_fraction, value)
        results.append(outcome(set_to))
        results.append(memory.get_per_process_memory_fraction())
    memory.set_per_process_memory_fraction(0.0)
    results.append(outcome(lambda: empty(30 * MIB)))
    memory.set_per_process_memory_fraction(0.5)
    results.append(outcome(lambda: empty(int(0.51 * total))))
    kept = empty(30 * MIB)
    results.append(int(kept.fill_(7).sum()))
    memory.set_per_process_memory_fraction(1.0)
    return results


@call
def private_pools() -> Any:
    pool = memory.MemPool()
    results: list[Any] = [type(pool.id).__name__, pool.use_count()]
    with memory.use_mem_pool(pool):
        results.append(pool.use_count())
        kept = [empty(11 * MIB) for _ in range(10)]
        kept.append(empty(1000))
    results += [memory.memory_reserved(), segments(), segments(pool.id), pool.use_count()]
    results.append(len(pool.snapshot()))
    kept.clear()
    memory.empty_cache()
    results.append(memory.memory_reserved() > 0)
    del pool
    gc.collect()
    memory.empty_cache()
    return [*results, memory.memory_reserved()]


@call
def what_a_pool_leaves_in_the_cache() -> Any:
    empty(30 * MIB)  # freed and kept
    pool = memory.MemPool()
    with memory.use_mem_pool(pool):
        empty(11 * MIB)
    reserved = [memory.memory_reserved()]
    del pool
    gc.collect()
    return [*reserved, memory.memory_reserved()]


@call
def emptied_within_a_pool() -> Any:
    empty(30 * MIB)
    pool = memory.MemPool()
    with memory.use_mem_pool(pool):
        empty(11 * MIB)
        memory.empty_cache()
        return memory.memory_reserved()


@call
def earlier_states_of_a_pool() -> Any:
    pool = memory.MemPool()

    def blocks() -> list[Any]:
        # Requested sizes are left out: once PyTorch's own allocator has gone back to an earlier
        # state, it takes a block's size for the requested one.
        return sorted(
            [segment["total_size"], *((b["size"], b["state"]) for b in segment["blocks"])]
            for segment in pool.snapshot()
        )

    with memory.use_mem_pool(pool):
        kept = [empty(size) for size in (11 * MIB, 3 * MIB, 1000)]
        empty(3000)
    state = torch._C._cuda_getCheckpointState(0, pool.id)
    results: list[Any] = [blocks()]
    with memory.use_mem_pool(pool):
        stale = [empty(size) for size in (5 * MIB, 40 * MIB, 2000)]
    results.append(blocks())
    storages = [tensor.untyped_storage()._cdata for tensor in stale]
    torch._C._cuda_setCheckpointPoolState(0, state, storages, [])
    # Going back also allocates dead blocks for a moment, which totals and peaks count.
    counts = stats("allocat", "active", "inactive_split")
    results.append({name: n for name, n in counts.items() if name.endswith(".current")})
    alive = {tensor.data_ptr() for tensor in kept}
    results += [blocks(), torch._C._cuda_checkPoolLiveAllocations(0, pool.id, alive)]
    del stale, kept
    return [*results, blocks(), memory.memory_allocated()]


@call
def pools_of_other_kinds() -> Any:
    def allocate(**options: bool) -> None:
        pool = memory.MemPool(**options)
        with memory.use_mem_pool(pool):
            empty(1000)

    return refusal(lambda: allocate(use_on_oom=True)), refusal(lambda: allocate(no_split=True))


def entries(snapshot: dict[str, Any]) -> list[Any]:
    (device,) = (trace for trace in snapshot["device_traces"] if trace)
    names = {"segment_alloc", "segment_free", "alloc", "free_requested", "free_completed", "oom"}
    return [
        [
            *(entry["action"], entry["size"], entry["stream"] == 0),
            *(entry.get("user_metadata", ""), entry["compile_context"]),
        ]
        for entry in device
        if entry["action"] in names
    ]


@call
def history() -> Any:
    results: list[Any] = []
    memory._record_memory_history(max_entries=1000, stacks="python")
    memory._set_memory_metadata("a step")
    results.append(memory._get_memory_metadata())
    kept = [empty(1000), empty(30 * MIB)]
    memory._set_memory_metadata("")
    del kept[1]
    outcome(lambda: empty(1 << 44))
    memory.empty_cache()
    side = torch.cuda.Stream()
    shared = empty(30 * MIB)
    with Held(side):
        shared.record_stream(side)
        del shared
        results.append(entries(memory._snapshot()))
    memory.empty_cache()
    snapshot = memory._snapshot()
    results.append(entries(snapshot))
    times = [entry["time_us"] for trace in snapshot["device_traces"] for entry in trace]
    results.append(times == sorted(times))
    (trace,) = (trace for trace in snapshot["device_traces"] if trace)
    stacks = [entry["frames"] for entry in trace if entry["action"] == "alloc"]
    results.append(all(any(f["name"] == "empty" for f in frames) for frames in stacks))
    blocks = [block for s in snapshot["segments"] for block in s["blocks"]]
    results.append([len(b["frames"]) > 0 for b in blocks if b["state"] == "active_allocated"])
    for page in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        results.append("<html" in page(snapshot).lower() or "<!doctype" in page(snapshot).lower())
    results.append(len(_memory_viz.trace(snapshot)) > 0)
    memory._record_memory_history(enabled=None)
    return [*results, [len(trace) for trace in memory._snapshot()["device_traces"]]]


@call
def history_of_chosen_actions() -> Any:
    memory._record_memory_history(context=None, skip_actions=["free_completed", "segment_alloc"])
    del_me = empty(30 * MIB)
    del del_me
    chosen = entries(memory._snapshot())
    memory._record_memory_history("state", clear_history=True)
    kept = empty(1000)
    counts = [len(trace) for trace in memory._snapshot()["device_traces"]]
    memory._record_memory_history(enabled=None)
    return chosen, counts, kept.numel()


@call
def settings() -> Any:
    text = memory._snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
    return text


@call
def pinned() -> Any:
    names = ("active_requests.current", "active_bytes.current")

    def growth(since: dict[str, int]) -> list[int]:
        now = memory.host_memory_stats()
        return [now[name] - since[name] for name in names]

    before = memory.host_memory_stats()
    tensor = empty(MIB, pinned=True)
    results: list[Any] = [tensor.is_pinned(), growth(before), sorted(before)]
    del tensor
    memory.reset_peak_host_memory_stats()
    host = memory.host_memory_stats()
    results.append(host["active_bytes.peak"] == host["active_bytes.current"])
    torch._C._host_emptyCache()
    host = memory.host_memory_stats()
    results += [host["num_host_free"] > 0, host["num_host_alloc"] - host["num_host_free"]]
    memory.reset_accumulated_host_memory_stats()
    host = memory.host_memory_stats_as_nested_dict()
    return [*results, host["active_bytes"]["allocated"], host["num_host_alloc"]]


@call
def pinned_and_freed() -> Any:
    name = "active_bytes.current"
    before = memory.host_memory_stats()[name]
    tensor = empty(MIB, pinned=True)
    del tensor
    return memory.host_memory_stats()[name] - before


@call
def pinned_bytes_that_are_mapped() -> Any:
    tensor = empty(40, pinned=True)
    return tensor.numel(), memory.host_memory_stats()["allocated_bytes.current"]


@call
def pinned_in_a_capture() -> Any:
    tensor, addresses = torch.zeros(1, device="cuda"), set()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        tensor.add_(1)
        for _ in range(20):
            addresses.add(empty(MIB, pinned=True).data_ptr())
    return len(addresses)


@call
def streams() -> Any:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    results: list[Any] = [event.query(), side.query(), torch.cuda.Stream.priority_range()[0]]
    tensor = torch.zeros(MIB, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with Held(side):
        with torch.cuda.stream(side):
            results.append(torch.cuda.current_stream() == side)
            tensor.add_(1)
        event.record(side)
        results += [event.query(), side.query()]
    torch.cuda.current_stream().wait_event(event)
    results += [float(tensor.sum()), event.query(), side.query()]
    first = side.record_event(torch.cuda.Event(enable_timing=True))
    with torch.cuda.stream(side):
        torch.cuda._sleep(1000)
    second = side.record_event(torch.cuda.Event(enable_timing=True))
    second.synchronize()
    results.append(first.elapsed_time(second) > 0)
    outside = torch.cuda.ExternalStream(side.cuda_stream)
    results += [outside == side, torch.cuda.default_stream().cuda_stream]
    torch.cuda.set_stream(side)
    results.append(torch.cuda.current_stream() == side)
    torch.cuda.set_stream(torch.cuda.default_stream())
    event.wait(side)
    side.synchronize()
    return [*results, outcome(event.ipc_handle), torch.cuda.is_current_stream_capturing()]


@call
def graphs() -> Any:
    tensor = torch.ones(MIB, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    results: list[Any] = [type(pool).__name__, pool[0]]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        results.append(torch.cuda.is_current_stream_capturing())
        result = tensor * 2
    results.append(graph.pool() == pool)
    results.append(pool in (graph.pools() if hasattr(graph, "pools") else [pool]))
    alive = torch._C._cuda_checkPoolLiveAllocations
    device = torch.cuda.current_device()
    results += [alive(device, pool, {result.data_ptr()}), alive(device, pool, set())]
    for value in (3.0, 5.0):
        tensor.fill_(value)
        graph.replay()
        results.append(float(result.sum()))
    del result
    results.append(alive(device, pool, set()))
    graph.reset()
    del graph, tensor
    gc.collect()
    torch.cuda.synchronize()
    memory.empty_cache()
    return [*results, segments(pool), memory.memory_reserved()]


@call
def graphed_callables() -> Any:
    layer = torch.nn.Linear(64, 64).cuda()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(0.125)
    sample = torch.ones(8, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(layer, (sample,))
    loss = graphed(torch.full((8, 64), 2.0, device="cuda", requires_grad=True)).sum()
    loss.backward()
    return float(loss.detach()), float(layer.bias.grad.sum())


def begin() -> None:
    gc.collect()
    torch.cuda.synchronize()
    memory.empty_cache()
    torch._C._host_emptyCache()
    memory.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()
    memory.reset_peak_host_memory_stats()
    memory.reset_accumulated_host_memory_stats()


def main() -> None:
    warnings.simplefilter("ignore", FutureWarning)
    torch.zeros(1, device="cuda").add_(1).item()
    results: dict[str, Any] = {}
    for name, function in CALLS.items():
        begin()
        try:
            results[name] = function()
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
