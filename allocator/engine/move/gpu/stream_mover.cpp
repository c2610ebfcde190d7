// SPDX-License-Identifier: Apache-2.0
#include "engine/move/gpu/stream_mover.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace tencache {
namespace {

// Of a link that was not measured.
constexpr double kUnknownBytesPerS = 50e9;
// What is ordered is moved in parts of this time of the link, so that room appears steadily.
constexpr double kAtOnceS = 300e-6;
// What was used long ago is done before the oldest of so many.
constexpr size_t kMomentsMax = 64;
// A kernel takes multiprocessors from the program's own, so it has to be this much faster.
constexpr double kKernelGainMin = 1.1;
// How late a thread finds out that the device has caught up, and may wait for it.
constexpr std::chrono::microseconds kAheadPoll{50};

bool is_worth_a_kernel(uint64_t engine_ns, uint64_t kernel_ns) {
  return static_cast<double>(kernel_ns) * kKernelGainMin < static_cast<double>(engine_ns);
}

}  // namespace

StreamMover::StreamMover(CudaHeap& heap, const TiersBelow& below, const DeviceKernels& kernels,
                         Stats& stats)
    : Mover(stats),
      heap_(heap),
      host_(below.host),
      staging_out_(below.staging_out),
      staging_in_(below.staging_in),
      hasher_(kernels.hasher),
      copy_kernel_(kernels.copy),
      spill_(below.disk != nullptr
                 ? std::make_unique<HostSpill>(heap, below.host, *below.disk, fork_latch_, stats)
                 : nullptr),
      direct_(kernels.hasher != nullptr ? below.direct : nullptr) {}

Result<std::unique_ptr<StreamMover>> StreamMover::create(const Gpu& gpu, StreamMarks& marks,
                                                         CudaHeap& heap, const TiersBelow& below,
                                                         const DeviceKernels& kernels,
                                                         Stats& stats) {
  std::unique_ptr<StreamMover> made(new StreamMover(heap, below, kernels, stats));
  for (auto* stream : {&made->out_, &made->proof_, &made->in_on_demand_, &made->in_ahead_}) {
    Result<std::unique_ptr<CopyStream>> created = CopyStream::create(gpu, marks);
    if (!created.is_ok()) return created.status();
    *stream = std::move(created).value();
    // Before the program's streams, so that each gets a bit of its own.
    const StreamSet number = heap.streams().set_of((*stream)->handle());
    TENCACHE_CHECK(StreamNumbers::is_one_stream(number), "the program's streams came first");
  }
  made->out_number_ = heap.streams().set_of(made->out_->handle());
  return made;
}

StreamMover::~StreamMover() { settle(true); }

void StreamMover::wait_while_ahead(StreamSet streams, const std::function<bool()>& is_worth_it) {
  if (!is_worth_it()) return;
  std::vector<StreamMark> marks;
  if (!heap_.streams().mark_all(streams, &marks).is_ok()) return;
  const auto is_ahead = [&marks] {
    return std::ranges::any_of(marks, [](const StreamMark& mark) { return !mark.poll(); });
  };
  while (is_worth_it() && is_ahead()) std::this_thread::sleep_for(kAheadPoll);
}

uint64_t StreamMover::bytes_in(double link_s) const {
  return static_cast<uint64_t>(read_speed_.bytes_per_s(kUnknownBytesPerS) * link_s);
}

// Null when they cannot be marked now, and then are when the order is carried out.
std::shared_ptr<const QueuedWork> StreamMover::queued_work(std::span<const MoveRequest> requests) {
  return mark_users(requests);
}

// Null when they cannot be marked now.
StreamMover::MomentPtr StreamMover::mark_users(std::span<const MoveRequest> requests) {
  const auto moment = std::make_shared<Moment>();
  moment->at = timestamp();
  for (const MoveRequest& request : requests) {
    moment->at = std::min(moment->at, request.given_at);
    moment->streams |= request.extent->used_by.load(std::memory_order_relaxed) & ~out_number_;
  }
  if (!heap_.streams().mark_all(moment->streams, &moment->marks).is_ok()) return nullptr;
  MomentPtr oldest;  // goes when the lock is free
  MutexLock lock(mutex_);
  moments_.push_back(moment);
  if (moments_.size() > kMomentsMax) {
    oldest = std::move(moments_.front());
    moments_.pop_front();
  }
  return moment;
}

uint64_t StreamMover::bytes_at_once() const {
  return std::min(bytes_in(kAtOnceS), Mover::bytes_at_once());
}

void StreamMover::keep_host_free(uint64_t headroom_bytes) {
  if (spill_ != nullptr && headroom_bytes > 0) spill_->keep_free(headroom_bytes);
}

void StreamMover::set_next_uses(const NextUses* next_uses) {
  if (spill_ != nullptr) spill_->set_next_uses(next_uses);
}

void StreamMover::describe_below(Machine* machine) const {
  if (spill_ != nullptr) spill_->describe(machine);
}

Status StreamMover::measure_link(uint64_t bytes) {
  bytes = std::min({bytes, heap_.budget().free() / 2, host_.budget_bytes()});
  bytes = bytes / kGranuleBytes * kGranuleBytes;
  if (bytes == 0) return Status::ok();
  const Result<HostBlock> block = host_.allocate(bytes);
  // Then evictions will say so, should it come to any.
  if (!block.is_ok()) return Status::ok();
  const Result<Allocation> probe = heap_.allocate(bytes, heap_.streams().set_of(out_->handle()));
  Status status = probe.status();
  if (probe.is_ok()) {
    status = choose_copies(reinterpret_cast<CUdeviceptr>(probe.value().address), block.value());
    heap_.free(probe.value().address);
    heap_.empty_cache();  // its frame too: a free one would count as the program's
  }
  host_.release(block.value());
  return status;
}

// Each way twice: the first copy pays for what the driver does once.
Result<StreamMover::LinkTimes> StreamMover::time_copies(CUdeviceptr address,
                                                        const HostBlock& block) {
  LinkTimes times;
  for (int round = 0; round < 2; ++round) {
    const uint64_t begin_ns = now_ns();
    std::optional<StagedCopies> staged;
    Status status = copy_out(block, address);
    const Status out_done = out_->wait_until_idle();
    const uint64_t between_ns = now_ns();
    if (status.is_ok()) status = queue_copy_in(block, address, *in_ahead_, &staged);
    const Status in_done = in_ahead_->wait_until_idle();
    TENCACHE_RETURN_IF_ERROR(status);
    TENCACHE_RETURN_IF_ERROR(out_done);
    TENCACHE_RETURN_IF_ERROR(in_done);
    times = {between_ns - begin_ns, now_ns() - between_ns};
  }
  return times;
}

// A kernel that is refused is not used.
Status StreamMover::choose_copies(CUdeviceptr address, const HostBlock& block) {
  const Result<LinkTimes> by_engines = time_copies(address, block);
  TENCACHE_RETURN_IF_ERROR(by_engines.status());
  LinkTimes best = by_engines.value();
  if (copy_kernel_ != nullptr && block.is_pinned) {
    kernel_out_ = kernel_in_ = copy_kernel_;
    const Result<LinkTimes> by_kernel = time_copies(address, block);
    const LinkTimes times = by_kernel.is_ok() ? by_kernel.value() : LinkTimes{~0ull, ~0ull};
    kernel_out_ = is_worth_a_kernel(best.out_ns, times.out_ns) ? copy_kernel_ : nullptr;
    kernel_in_ = is_worth_a_kernel(best.in_ns, times.in_ns) ? copy_kernel_ : nullptr;
    if (kernel_out_ != nullptr) best.out_ns = times.out_ns;
    if (kernel_in_ != nullptr) best.in_ns = times.in_ns;
  }
  write_speed_.add(block.bytes, best.out_ns);
  read_speed_.add(block.bytes, best.in_ns);
  return Status::ok();
}

}  // namespace tencache
