// SPDX-License-Identifier: Apache-2.0
//
// CpuHeap's frames: how pages of freed extents come under other addresses.
//
// Note [Pages are moved, not cleared]: the kernel must clear a page that was given back to it and
// is asked for again. That costs more than anything else in a move (200 us and more for 2 MiB), and
// a program that computes on all processors pays for it. To move 2 MiB of pages to another address
// takes 5 to 15 us, whatever they hold. So a fetch gets the pages of the extents that were freed
// longest ago. So does an allocation of any size, unless a cached extent has that size or a run it
// can be cut from (memory/cpu_heap_cuts.cpp). The kernel is asked for fresh ones only where these
// do not suffice, so sizes that change cost no more memory than the program has at once.
//
// Granules, which are huge pages as a rule, stay whole: they go where granules are wanted. The part
// behind the last granule, the tail, becomes a tail or the end of one. The rest of a donor stays in
// the cache, at its place. Pages come granule by granule, each perhaps from another donor. They
// remain separate mappings, because the kernel joins only what was made side by side. So later
// moves go granule by granule, too (invariant 3 of memory/cpu_heap.h), and the number of such
// mappings is limited.
//
// A program that repeats itself soon asks for the same sizes again. A donor that only gave its tail
// would fit no more; the request that misses it would break the next one, and so on for dozens of
// steps. So while there is plenty of room, a tail comes from a donor that gives granules as well,
// or has been broken before. Otherwise the kernel gives the tail, and bound_cache() drops as much
// of the oldest extent.
#include <algorithm>
#include <utility>

#include "base/units.h"
#include "memory/cpu_heap.h"
#include "memory/move_in_parts.h"

namespace tencache {
namespace {

// Unsuitable donors are passed over, but at most this many are looked at.
constexpr int kDonorsLookedAtMax = 256;

// Room is plentiful while this part of the budget is free.
constexpr uint64_t kPlentifulShare = 8;

constexpr uint64_t tail_of(uint64_t bytes) { return bytes % kGranuleBytes; }
constexpr uint64_t without_tail(uint64_t bytes) { return bytes - tail_of(bytes); }

/// Pages on their way from one address to another.
struct Run {
  char* from = nullptr;
  char* to = nullptr;
  uint64_t bytes = 0;

  bool continues(const Run& other) const {
    return from == other.from + other.bytes && to == other.to + other.bytes;
  }
};

/// Returns in how many parts the move was tried. Where the kernel refuses one (vm.max_map_count, or
/// the program has split a mapping by madvise or mlock), `run->bytes` tells how much was moved
/// before.
uint32_t move(AddressArena& arena, uint32_t mapping_count, Run* run) {
  uint32_t parts = 0;
  uint64_t moved_bytes = 0;
  (void)move_in_parts(run->bytes, mapping_count, &moved_bytes,
                      [&](uint64_t offset, uint64_t part_bytes) {
                        ++parts;
                        return arena.move_frames(run->from + offset, run->to + offset, part_bytes);
                      });
  run->bytes = moved_bytes;
  return parts;
}

}  // namespace

/// What a cached extent gives: granules from its front, and the end of its tail. From
/// claim_donors() to end_donation() the extent is Vacant, busy and the caller's.
struct CpuHeap::Donation {
  Extent* extent = nullptr;
  uint64_t target_offset = 0;  // of the first granule
  uint64_t front_bytes = 0;    // granules
  uint64_t rear_bytes = 0;     // tail

  uint64_t bytes() const { return front_bytes + rear_bytes; }
};

Frames CpuHeap::gather_frames(char* target, uint64_t bytes) {
  Frames frames;
  if (!can_use_any_cached()) return frames;
  uint32_t moves = 0;
  for (Donation& donation : claim_donors(bytes)) {
    const uint64_t promised_bytes = donation.bytes();
    moves += move_donation(&donation, target, bytes);
    frames.bytes += donation.bytes();
    end_donation(donation, donation.bytes() == promised_bytes);
  }
  if (moves > 0) frames.mapping_count = frames.bytes == bytes ? moves : 2 * moves + 1;
  return frames;
}

std::vector<CpuHeap::Donation> CpuHeap::claim_donors(uint64_t bytes) {
  std::vector<Donation> donations;
  uint64_t furnished_bytes = 0;          // granules that donors give
  uint64_t tail_bytes = tail_of(bytes);  // still to be given
  const bool spares_tails = budget_.free() >= budget_.limit() / kPlentifulShare;
  MutexLock lock(mutex_);
  if (are_mappings_used_up()) return donations;
  Extent* extent = cached_by_age_.back();
  for (int looks = 0; extent != nullptr && looks < kDonorsLookedAtMax; ++looks) {
    if (furnished_bytes == without_tail(bytes) && tail_bytes == 0) break;
    Extent* newer = AgeList::previous(extent);
    // Pages of a file's mapping would stay the file's when they are moved.
    if (extent->is_file_mapped.load(std::memory_order_relaxed)) {
      extent = newer;
      continue;
    }
    const uint64_t held_bytes = extent->held_bytes();
    Donation donation = {extent, furnished_bytes, 0, 0};
    donation.front_bytes =
        std::min(without_tail(bytes) - furnished_bytes, without_tail(held_bytes));
    const bool may_give_tail =
        !spares_tails || donation.front_bytes > 0 || extent->is_rest || held_bytes < kGranuleBytes;
    if (may_give_tail && tail_of(held_bytes) >= tail_bytes) donation.rear_bytes = tail_bytes;
    if (donation.bytes() > 0 && claim_cached(extent)) {
      furnished_bytes += donation.front_bytes;
      tail_bytes -= donation.rear_bytes;
      donations.push_back(donation);
    }
    extent = newer;
  }
  return donations;
}

// Returns an upper bound of the mappings that were made, and leaves in the donation what was moved.
uint32_t CpuHeap::move_donation(Donation* donation, char* target, uint64_t target_bytes) {
  const Extent& extent = *donation->extent;
  Run front = {extent.address, target + donation->target_offset, donation->front_bytes};
  Run rear = {extent.address + extent.bytes - donation->rear_bytes,
              target + without_tail(target_bytes), donation->rear_bytes};
  if (front.bytes > 0 && rear.bytes > 0 && rear.continues(front)) {
    front.bytes += std::exchange(rear.bytes, 0);
  }
  const uint32_t moves =
      move(arena_, extent.mapping_count, &front) + move(arena_, extent.mapping_count, &rear);
  donation->rear_bytes = rear.bytes + tail_of(front.bytes);
  donation->front_bytes = without_tail(front.bytes);
  return moves;
}

// Keeps the rest of the donor in the cache, unless the kernel refused a move, or refuses to take
// off what was given.
void CpuHeap::end_donation(const Donation& donation, bool may_be_kept) {
  Extent* extent = donation.extent;
  release_slot_of(extent);
  const uint64_t left_bytes = extent->bytes - donation.bytes();
  char* const left = extent->address + donation.front_bytes;
  char* const left_end = left + round_up(left_bytes, kGranuleBytes);
  char* const old_end = extent->address + round_up(extent->bytes, kGranuleBytes);
  const bool is_kept = left_bytes > 0 && may_be_kept &&
                       take_off(extent->address, donation.front_bytes) &&
                       take_off(left + left_bytes, donation.rear_bytes);
  if (!is_kept) {
    give_back(extent);
    budget_.release(left_bytes);
    return;
  }
  table_.set(extent->address, donation.front_bytes, nullptr);
  table_.set(left_end, static_cast<uint64_t>(old_end - left_end), nullptr);
  MutexLock lock(mutex_);
  pool_.give_back_addresses(extent->address, donation.front_bytes);
  pool_.give_back_addresses(left_end, static_cast<uint64_t>(old_end - left_end));
  cache_rest(extent, left, left_bytes);
}

// Caches what is left of an extent after others took pages of it. REQUIRES: the extent is Vacant
// and the caller's.
void CpuHeap::cache_rest(Extent* extent, char* address, uint64_t bytes) {
  set_mapping_count(extent, std::min<uint64_t>(extent->mapping_count, bytes / kGranuleBytes + 1));
  extent->address = address;
  extent->bytes = bytes;
  extent->is_rest = true;
  link_cached(extent);
  extent->cancel_trim();
}

// Gives pages back to the kernel and keeps the rest cached. REQUIRES: the extent is Vacant and the
// caller's, and `bytes` are whole granules of it, but not all.
void CpuHeap::drop_front(Extent* extent, uint64_t bytes) {
  end_donation({.extent = extent, .front_bytes = bytes}, true);
}

// Makes a part inaccessible that no longer belongs to its extent.
bool CpuHeap::take_off(char* address, uint64_t bytes) {
  return bytes == 0 || arena_.decommit(address, bytes);
}

Extent* CpuHeap::make_parking(uint64_t bytes) {
  const Result<Extent*> parking = make_extent(bytes);
  return parking.is_ok() ? parking.value() : nullptr;
}

void CpuHeap::cache_parked(Extent* parking) {
  parking->commit();
  (void)parking->retire();
  cache(parking);
}

void CpuHeap::set_mapping_count(Extent* extent, uint64_t count) {
  further_mappings_.fetch_add(count - extent->mapping_count, std::memory_order_relaxed);
  extent->mapping_count = static_cast<uint32_t>(count);
}

}  // namespace tencache
