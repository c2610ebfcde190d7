// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cpu/slot_evictions.h"

#include <signal.h>

#include <algorithm>

#include "base/clock.h"
#include "engine/move/cpu/eviction_writer.h"
#include "engine/move/take_slot.h"
#include "platform/blocked_signals.h"

namespace tencache {

EvictionResult SlotEvictions::evict(std::span<Extent* const> extents) {
  MigrationPermit permit(fork_latch_);
  EvictionResult result;
  // Phase 1: claim. From here on the extents are ours, and still usable by the program.
  std::vector<SlotEviction> evictions = claim(extents);
  const auto first_clean =
      std::stable_partition(evictions.begin(), evictions.end(),
                            [](const SlotEviction& eviction) { return eviction.needs_write; });
  std::vector<SlotEviction> dirty(evictions.begin(), first_clean);
  // Phases 3 and 4 of the extents presumed clean; one that fails the proof is dirty.
  seal_and_map(std::span(first_clean, evictions.end()), &result, &dirty);
  if (dirty.empty()) return result;
  // Phase 2: slots, then bytes. Extents whose pages are parked end here.
  take_slots(dirty, &result);
  if (seal_.parks_pages()) parked_.evict(&dirty, &result);
  write_slots(dirty, &result);
  // Phases 3 and 4: proof and mapping. An extent that differs now is being written, so it is no
  // victim.
  std::vector<SlotEviction> differing;
  seal_and_map(dirty, &result, &differing);
  for (const SlotEviction& eviction : differing) eviction.abandon();
  return result;
}

std::vector<SlotEviction> SlotEvictions::claim(std::span<Extent* const> extents) const {
  std::vector<SlotEviction> evictions;
  evictions.reserve(extents.size());
  for (Extent* extent : extents) {
    const uint64_t claimed_at = timestamp();
    if (!extent->claim_for_eviction()) continue;
    const SlotEviction eviction = {extent, claimed_at, !extent->is_presumed_clean()};
    if (may_be_sealed(extent)) {
      (void)heap_.drop_padding(extent);
      evictions.push_back(eviction);
    } else {
      eviction.abandon();
    }
  }
  return evictions;
}

// Returns false where a thread that blocks SIGSEGV may write to the extent in the window, and die
// of that.
bool SlotEvictions::may_be_sealed(const Extent* extent) const {
  return !extent->is_written_unannounced.load(std::memory_order_relaxed) ||
         !seal_.needs_signal(extent) || !is_blocked_by_any_thread(SIGSEGV);
}

void SlotEvictions::take_slots(std::vector<SlotEviction>& evictions, EvictionResult* result) {
  std::erase_if(evictions, [&](const SlotEviction& eviction) {
    const Status status = ensure_slot(eviction.extent);
    if (status.is_ok()) return false;
    eviction.abandon();
    ledger_.count_failure(status, 1, kStaysInMemory, result);
    return true;
  });
}

// Provides a slot for the extent: its own when that may be overwritten, else another one.
Status SlotEvictions::ensure_slot(Extent* extent) {
  extent->has_copy_below = false;
  if (extent->slot.is_valid() && disk_.is_writable(extent->slot)) return Status::ok();
  const Result<Slot> slot = take_slot(disk_, heap_, extent->bytes);
  if (!slot.is_ok()) return slot.status();
  if (extent->slot.is_valid()) disk_.release(extent->slot);
  extent->slot = slot.value();
  return Status::ok();
}

void SlotEvictions::write_slots(std::vector<SlotEviction>& evictions, EvictionResult* result) {
  if (evictions.empty()) return;
  EvictionWriter writer(evictions);
  const Status status = write_measured(disk_, writer.segments(), &writer, ledger_).status;
  if (status.is_ok()) {
    for (size_t index = 0; index < evictions.size(); ++index) {
      evictions[index].extent->slot_hash = writer.hash(index);
      evictions[index].extent->has_copy_below = true;
    }
    return;
  }
  for (const SlotEviction& eviction : evictions) eviction.abandon();
  ledger_.count_failure(status, evictions.size(), kStaysInMemory, result);
  evictions.clear();
}

void SlotEvictions::seal_and_map(std::span<const SlotEviction> evictions, EvictionResult* result,
                                 std::vector<SlotEviction>* differing) {
  const uint64_t begin_work_ns = thread_work_ns();
  uint64_t proved_bytes = 0;
  for (const SlotEviction& eviction : evictions) {
    const Departure departure = eviction.departure();
    Status failure;
    switch (seal_.make_cold(eviction, &failure)) {
      case SealOutcome::kCold:
        proved_bytes += departure.bytes;
        ledger_.count_departure(departure, result);
        break;
      case SealOutcome::kInUse:
        eviction.abandon();
        break;
      case SealOutcome::kDiffers:
        proved_bytes += departure.bytes;
        differing->push_back({eviction.extent, eviction.claimed_at, /*needs_write=*/true});
        break;
      case SealOutcome::kFailed:
        eviction.abandon();
        ledger_.count_failure(failure, 1, kStaysInMemory, result);
        break;
    }
  }
  ledger_.drop_work.add(proved_bytes, thread_work_ns() - begin_work_ns);
}

}  // namespace tencache
