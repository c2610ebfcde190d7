// SPDX-License-Identifier: Apache-2.0
#include "memory/heap.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"

namespace tencache {
namespace {

// What PyTorch's kernels expect of CPU memory (c10::gAlignment).
constexpr size_t kSmallAlignment = 64;

}  // namespace

Heap::Heap(const HeapConfig& config, AddressArena& arena, ExtentTable& table,
           const PageMap* page_map, DiskTier* disk, Budget& budget, Stats& stats)
    : config_(config),
      arena_(arena),
      table_(table),
      page_map_(page_map),
      disk_(disk),
      budget_(budget),
      stats_(stats),
      small_blocks_(budget),
      granules_(arena.bytes() / kGranuleBytes) {}

Result<Allocation> Heap::allocate(uint64_t bytes) {
  TENCACHE_DCHECK(bytes > 0);
  if (bytes < config_.extent_min_bytes || is_passive_.load(std::memory_order_relaxed)) {
    return allocate_small(bytes);
  }
  const uint64_t rounded = round_up(bytes, kPageBytes);
  if (Extent* extent = pop_cached(rounded)) {
    extent->requested_bytes = bytes;
    extent->id = next_id_.fetch_add(1, std::memory_order_relaxed);
    extent->revive();
    add(stats_.extents_allocated, 1);
    return Allocation{extent->address, extent};
  }
  return allocate_extent_slow(bytes, rounded);
}

void Heap::free(void* address) {
  if (address == nullptr) return;
  if (!arena_.contains(address)) {
    free_small(address);
    return;
  }
  Extent* extent = table_.find(address);
  TENCACHE_CHECK(extent != nullptr && extent->address == address, "free of %p", address);
  if (is_passive_.load(std::memory_order_relaxed)) {
    // A forked child: the pages are its own copies, the bookkeeping is a copy nobody reads.
    madvise(extent->address, extent->bytes, MADV_DONTNEED);
    return;
  }
  for (;;) {
    const uint64_t word = extent->load();
    if (extent->retire()) {
      cache(extent);
      return;
    }
    if (extent->claim_for_free()) {
      free_cold(extent);
      return;
    }
    const ExtentState state = Extent::state_of(word);
    TENCACHE_CHECK(state != ExtentState::kVacant && state != ExtentState::kCached,
                   "double free of %p", address);
    extent->wait_while(word);  // a protected window or a fetch: it ends by itself
  }
}

Result<Allocation> Heap::allocate_small(uint64_t bytes) {
  void* address = nullptr;
  if (posix_memalign(&address, kSmallAlignment, bytes) != 0) {
    return Status(StatusCode::kOutOfMemory,
                  "tencache: the machine is out of memory. Tried to allocate " +
                      format_bytes(bytes) + "; lower the batch size or --device-memory");
  }
  if (is_passive_.load(std::memory_order_relaxed)) return Allocation{address, nullptr};
  const uint64_t usable = malloc_usable_size(address);
  if (const uint64_t more = small_blocks_.add(usable)) {
    Status status = reserve(more, bytes);
    if (!status.is_ok()) {
      small_blocks_.remove(usable);
      ::free(address);
      return status;
    }
    small_blocks_.confirm(more);
  }
  if (budget_.needs_attention()) room_maker_->on_attention();
  return Allocation{address, nullptr};
}

void Heap::free_small(void* address) {
  const uint64_t usable = malloc_usable_size(address);
  ::free(address);
  if (!is_passive_.load(std::memory_order_relaxed)) small_blocks_.remove(usable);
}

Result<Allocation> Heap::allocate_extent_slow(uint64_t requested_bytes, uint64_t bytes) {
  // Refused before anything is evicted for it in vain.
  const uint64_t bytes_max = std::min(config_.request_bytes_max, arena_.bytes());
  if (requested_bytes > bytes_max) return never_fits(requested_bytes, bytes_max);
  drop_old_cached();
  if (Extent* extent = recut_cached(requested_bytes, bytes)) {
    add(stats_.extents_allocated, 1);
    return Allocation{extent->address, extent};
  }
  Status status = reserve(bytes, requested_bytes);
  if (!status.is_ok()) return status;
  Result<Extent*> made = make_extent(requested_bytes, bytes);
  if (!made.is_ok()) {
    // Addresses or mappings ran out, not memory: plain memory serves as well, it just stays put.
    budget_.release(bytes);
    if (!warned_extent_count_.exchange(true)) {
      TENCACHE_LOG_WARNING("%s; further large allocations stay resident",
                           made.status().clause().c_str());
    }
    return allocate_small(requested_bytes);
  }
  if (budget_.needs_attention()) room_maker_->on_attention();
  add(stats_.extents_allocated, 1);
  return Allocation{made.value()->address, made.value()};
}

Result<Extent*> Heap::make_extent(uint64_t requested_bytes, uint64_t bytes) {
  if (extent_count() >= config_.extent_count_max) {
    return Status(StatusCode::kUnavailable,
                  std::to_string(extent_count()) +
                      " extents use up the mappings of this process (vm.max_map_count); raise it "
                      "with sysctl or raise --extent-min");
  }
  const uint64_t granule_count = round_up(bytes, kGranuleBytes) / kGranuleBytes;
  Extent* extent = nullptr;
  {
    MutexLock lock(mutex_);
    const std::optional<uint64_t> granule = granules_.allocate(granule_count);
    if (!granule) {
      return Status(StatusCode::kUnavailable,
                    "the address arena of " + format_bytes(arena_.bytes()) + " is used up");
    }
    if (vacant_.empty()) {
      extent = &pool_.emplace_back();
    } else {
      extent = vacant_.back();
      vacant_.pop_back();
    }
    extent->address = arena_.base() + *granule * kGranuleBytes;
    extent->bytes = bytes;
  }
  Status status = arena_.commit(extent->address, bytes);
  if (!status.is_ok()) {
    MutexLock lock(mutex_);
    granules_.free(static_cast<uint64_t>(extent->address - arena_.base()) / kGranuleBytes,
                   granule_count);
    vacant_.push_back(extent);
    return status;
  }
  extent->id = next_id_.fetch_add(1, std::memory_order_relaxed);
  extent->requested_bytes = requested_bytes;
  extent_count_.fetch_add(1, std::memory_order_relaxed);
  table_.set(extent->address, bytes, extent);
  extent->commit();
  return extent;
}

Status Heap::reserve(uint64_t bytes, uint64_t requested_bytes) {
  if (budget_.try_reserve(bytes)) return Status::ok();
  const uint64_t begin_ns = now_ns();
  Status status = climb(bytes, requested_bytes);
  const uint64_t waited_ns = now_ns() - begin_ns;
  add(stats_.stall_ns, waited_ns);
  room_maker_->on_wait(waited_ns);
  return status;
}

void Heap::reserve_or_exceed(uint64_t bytes) {
  if (budget_.try_reserve(bytes) || climb(bytes, bytes).is_ok()) return;
  count_over_budget(bytes, budget_.force_reserve(bytes));
}

// The rungs: what is cached -> evictions -> evictions also of what no op has named yet -> an error,
// or over the budget.
Status Heap::climb(uint64_t bytes, uint64_t requested_bytes) {
  while (drop_cached(bytes) > 0) {
    if (budget_.try_reserve(bytes)) return Status::ok();
  }
  if (config_.strict) return out_of_memory(requested_bytes, Status::ok());
  Status reason;
  if (room_maker_->make_room(bytes, &reason)) return Status::ok();
  // What other threads have freed since.
  if (drop_cached(bytes) > 0 && budget_.try_reserve(bytes)) return Status::ok();
  // A disk that is full or failing keeps in memory what should leave it. Going on would end in the
  // kernel killing the process, so the program gets an error that it can handle.
  if (!reason.is_ok()) return out_of_memory(requested_bytes, reason);
  if (count_all_as_seen() && room_maker_->make_room(bytes, &reason)) return Status::ok();
  count_over_budget(bytes, budget_.force_reserve(bytes));
  return Status::ok();
}

// Extents from before the hooks were armed are unseen until an op names them. The cold mapping
// keeps whatever may still use them right, so it is better that they leave than to exceed the
// budget. Once is enough: all that come later pass the gate.
bool Heap::count_all_as_seen() {
  if (all_are_seen_.exchange(true)) return false;
  bool found = false;
  for (const ListedExtent& listed : extents()) {
    if (listed.extent->has(kFlagSeen)) continue;
    listed.extent->set_flags(kFlagSeen);
    found = true;
  }
  return found;
}

void Heap::count_over_budget(uint64_t bytes, uint64_t excess_bytes) {
  if (excess_bytes == 0) return;
  add(stats_.over_budget_events, 1);
  raise_to(stats_.over_budget_peak_bytes, excess_bytes);
  if (warned_over_budget_.exchange(true)) return;
  const std::string op = room_maker_->current_op();
  TENCACHE_LOG_WARNING(
      "%s asked for %s, and what it uses at once exceeds the budget of %s by %s (counted as "
      "over_budget); --device-memory %s would hold it",
      op.empty() ? "the program" : op.c_str(), format_bytes(bytes).c_str(),
      format_bytes(budget_.limit()).c_str(), format_bytes(excess_bytes).c_str(),
      option_bytes(budget_.limit() + excess_bytes).c_str());
}

Status Heap::out_of_memory(uint64_t requested_bytes, const Status& reason) const {
  const std::string op = room_maker_->current_op();
  const uint64_t would_do = budget_.used() + round_up(requested_bytes, kPageBytes);
  std::string text = "tencache ran out of memory. Tried to allocate " +
                     format_bytes(requested_bytes) + (op.empty() ? "" : " in " + op) + " with " +
                     format_bytes(budget_.used()) + " of the device budget of " +
                     format_bytes(budget_.limit()) + " in use. ";
  if (reason.is_ok()) {
    text += "Strict mode does not spill; the smallest budget that would do here is " +
            option_bytes(would_do) + ": raise --device-memory or leave out --strict.";
  } else {
    text += "Nothing can be spilled: " + reason.clause() +
            ". The smallest budget that would do here without spilling more is " +
            option_bytes(would_do) + ".";
  }
  return Status(StatusCode::kOutOfMemory, std::move(text));
}

Status Heap::never_fits(uint64_t requested_bytes, uint64_t bytes_max) const {
  const std::string op = room_maker_->current_op();
  return Status(StatusCode::kOutOfMemory,
                "tencache ran out of memory. Tried to allocate " + format_bytes(requested_bytes) +
                    (op.empty() ? "" : " in " + op) + " at once, and this machine holds at most " +
                    format_bytes(bytes_max) + "; make the tensor smaller.");
}

void Heap::free_cold(Extent* extent) {
  if (page_map_ != nullptr) {
    TouchedPages touched;
    if (page_map_->scan(extent->address, extent->bytes, &touched).is_ok()) {
      count_unannounced(touched);
    }
  }
  give_back(extent);
}

void Heap::count_unannounced(const TouchedPages& touched) {
  if (touched.read_count > 0) add(stats_.unannounced_reads, 1);
  if (!touched.written.empty()) add(stats_.unannounced_writes, 1);
}

// Ends the life of an extent that is Vacant and busy: addresses, slot and the object itself.
void Heap::give_back(Extent* extent) {
  table_.set(extent->address, extent->bytes, nullptr);
  Status status = arena_.decommit(extent->address, extent->bytes);
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
  release_slot_of(extent);
  extent->become_vacant();
  extent_count_.fetch_sub(1, std::memory_order_relaxed);
  MutexLock lock(mutex_);
  granules_.free(static_cast<uint64_t>(extent->address - arena_.base()) / kGranuleBytes,
                 round_up(extent->bytes, kGranuleBytes) / kGranuleBytes);
  vacant_.push_back(extent);
}

// REQUIRES: the slot is the caller's (memory/extent.h, invariant 3). An extent without a slot must
// never be presumed equal to one: its next owner may happen to have the same bytes and hash.
Slot Heap::take_slot_of(Extent* extent) {
  extent->slot_is_written.store(false, std::memory_order_relaxed);
  return std::exchange(extent->slot, Slot{});
}

void Heap::release_slot_of(Extent* extent) {
  const Slot slot = take_slot_of(extent);
  if (slot.is_valid()) disk_->release(slot);
}

bool Heap::is_valid() const {
  MutexLock lock(mutex_);
  uint64_t granule_count = 0;
  uint64_t vacant_count = 0;
  uint64_t cached_bytes = 0;
  for (const Extent& extent : pool_) {
    if (extent.state() == ExtentState::kVacant) {
      ++vacant_count;
      continue;
    }
    granule_count += round_up(extent.bytes, kGranuleBytes) / kGranuleBytes;
    if (table_.find(extent.address) != &extent) return false;
    if (table_.find(extent.address + extent.bytes - 1) != &extent) return false;
    const bool is_cached = extent.state() == ExtentState::kCached;
    if (extent.age_hook.linked != is_cached || extent.size_hook.linked != is_cached) return false;
  }
  for (const Extent* extent = cached_by_age_.front(); extent != nullptr;
       extent = AgeList::next(extent)) {
    cached_bytes += extent->bytes;
    const Extent* next = AgeList::next(extent);
    if (next != nullptr && next->retired_at >= extent->retired_at) return false;
  }
  return granules_.is_valid() && granules_.used() == granule_count &&
         vacant_.size() == vacant_count && cached_bytes == cached_bytes_.load();
}

std::vector<ListedExtent> Heap::extents() const {
  MutexLock lock(mutex_);
  std::vector<ListedExtent> extents;
  extents.reserve(pool_.size());
  for (const Extent& extent : pool_) {
    extents.push_back({const_cast<Extent*>(&extent), extent.address, extent.bytes});
  }
  return extents;
}

}  // namespace tencache
