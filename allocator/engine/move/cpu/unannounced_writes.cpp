// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cpu/unannounced_writes.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/service_thread.h"
#include "base/units.h"
#include "memory/budget.h"

namespace tencache {
namespace {

// Growth below this share of the budget is nobody's concern.
constexpr uint64_t kGrowthShare = 128;
// After a look the thread rests this many times as long as the look took.
constexpr uint64_t kRestFactor = 4;
constexpr uint64_t kRestFactorInVain = 20;
// As long as the program writes, the thread wakes this often.
constexpr std::chrono::milliseconds kIntervalInWrites{1};
// This share of the budget is reserved meanwhile, for what is written between two looks.
constexpr uint64_t kReserveShare = 12;
// No program writes to cold pages faster: each takes a fault, a read and a copy.
constexpr uint64_t kWrittenBytesPerSecondMax = 2 * kGiB;
// The thread wakes at least once in this many of the shortest intervals.
constexpr int kIntervalsMax = 4;

// Each wake takes a core from the program for some 20 us. So a thread that finds nothing sleeps for
// as long as it takes to write half of the headroom.
std::chrono::milliseconds quiet_interval(std::chrono::milliseconds shortest, const Budget& budget) {
  const uint64_t bytes = headroom_of(budget.limit()) / 2;
  const std::chrono::milliseconds written_in(bytes * 1000 / kWrittenBytesPerSecondMax);
  return std::clamp(written_in, shortest, kIntervalsMax * shortest);
}

}  // namespace

struct UnannouncedWrites::Written {
  Extent* extent = nullptr;
  uint64_t extent_bytes = 0;
  uint64_t written_bytes = 0;
  bool is_growing = false;

  double share() const {
    return static_cast<double>(written_bytes) / static_cast<double>(extent_bytes);
  }
  // Extents that give room for little disk traffic come first.
  bool operator<(const Written& other) const {
    if (is_growing != other.is_growing) return other.is_growing;
    return share() > other.share();
  }
};

UnannouncedWrites::UnannouncedWrites(CpuHeap& heap, const PageMap& page_map, SlotFetches& fetches,
                                     SlotEvictions& evictions, std::chrono::milliseconds interval)
    : heap_(heap),
      page_map_(page_map),
      fetches_(fetches),
      evictions_(evictions),
      interval_(interval) {
  (void)ProcessMemory::open().move_to(&memory_);
}

void UnannouncedWrites::start() {
  MutexLock lock(mutex_);
  if (is_started_.exchange(true) || is_stopping_) return;
  if (interval_.count() == 0 || memory_ == nullptr) return;
  try {
    thread_ = start_service_thread("tencache-look", [this] { work(); });
  } catch (const std::system_error& error) {
    TENCACHE_LOG_WARNING("what is written to cold tensors outside of ops is not counted: %s",
                         error.what());
  }
}

void UnannouncedWrites::stop() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    stopping_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  keep_reserve(false);
}

void UnannouncedWrites::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      const bool is_writing = quiet_waits_ < kQuietWaitsMax;
      const std::chrono::milliseconds interval =
          is_writing ? kIntervalInWrites : quiet_interval(interval_, heap_.budget());
      if (!is_stopping_) stopping_.wait_for(mutex_, interval);
      if (is_stopping_) return;
    }
    quiet_waits_ = std::min(quiet_waits_ + 1, kQuietWaitsMax);
    keep_reserve(quiet_waits_ < kQuietWaitsMax);
    if (!has_grown()) continue;
    const uint64_t begin_ns = now_ns();
    const bool has_found = count();
    if (has_found) quiet_waits_ = 0;
    set_pace(has_found);
    const uint64_t end_ns = now_ns();
    rest_until_ns_ = end_ns + (has_found ? kRestFactor : kRestFactorInVain) * (end_ns - begin_ns);
    unexplained_least_ = ~uint64_t{0};
  }
}

// Whether to look through the extents. Either the process holds more anonymous memory than before,
// of which the budget knows nothing, or the last look found writes going on.
bool UnannouncedWrites::has_grown() {
  const uint64_t anonymous_bytes = memory_->anonymous_bytes();
  const uint64_t used_bytes = heap_.budget().used();
  const uint64_t unexplained = anonymous_bytes - std::min(anonymous_bytes, used_bytes);
  unexplained_least_ = std::min(unexplained_least_, unexplained);
  if (now_ns() < rest_until_ns_) return false;
  if (reads_singly_) return true;
  MutexLock lock(mutex_);
  return !growing_.empty() ||
         unexplained - unexplained_least_ >= heap_.budget().limit() / kGrowthShare;
}

// The reserve grows as far as there is room. Passes make more room, since it counts as use.
void UnannouncedWrites::keep_reserve(bool is_writing) {
  Budget& budget = heap_.budget();
  if (!is_writing) {
    budget.release(std::exchange(reserve_bytes_, 0));
    return;
  }
  const uint64_t wanted_bytes = budget.limit() / kReserveShare;
  if (reserve_bytes_ >= wanted_bytes || budget.free() > 2 * wanted_bytes) return;
  const uint64_t more_bytes =
      std::min(wanted_bytes - reserve_bytes_, headroom_of(budget.limit()) / 4);
  if (budget.try_reserve(more_bytes)) reserve_bytes_ += more_bytes;
  if (budget.needs_attention()) heap_.call_attention();
}

// Sets the pace (Note [Pace of unannounced writes]). The slow one ends when a pass has made all of
// the headroom free, or when the writes have ended.
void UnannouncedWrites::set_pace(bool has_found) {
  const Budget& budget = heap_.budget();
  const uint64_t headroom_bytes = headroom_of(budget.limit());
  const uint64_t cached_bytes = heap_.can_use_any_cached() ? heap_.cached_bytes() : 0;
  const uint64_t enough_bytes = reads_singly_ ? headroom_bytes : headroom_bytes / 4 * 3;
  const bool is_short =
      budget.used() > budget.limit() || budget.free() + cached_bytes < enough_bytes;
  const bool goes_on = has_found || (reads_singly_ && quiet_waits_ < kQuietWaitsMax);
  const bool singly = is_short && goes_on;
  if (!singly && !reads_singly_) return;
  reads_singly_ = singly;
  for (const ListedExtent& listed : heap_.extents()) {
    if (listed.extent->state() != ExtentState::kCold) continue;
    heap_.arena().read_singly(const_cast<char*>(listed.address), listed.bytes, singly);
  }
}

bool UnannouncedWrites::count() {
  bool has_found = false;
  std::unordered_set<const Extent*> growing;
  for (const ListedExtent& listed : heap_.extents()) {
    Extent* extent = listed.extent;
    const uint64_t before = extent->unannounced_bytes.load(std::memory_order_relaxed);
    if (!seems_written(listed, before)) continue;
    const std::optional<uint64_t> written_bytes = fetches_.count_written(extent);
    if (!written_bytes || *written_bytes <= before) continue;
    has_found = true;
    if (*written_bytes < listed.bytes) growing.insert(extent);
  }
  {
    MutexLock lock(mutex_);
    growing_ = std::move(growing);
  }
  if (heap_.budget().needs_attention()) heap_.call_attention();
  return has_found;
}

// The answer is a guess: the extent may come back meanwhile, and then every page is private and
// seems written.
bool UnannouncedWrites::seems_written(const ListedExtent& listed, uint64_t before) const {
  // An extent that was written as a whole stays so until it is no longer cold.
  if (listed.extent->state() != ExtentState::kCold || before == listed.bytes) return false;
  TouchedPages touched;
  if (!page_map_.scan(listed.address, listed.bytes, &touched).is_ok()) return false;
  return touched.written.size() * kPageBytes != before;
}

std::vector<UnannouncedWrites::Written> UnannouncedWrites::written_extents(bool takes_all) {
  std::vector<Written> written;
  if (heap_.unannounced_bytes() == 0) return written;
  const std::vector<ListedExtent> extents = heap_.extents();
  MutexLock lock(mutex_);
  for (const ListedExtent& listed : extents) {
    const uint64_t bytes = listed.extent->unannounced_bytes.load(std::memory_order_relaxed);
    const bool is_cold =
        listed.extent->state() == ExtentState::kCold || fetches_.is_counted(listed.extent);
    if (bytes == 0 || !is_cold) continue;
    const bool is_growing = growing_.contains(listed.extent);
    if (!takes_all && (is_growing || bytes < listed.bytes / 2)) continue;
    written.push_back({listed.extent, listed.bytes, bytes, is_growing});
  }
  std::ranges::sort(written, std::less<>());
  return written;
}

EvictionResult UnannouncedWrites::evict_again(uint64_t bytes, bool takes_all) {
  EvictionResult total;
  const uint64_t batch_bytes_max = std::min(headroom_of(heap_.budget().limit()), kBytesAtOnceMax);
  std::vector<Written> batch;
  uint64_t batch_bytes = 0;
  uint64_t batch_written_bytes = 0;
  for (const Written& written : written_extents(takes_all)) {
    if (total.bytes + batch_written_bytes >= bytes) break;
    const bool is_whole = written.written_bytes == written.extent_bytes;
    const uint64_t bytes_max = is_whole ? kBytesAtOnceMax : batch_bytes_max;
    // While a large extent that was written in part is merged, it takes room for all of its bytes,
    // which is more than its written pages give back.
    const bool is_large = !is_whole && written.extent_bytes > batch_bytes_max;
    if (is_large && !heap_.may_have_room(written.extent_bytes)) continue;
    if (!batch.empty() && batch_bytes + written.extent_bytes > bytes_max) {
      total.add(evict_batch(std::exchange(batch, {})));
      batch_bytes = batch_written_bytes = 0;
    }
    batch.push_back(written);
    batch_bytes += written.extent_bytes;
    batch_written_bytes += written.written_bytes;
  }
  total.add(evict_batch(batch));
  return total;
}

// Fetches a batch and evicts it again. For a moment, what has to be merged is in memory twice. Only
// pages that were written become free.
EvictionResult UnannouncedWrites::evict_batch(const std::vector<Written>& batch) {
  if (batch.empty()) return {};
  std::vector<Extent*> extents;
  extents.reserve(batch.size());
  for (const Written& written : batch) extents.push_back(written.extent);
  fetches_.fetch_to_evict(extents);
  EvictionResult result = evictions_.evict(extents);
  result.bytes = 0;
  for (const Written& written : batch) {
    const uint64_t left_bytes = written.extent->unannounced_bytes.load(std::memory_order_relaxed);
    if (written.extent->state() != ExtentState::kCold) continue;
    result.bytes += written.written_bytes - std::min(written.written_bytes, left_bytes);
  }
  return result;
}

}  // namespace tencache
