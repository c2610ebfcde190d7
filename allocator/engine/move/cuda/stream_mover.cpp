// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/stream_mover.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"

namespace tencache {
namespace {

// How late a thread finds out that the device has caught up and may be waiting for that thread.
constexpr std::chrono::microseconds kAheadPoll{50};

}  // namespace

Result<CopyStreams> CopyStreams::create(const Gpu& gpu, StreamMarks& marks, StreamNumbers& numbers,
                                        const CopyPause* pause) {
  CopyStreams made;
  for (auto* stream : {&made.out, &made.hash, &made.proof, &made.in_on_demand, &made.in_ahead}) {
    TENCACHE_RETURN_IF_ERROR(CopyStream::create(gpu, marks, pause).move_to(stream));
    const StreamSet number = numbers.set_of((*stream)->handle());
    TENCACHE_CHECK(StreamNumbers::is_one_stream(number), "the program's streams came first");
  }
  made.eviction_numbers = numbers.set_of(made.out->handle()) | numbers.set_of(made.hash->handle());
  return made;
}

StreamMover::StreamMover(CudaHeap& heap, CopyStreams streams, const TiersBelow& below,
                         const DeviceKernels& kernels, Stats& stats)
    : Mover(stats, heap.budget()),
      host_(below.host),
      spill_(below.disk != nullptr ? std::make_unique<HostSpill>(heap, *below.disk, ledger_)
                                   : nullptr),
      ahead_(spill_ != nullptr ? std::make_unique<HostAhead>(*spill_, heap, below.host, fork_latch_)
                               : nullptr),
      streams_(std::move(streams)),
      parts_{heap, streams_, kernels.hasher, spill_.get(), ahead_.get(), ledger_, fork_latch_},
      flights_(parts_),
      link_(parts_, below.staging, kernels.copy),
      blocks_(parts_, below.host, flights_),
      evictions_(parts_, flights_, blocks_, link_),
      fetches_(parts_, flights_, blocks_, link_, below.direct) {}

// Until its own end the heap asks about the streams that have used its memory. The mover's streams
// are gone before that, so this tells the heap that they end.
StreamMover::~StreamMover() {
  flights_.settle(true);
  for (const auto* stream : {&streams_.out, &streams_.hash, &streams_.proof, &streams_.in_on_demand,
                             &streams_.in_ahead}) {
    parts_.heap.streams().end((*stream)->handle());
  }
}

void StreamMover::keep_host_free(uint64_t headroom_bytes) {
  if (ahead_ != nullptr && headroom_bytes > 0) ahead_->start(headroom_bytes);
}

void StreamMover::set_next_uses(const NextUses* next_uses) {
  if (spill_ == nullptr) return;
  spill_->set_next_uses(next_uses);
  ahead_->on_plan();
}

void StreamMover::describe_below(Machine* machine) const {
  if (spill_ == nullptr) return;
  spill_->describe(machine);
  ahead_->describe(machine);
}

Status StreamMover::measure_link(uint64_t bytes) {
  CudaHeap& heap = parts_.heap;
  bytes = std::min({bytes, heap.budget().free() / 2, host_.budget_bytes()});
  bytes = bytes / kGranuleBytes * kGranuleBytes;
  if (bytes == 0) return Status::ok();
  const Result<HostBlock> block = host_.allocate(bytes);
  // Evictions will say that host memory is lacking, should it come to any.
  if (!block.is_ok()) return Status::ok();
  const Result<Allocation> probe =
      heap.allocate(bytes, heap.streams().set_of(streams_.out->handle()));
  Status status = probe.status();
  if (probe.is_ok()) {
    status = link_.measure(reinterpret_cast<CUdeviceptr>(probe.value().address), block.value());
    heap.free(probe.value().address);
    heap.empty_cache();  // its frame too: a free one would count as the program's
  }
  host_.release(block.value());
  return status;
}

EvictionResult StreamMover::evict(std::span<Extent* const> extents) {
  std::vector<MoveRequest> requests;
  requests.reserve(extents.size());
  // A thread may read an extent's size only once it has claimed the extent: until then the extent
  // may be freed, and become another one.
  for (Extent* extent : extents) {
    requests.push_back({extent, extent->id.load(), 0, MoveRequest::kAtAnyTime});
  }
  ListedEvictions source(std::move(requests));
  evictions_.evict(source);
  return source.total();
}

void StreamMover::wait_while_ahead(StreamSet streams, const std::function<bool()>& is_worth_it) {
  if (!is_worth_it()) return;
  std::vector<StreamMark> marks;
  if (!parts_.heap.streams().mark_all(streams, &marks).is_ok()) return;
  const auto is_ahead = [&marks] {
    return std::ranges::any_of(marks, [](const StreamMark& mark) { return !mark.poll(); });
  };
  while (is_worth_it() && is_ahead()) std::this_thread::sleep_for(kAheadPoll);
}

}  // namespace tencache
