// SPDX-License-Identifier: Apache-2.0
//
// CudaHeap's cache: freed extents that keep their frames mapped and wait for reuse, those that wait
// for streams before that, how their frames serve other sizes, and how the cache shrinks.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "base/log.h"
#include "memory/cuda/cuda_heap.h"

namespace tencache {
namespace {

using Clock = std::chrono::steady_clock;

// Memory is scarce when at most this share is left before somebody must make room. That is more
// than the headroom, which is all that is left most of the time where memory is scarce.
constexpr uint64_t kScarcePerBudget = 8;
// Between two marks at most this share of what is allowed is freed, so a thread that wants a frame
// back waits for at most this much more than was freed before it.
constexpr uint64_t kMarksPerAllowed = 256;
// After a frame was wanted, the heap expects that another is wanted within this many frees.
constexpr int64_t kFreesToMark = 1024;
// How long a thread waits for old handles, instead of making new ones, while streams stand still or
// other threads give none back.
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::microseconds kIdlePoll{100};

uint64_t smallest_handle_of(const Frame& frame) {
  uint64_t bytes = ~uint64_t{0};
  for (const FrameHandle& handle : frame.handles) bytes = std::min(bytes, handle.bytes);
  return bytes;
}

}  // namespace

CudaExtent* CudaHeap::pop_cached(Key key) {
  MutexLock lock(mutex_);
  const auto found = cached_by_key_.find(key);
  if (found == cached_by_key_.end()) return nullptr;
  CudaExtent* extent = of_cuda(found->second.front());
  unlink_cached(extent);
  cached_bytes_.fetch_sub(extent->bytes, std::memory_order_relaxed);
  return extent;
}

// Takes over another stream's cached extent; this stream waits, on the device, for all that the
// other one has been given so far. The bit that many streams share cannot be held back, so only an
// extent that the device is done with serves it.
CudaExtent* CudaHeap::adopt_cached(uint64_t bytes, StreamSet stream) {
  const bool can_be_held = StreamNumbers::is_one_stream(stream);
  CudaExtent* extent = nullptr;
  {
    MutexLock lock(mutex_);
    const auto found = cached_by_key_.lower_bound({bytes, kNoStreams});
    if (found == cached_by_key_.end() || found->first.first != bytes) return nullptr;
    extent = of_cuda(found->second.back());  // freed longest ago
    if (!can_be_held && !free_marks_.is_over(extent->owner, extent->free_number)) return nullptr;
    unlink_cached(extent);
  }
  Status status;
  if (can_be_held) {
    // Where many streams share the owner's bit, they have been waited for already.
    const StreamSet owner = extent->owner.load(std::memory_order_relaxed);
    std::vector<StreamMark> marks;
    if (StreamNumbers::is_one_stream(owner)) status = streams_.mark_all(owner, &marks);
    if (status.is_ok()) status = streams_.hold_back(stream, marks);
  }
  MutexLock lock(mutex_);
  if (!status.is_ok()) {
    link_cached(extent);
    return nullptr;
  }
  cached_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  return extent;
}

// Returns the number of this free. REQUIRES: the extent has just become Cached, so it is in no list
// and only this thread has it.
uint64_t CudaHeap::cache(CudaExtent* extent) {
  cached_bytes_.fetch_add(extent->bytes, std::memory_order_relaxed);
  release_spare_copy(extent);
  const uint64_t free_number =
      free_marks_.note_free(extent->owner.load(), extent->bytes, bytes_per_mark());
  extent->free_number = free_number;
  const StreamSet others = others_of(*extent);
  count_freed(extent->requested_bytes.load(), extent->bytes, others);
  if (others != kNoStreams) {
    waiting_bytes_.fetch_add(extent->bytes, std::memory_order_relaxed);
    waiting_.add(extent, {{&streams_, others}});
    return free_number;
  }
  MutexLock lock(mutex_);
  link_cached(extent);
  return free_number;
}

bool CudaHeap::is_scarce() const { return budget_.is_scarce(budget_.limit() / kScarcePerBudget); }

uint64_t CudaHeap::bytes_per_mark() {
  const bool are_wanted = frees_to_mark_.load(std::memory_order_relaxed) > 0;
  if (are_wanted) frees_to_mark_.fetch_sub(1, std::memory_order_relaxed);
  if (!are_wanted && !is_scarce()) return FreeMarks::kNoMark;
  return std::max(allowed_bytes() / kMarksPerAllowed, granularity_);
}

StreamSet CudaHeap::others_of(const CudaExtent& extent) {
  const StreamSet used_by = extent.used_by.load(std::memory_order_relaxed);
  const StreamSet owner = extent.owner.load(std::memory_order_relaxed);
  return StreamNumbers::is_one_stream(owner) ? used_by & ~owner : used_by;
}

void CudaHeap::link_cached(CudaExtent* extent) {
  extent->is_in_runs = false;
  cached_by_age_.push_front(extent);
  cached_by_key_[key_of(*extent)].push_front(extent);
  cached_by_address_[extent->address] = extent;
}

void CudaHeap::unlink_cached(CudaExtent* extent) {
  cached_by_age_.remove(extent);
  const auto found = cached_by_key_.find(key_of(*extent));
  found->second.remove(extent);
  if (found->second.is_empty()) cached_by_key_.erase(found);
  cached_by_address_.erase(extent->address);
  if (extent->is_in_runs) runs_of(*extent).take(extent->address, extent->bytes);
}

bool CudaHeap::poll_waiting(Patience patience) {
  return waiting_.poll(patience, [this](const std::vector<CudaExtent*>& over) {
    for (CudaExtent* extent : over) {
      release_spare_copy(extent);
      note_completed(extent->device_address(), extent->requested_bytes.load());
      count_done(extent->requested_bytes.load(), extent->bytes);
      waiting_bytes_.fetch_sub(extent->bytes, std::memory_order_relaxed);
    }
    MutexLock lock(mutex_);
    for (CudaExtent* extent : over) link_cached(extent);
  });
}

// Cached extents that the device is done with give up their handles, until free ones make up a
// frame. Extents whose handles are all too large for it stay. The rest stay, too, once a round
// leaves no less missing than before.
void CudaHeap::gather_handles(uint64_t bytes) {
  uint64_t missing_bytes = frames_.missing(bytes);
  if (missing_bytes == 0 || !has_cached()) return;
  frees_to_mark_.store(kFreesToMark, std::memory_order_relaxed);
  free_marks_.poll();
  while (destroy(take_oldest(missing_bytes, kNoStreams, bytes)) > 0) {
    const uint64_t missing_before = std::exchange(missing_bytes, frames_.missing(bytes));
    if (missing_bytes == 0 || missing_bytes >= missing_before) return;
  }
}

bool CudaHeap::has_cached() const {
  MutexLock lock(mutex_);
  return !cached_by_age_.is_empty();
}

// Waits until another thread has destroyed cached extents. Returns false when no thread is about
// to, or none does within a second: the other may wait for a stream that needs this thread to go
// on.
bool CudaHeap::await_leaving() {
  const auto deadline = Clock::now() + kPatience;
  MutexLock lock(mutex_);
  const uint64_t count_before = destroyed_count_;
  while (leaving_count_ > stuck_count_ && destroyed_count_ == count_before) {
    has_left_.wait_for(mutex_, deadline - Clock::now());
    if (Clock::now() >= deadline) stuck_count_ = leaving_count_;
  }
  return destroyed_count_ != count_before;
}

// Waits until the device is done with some of what other streams have freed so far, and drops it.
// Gives up on streams that stand still, until they are seen to go on: one may need this thread to
// do so. Returns false when nothing was dropped.
bool CudaHeap::await_idle(uint64_t bytes, StreamSet stream) {
  if (bytes == 0) return false;
  std::map<StreamSet, FreeMarks::Line> others = lines_of_others(stream);
  auto deadline = Clock::now() + kPatience;
  while (!others.empty() && Clock::now() < deadline) {
    if (drop_idle_cached(bytes) > 0) return true;
    std::this_thread::sleep_for(kIdlePoll);
    for (auto other = others.begin(); other != others.end();) {
      auto& [owner, line] = *other;
      const uint64_t over = free_marks_.line(owner).over;
      if (std::exchange(line.over, over) != over) deadline = Clock::now() + kPatience;
      other = over >= line.freed ? others.erase(other) : std::next(other);
    }
  }
  MutexLock lock(mutex_);
  for (const auto& [owner, line] : others) stood_still_[owner] = line.over;
  return false;
}

// The lines of other streams that have freed what is cached, and are not known to stand still.
std::map<StreamSet, FreeMarks::Line> CudaHeap::lines_of_others(StreamSet stream) const {
  std::map<StreamSet, FreeMarks::Line> lines;
  MutexLock lock(mutex_);
  for (Extent* extent = cached_by_age_.back(); extent != nullptr;
       extent = AgeList::previous(extent)) {
    const StreamSet owner = of_cuda(extent)->owner.load(std::memory_order_relaxed);
    if ((owner & stream) != 0 || lines.contains(owner) || !may_leave(*extent)) continue;
    const FreeMarks::Line line = free_marks_.line(owner);
    const auto still = stood_still_.find(owner);
    if (still == stood_still_.end() || still->second != line.over) lines.emplace(owner, line);
  }
  return lines;
}

// Memory that the program has not needed for a while goes back to the driver. `free_number` counts
// the frees of extents so far.
void CudaHeap::shrink_now_and_then(uint64_t free_number) {
  if (free_number % LivePeak::kFreesPerLook != 0) return;
  look_at_time(free_number);
  const uint64_t held_bytes = frames_.bytes();
  const uint64_t allowed = bytes_worth_holding();
  if (held_bytes <= allowed) return;
  uint64_t excess_bytes = held_bytes - allowed;
  excess_bytes -= std::min(excess_bytes, frames_.trim(excess_bytes));
  if (excess_bytes > 0 && drop_idle_cached(excess_bytes) > 0) frames_.trim(excess_bytes);
}

uint64_t CudaHeap::drop_idle_cached(uint64_t bytes) {
  poll_waiting(Patience::kNone);
  free_marks_.poll();
  return destroy(take_oldest(bytes, kNoStreams));
}

uint64_t CudaHeap::drop_cached_of(uint64_t bytes, StreamSet streams) {
  uint64_t dropped_bytes = drop_idle_cached(bytes);
  // Little is not worth a wait, because tensors have to leave all the same.
  if (dropped_bytes < bytes && cached_bytes_of(streams) >= (bytes - dropped_bytes) / 2) {
    dropped_bytes += destroy(take_oldest(bytes - dropped_bytes, streams));
  }
  if (dropped_bytes < bytes) dropped_bytes += drop_idle_segments(bytes - dropped_bytes);
  return dropped_bytes;
}

uint64_t CudaHeap::cached_bytes_of(StreamSet owners) const {
  uint64_t bytes = 0;
  MutexLock lock(mutex_);
  for (Extent* extent = cached_by_age_.back(); owners != kNoStreams && extent != nullptr;
       extent = AgeList::previous(extent)) {
    const StreamSet owner = of_cuda(extent)->owner.load(std::memory_order_relaxed);
    if ((owner & owners) != 0 && may_leave(*extent)) bytes += extent->bytes;
  }
  return bytes;
}

uint64_t CudaHeap::drop_idle_segments(uint64_t bytes) { return small_blocks_->trim_idle(bytes); }

uint64_t CudaHeap::empty_cache() {
  drop_cached(~uint64_t{0});
  return frames_.trim(~uint64_t{0});
}

bool CudaHeap::drop_private_pool(uint64_t number) {
  const PrivatePools::Dropped dropped = private_pools_->drop(number);
  frames_.trim(dropped.bytes);
  return dropped.is_gone;
}

void CudaHeap::set_limit(uint64_t bytes, bool is_bounded) {
  set_bounded(is_bounded);
  budget_.set_limit(bytes);
  const uint64_t used_bytes = budget_.used();
  if (used_bytes > bytes) drop_cached(used_bytes - bytes);
  frames_.set_limit(bytes);
}

uint64_t CudaHeap::drop_cached(uint64_t bytes) {
  uint64_t dropped_bytes = drop_cached_of(bytes, kNoStreams);
  StreamSet tried = kNoStreams;
  while (dropped_bytes < bytes) {
    const StreamSet owner = oldest_owner(tried);
    if (owner != kNoStreams) {
      tried |= owner;
      dropped_bytes += destroy(take_oldest(bytes - dropped_bytes, owner));
    } else if (poll_waiting(Patience::kForOneStream)) {
      tried = kNoStreams;
    } else {
      break;
    }
  }
  if (dropped_bytes < bytes) dropped_bytes += small_blocks_->trim(bytes - dropped_bytes);
  return dropped_bytes;
}

// The owner of what has been cached longest, of those that were not tried, or kNoStreams when there
// is none.
StreamSet CudaHeap::oldest_owner(StreamSet tried) const {
  MutexLock lock(mutex_);
  for (Extent* extent = cached_by_age_.back(); extent != nullptr;
       extent = AgeList::previous(extent)) {
    const StreamSet owner = of_cuda(extent)->owner.load(std::memory_order_relaxed);
    if ((owner & tried) == 0) return owner;
  }
  return kNoStreams;
}

// An extent may not leave while an op pins it or an eviction still reads its bytes.
bool CudaHeap::may_leave(const Extent& extent) {
  const uint64_t word = extent.load();
  return Extent::pins_of(word) == 0 && (word & kFlagBusy) == 0;
}

// Takes cached extents, oldest first, until they make up `bytes`: those that the device is done
// with, or that only work of the `awaited` streams may still use. Each has a handle of at most
// `handle_bytes_max`. They are in no list then.
std::vector<CudaExtent*> CudaHeap::take_oldest(uint64_t bytes, StreamSet awaited,
                                               uint64_t handle_bytes_max) {
  std::vector<CudaExtent*> taken;
  MutexLock lock(mutex_);
  uint64_t taken_bytes = 0;
  Extent* next = nullptr;
  for (Extent* extent = cached_by_age_.back(); extent != nullptr && taken_bytes < bytes;
       extent = next) {
    next = AgeList::previous(extent);
    if (!may_leave(*extent)) continue;
    const CudaExtent* cuda = of_cuda(extent);
    const StreamSet owner = cuda->owner.load(std::memory_order_relaxed);
    if ((owner & awaited) == 0 && !free_marks_.is_over(owner, cuda->free_number)) continue;
    if (smallest_handle_of(cuda->frame) > handle_bytes_max) continue;
    unlink_cached(of_cuda(extent));
    taken.push_back(of_cuda(extent));
    taken_bytes += extent->bytes;
  }
  leaving_count_ += taken.size();
  return taken;
}

// Gives the frames back once the device is done with them. Returns their bytes. Extents that cannot
// go yet, for instance because a stream captures a graph, are cached again.
uint64_t CudaHeap::destroy(const std::vector<CudaExtent*>& extents) {
  if (extents.empty()) return 0;
  uint64_t destroyed_bytes = 0;
  uint64_t destroyed_count = 0;
  for (CudaExtent* extent : extents) {
    const uint64_t bytes = extent->bytes;
    if (free_marks_.wait(extent->owner, extent->free_number) && extent->claim_for_trim()) {
      const Status status = take_away_frame(extent);
      if (status.is_ok()) {
        // In this order the bytes never count as live.
        budget_.release(bytes);
        cached_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
        give_back_addresses(extent);
        destroyed_bytes += bytes;
        ++destroyed_count;
        continue;
      }
      // The context is broken, so nothing that is done with it matters any more.
      TENCACHE_LOG_WARNING("%s", status.message().c_str());
      extent->cancel_trim();
    }
    MutexLock lock(mutex_);
    link_cached(extent);
  }
  MutexLock lock(mutex_);
  leaving_count_ -= extents.size();
  stuck_count_ = std::min(stuck_count_, leaving_count_);
  destroyed_count_ += destroyed_count;
  has_left_.notify_all();
  return destroyed_bytes;
}

}  // namespace tencache
