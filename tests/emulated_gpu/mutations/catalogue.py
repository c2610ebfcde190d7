# SPDX-License-Identifier: Apache-2.0
"""The mutations: one-line mistakes of the kind that tencache must not make.

Each is a text that occurs exactly once in one source, its replacement, the program that notices it
(programs.py) and how. A mistake that two checks of tencache stop is not listed: it changes no
outcome. This is plain data, which needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

How = Literal["wrong bits", "illegal address", "failed test", "destroyed stream"]


@dataclass(frozen=True)
class Run:
    """The options of `tencache run` for a program."""

    device_memory: str = "80MiB"
    options: tuple[str, ...] = ()
    gpus: int = 1
    # Bytes a second; copies must take long enough to be overtaken.
    link: str = "2GB"


@dataclass(frozen=True)
class Mutation:
    name: str
    source: str  # from the repository's root; not a header, so that one object is compiled
    before: str
    after: str
    noticed_by: str  # a program
    how: tuple[How, ...] = ("wrong bits", "illegal address")


# The guard sees by itself what no operator has announced, and would hide the mistake.
UNGUARDED = Run(options=("--no-launch-guard",))
# Everything fits: the gate watches no ops, and knows only the streams it is told.
ROOMY = Run(device_memory="1GiB")

RUNS: dict[str, Run] = {
    "in_turn": Run(),
    "all_at_once": Run(link="200MB"),
    "lists": UNGUARDED,
    "large_result": UNGUARDED,
    "unannounced": Run(),
    "unseen_writes": UNGUARDED,
    "recorded": ROOMY,
    "adopted": ROOMY,
    "emptied_cache": ROOMY,
    "graph": Run("96MiB", UNGUARDED.options),
    "guarded_graph": Run("96MiB"),
    "captured_meanwhile": Run(),
    "pinned": Run(),
    "together": Run(),
    "behind": Run(),
    "behind_elsewhere": UNGUARDED,
    "fetched_elsewhere": Run(),
    "refused_calls": Run(),
    "destroyed": Run(),
    "second_gpu": Run(gpus=2),
    "beside": Run(),
}

EVICTIONS = "allocator/engine/move/cuda/stream_evictions.cpp"
EVICTIONS_END = "allocator/engine/move/cuda/stream_evictions_end.cpp"
MOMENTS = "allocator/engine/move/cuda/moments.cpp"
FETCHES = "allocator/engine/move/cuda/stream_fetches.cpp"
FLIGHTS = "allocator/engine/move/cuda/flights.cpp"
COPY_STREAM = "allocator/platform/cuda/copy_stream.cpp"

MUTATIONS = [
    Mutation(
        "an eviction does not wait for its users",
        EVICTIONS,
        "  if (let_wait(stream, evictions).is_ok()) return;\n",
        "  return;\n",
        "behind",
        # The second hash differs from the first, so nothing leaves and the budget is exceeded.
        ("wrong bits", "illegal address", "failed test"),
    ),
    Mutation(
        "an eviction waits for a moment before the last use",
        MOMENTS,
        "    if (moment->covers(extent, users)) return moment;\n",
        "    return moment;\n",
        "behind",
    ),
    Mutation(
        "the gate does not note an operator's stream",
        "allocator/engine/gate/gate.cpp",
        "    extent->note_streams(streams);\n    const bool writes",
        "    const bool writes",
        "behind_elsewhere",
    ),
    Mutation(
        "a frame goes while its copy is on its way out",
        EVICTIONS_END,
        "    const Status done = eviction.done.wait();\n",
        "    const Status done;\n",
        "all_at_once",
    ),
    Mutation(
        "a stale hash is taken for clean",
        EVICTIONS_END,
        "eviction.before->value() : eviction.extent->copy_hash",
        "eviction.before->value() : eviction.after->value()",
        "unseen_writes",
    ),
    Mutation(
        "an op does not wait for what is fetched",
        FLIGHTS,
        "      parts_.heap.streams().hold_back(streams, std::span(&flight.mark, 1)).is_ok()) {\n",
        "      flight.stream != kNoStreams) {\n",
        "in_turn",
    ),
    Mutation(
        "a fetch is taken for landed while it is under way",
        FLIGHTS,
        "    if (!flight->mark.poll()) continue;\n",
        "",
        "fetched_elsewhere",
        ("wrong bits",),
    ),
    Mutation(
        "a fetch is queued on another stream than the one that is marked",
        FETCHES,
        "  if (status.is_ok()) status = stream.mark().move_to(mark);\n",
        "  if (status.is_ok()) status = parts_.streams.in_ahead->mark().move_to(mark);\n",
        "in_turn",
    ),
    Mutation(
        "fetches do not ask for room",
        FETCHES,
        "  if (parts_.heap.budget().try_reserve(bytes)) return extents.size();\n",
        "  parts_.heap.budget().force_reserve(bytes);\n  return extents.size();\n",
        "in_turn",
        ("failed test",),
    ),
    Mutation(
        "a copy to the GPU is short by a page",
        COPY_STREAM,
        "driver.cuMemcpyHtoDAsync(device, host, bytes, stream_)",
        "driver.cuMemcpyHtoDAsync(device, host, bytes - 4096, stream_)",
        "in_turn",
    ),
    Mutation(
        "a stream for copies waits for the NULL stream",
        COPY_STREAM,
        "cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, kHighestPriority)",
        "cuStreamCreateWithPriority(&stream, CU_STREAM_DEFAULT, kHighestPriority)",
        "beside",
        ("failed test",),
    ),
    Mutation(
        "another GPU than the memory's gets access to it",
        "allocator/platform/cuda/device_arena.cpp",
        "  access.location.id = device;\n",
        "  access.location.id = 0;\n",
        "second_gpu",
        ("failed test",),
    ),
    Mutation(
        "an eviction copies in the wrong direction",
        COPY_STREAM,
        "driver.cuMemcpyDtoHAsync(static_cast<char*>(host) + done, device + done, piece, stream_)",
        "driver.cuMemcpyHtoDAsync(device + done, static_cast<char*>(host) + done, piece, stream_)",
        "in_turn",
    ),
    Mutation(
        "a refused copy is taken for queued",
        COPY_STREAM,
        "return driver.cuMemcpyHtoDAsync(device, host, bytes, stream_);\n",
        "driver.cuMemcpyHtoDAsync(device, host, bytes, stream_);\n"
        "                     return CUDA_SUCCESS;\n",
        "refused_calls",
    ),
    Mutation(
        "the pins of an op end before it has queued its work",
        "allocator/engine/gate/gate.cpp",
        "    fetch_slow(thread, first_pin, streams, is_foreseen || is_chunk);\n  }\n",
        "    fetch_slow(thread, first_pin, streams, is_foreseen || is_chunk);\n  }\n"
        "  unpin_down_to(thread.pins, first_pin, now);\n",
        "large_result",
    ),
    Mutation(
        "what an op brings along in a list is not announced",
        "shim/tensor_walk.cpp",
        "      add_value(value, mode_in_call(argument, arguments), accesses);\n",
        "      continue;\n",
        "lists",
        ("wrong bits", "illegal address", "failed test"),
    ),
    Mutation(
        "the guard lets a launch pass that nobody announced",
        "guard/driver_functions.cpp",
        "  const uint32_t begun = work.begin(*hooks, is_per_thread);\n",
        "  const uint32_t begun = 0;\n",
        "unannounced",
    ),
    Mutation(
        "the guard does not tell that a stream is destroyed",
        "guard/driver_functions.cpp",
        "  if (hooks != nullptr) hooks->on_stream_end(stream);\n",
        "  (void)hooks;\n",
        "destroyed",
        ("destroyed stream",),
    ),
    Mutation(
        "a new stream with the handle of a destroyed one is taken for that one",
        "allocator/platform/cuda/stream_numbers.cpp",
        "  let_follow(stream, last);\n",
        "  (void)stream;\n",
        "destroyed",
        ("wrong bits",),
    ),
    Mutation(
        "record_stream is ignored for small blocks",
        "allocator/memory/cuda/block_pool.cpp",
        "  block->users |= streams;\n",
        "  (void)streams;\n",
        "recorded",
    ),
    Mutation(
        "record_stream is ignored for extents",
        "allocator/memory/cuda/cuda_heap.cpp",
        "    extent->note_streams(streams);\n",
        "",
        "recorded",
    ),
    Mutation(
        "memory that another stream has freed is used without waiting for it",
        "allocator/memory/cuda/cuda_heap_cache.cpp",
        "    if (status.is_ok()) status = streams_.hold_back(stream, marks);\n",
        "",
        "adopted",
    ),
    Mutation(
        "freed memory is given back before its last kernel has run",
        "allocator/memory/cuda/cuda_heap_cache.cpp",
        "free_marks_.wait(extent->owner, extent->free_number) && extent->claim_for_trim()",
        "extent->claim_for_trim()",
        "emptied_cache",
    ),
    Mutation(
        "a graph's tensors may leave",
        "allocator/abi/engines.cpp",
        "engine.gate().keep_resident(accesses));\n  }\n  engine.open_op",
        "uint64_t{0});\n  }\n  engine.open_op",
        "graph",
    ),
    Mutation(
        "a graph's tensors may leave, under the guard",
        "allocator/abi/engines.cpp",
        "engine.gate().keep_resident(accesses));\n  }\n  engine.open_op",
        "uint64_t{0});\n  }\n  engine.open_op",
        "guarded_graph",
    ),
    Mutation(
        "the driver is called without regard to captures",
        "allocator/platform/cuda/call_scope.cpp",
        "driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);\n  // This call",
        "CUDA_SUCCESS;\n  // This call",
        "captured_meanwhile",
        ("failed test",),
    ),
    Mutation(
        "pinned memory is used again while a copy from it is queued",
        "allocator/memory/cuda/pinned_pool.cpp",
        "    uses.push_back({&gpu, streams});\n",
        "    (void)streams;\n",
        "pinned",
    ),
]
