// SPDX-License-Identifier: Apache-2.0
//
// The phases of an eviction (engine/move/disk/slot_mover.h tells the protocol and why it is safe).
#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/move/disk/eviction_writer.h"
#include "engine/move/disk/slot_mover.h"
#include "engine/move/migration_permit.h"

namespace tencache {
EvictionResult SlotMover::evict(std::span<Extent* const> extents) {
  MigrationPermit permit(fork_latch_);
  EvictionResult result;
  // Phase 1: claim. From here on the extents are ours, and still usable by the program.
  std::vector<Eviction> evictions = claim(extents);
  const auto first_clean = std::stable_partition(evictions.begin(), evictions.end(),
                                                 [](const Eviction& e) { return e.needs_write; });
  std::vector<Eviction> dirty(evictions.begin(), first_clean);
  // Phase 2: what is presumed clean needs only the proof; what fails the proof is dirty.
  std::vector<Eviction> differing;
  seal_and_map(std::span(first_clean, evictions.end()), &result, &differing);
  for (Eviction& eviction : differing) {
    eviction.needs_write = true;
    dirty.push_back(eviction);
  }
  if (dirty.empty()) return result;
  // Phase 3: slots, then bytes. Those whose pages are kept are done then.
  take_slots(dirty, &result);
  if (parks_pages()) evict_parked(&dirty, &result);
  write_slots(dirty, &result);
  // Phase 4: the proof. What differs now is being written by somebody; it is no victim.
  differing.clear();
  seal_and_map(dirty, &result, &differing);
  for (const Eviction& eviction : differing) abandon(eviction);
  return result;
}

std::vector<SlotMover::Eviction> SlotMover::claim(std::span<Extent* const> extents) {
  std::vector<Eviction> evictions;
  evictions.reserve(extents.size());
  for (Extent* extent : extents) {
    const uint64_t claimed_at = timestamp();
    if (!extent->claim_for_eviction()) continue;
    evictions.push_back({extent, claimed_at, !extent->is_presumed_clean()});
  }
  return evictions;
}

void SlotMover::take_slots(std::vector<Eviction>& evictions, EvictionResult* result) {
  std::vector<Eviction> with_slot;
  for (const Eviction& eviction : evictions) {
    Status status = ensure_slot(eviction.extent);
    if (status.is_ok()) {
      with_slot.push_back(eviction);
    } else {
      abandon(eviction);
      count_failure(status, 1, result);
    }
  }
  evictions = std::move(with_slot);
}

// The extent's own slot when it may be overwritten, else another one.
Status SlotMover::ensure_slot(Extent* extent) {
  extent->has_copy_below = false;
  if (extent->slot.is_valid() && disk_.is_writable(extent->slot)) return Status::ok();
  Result<Slot> slot = disk_.allocate(extent->bytes);
  // Slots of resident extents only save a later write; room on the disk is worth more now. What is
  // given back may lie scattered, so this goes on while there is anything to give back.
  while (!slot.is_ok() && slot.status().code() == StatusCode::kNoSpace &&
         heap_.drop_spare_slots(extent->bytes) > 0) {
    slot = disk_.allocate(extent->bytes);
  }
  if (!slot.is_ok()) return slot.status();
  if (extent->slot.is_valid()) disk_.release(extent->slot);
  extent->slot = slot.value();
  return Status::ok();
}

void SlotMover::write_slots(std::vector<Eviction>& evictions, EvictionResult* result) {
  if (evictions.empty()) return;
  const Status status = write_batch(evictions);
  if (status.is_ok()) return;
  for (const Eviction& eviction : evictions) abandon(eviction);
  count_failure(status, evictions.size(), result);
  evictions.clear();
}

Status SlotMover::write_batch(std::span<const Eviction> evictions) {
  std::vector<const Extent*> extents;
  extents.reserve(evictions.size());
  for (const Eviction& eviction : evictions) extents.push_back(eviction.extent);
  EvictionWriter writer(extents);
  const TransferResult transfer = write_measured(writer.segments(), &writer);
  if (!transfer.status.is_ok()) return transfer.status;
  for (size_t index = 0; index < evictions.size(); ++index) {
    evictions[index].extent->slot_hash = writer.hash(index);
    evictions[index].extent->has_copy_below = true;
  }
  return Status::ok();
}

// Every write of an eviction counts in the same figures, which planning works with.
TransferResult SlotMover::write_measured(std::span<const IoSegment> segments,
                                         PieceObserver* observer) {
  const uint64_t begin_ns = now_ns();
  const uint64_t begin_work_ns = thread_work_ns();
  TransferResult transfer = disk_.write(segments, observer);
  write_speed_.add(transfer.bytes, now_ns() - begin_ns);
  write_work_.add(transfer.bytes, thread_work_ns() - begin_work_ns);
  add(stats_.disk_written_bytes, transfer.bytes);
  return transfer;
}

void SlotMover::seal_and_map(std::span<const Eviction> evictions, EvictionResult* result,
                             std::vector<Eviction>* differing) {
  const uint64_t begin_work_ns = thread_work_ns();
  uint64_t proved_bytes = 0;
  for (const Eviction& eviction : evictions) {
    const Departure departure(*eviction.extent);
    Status failure;
    switch (seal_one(eviction, &failure)) {
      case SealOutcome::kCold:
        proved_bytes += departure.bytes;
        if (!eviction.needs_write) add(stats_.clean_dropped_bytes, departure.bytes);
        count_departure(departure, result);
        break;
      case SealOutcome::kInUse:
        abandon(eviction);
        break;
      case SealOutcome::kDiffers:
        proved_bytes += departure.bytes;
        differing->push_back(eviction);
        break;
      case SealOutcome::kFailed:
        abandon(eviction);
        count_failure(failure, 1, result);
        break;
    }
  }
  drop_work_.add(proved_bytes, thread_work_ns() - begin_work_ns);
}

void SlotMover::count_departure(const Departure& departure, EvictionResult* result) {
  add(stats_.evicted_bytes, departure.bytes);
  if (departure.was_fetched_in_vain) {
    add(stats_.wasted_fetches, 1);
    add(stats_.wasted_fetched_bytes, departure.bytes);
  }
  result->count += 1;
  result->bytes += departure.bytes;
}

void SlotMover::abandon(const Eviction& eviction) { eviction.extent->abandon_eviction(); }

void SlotMover::count_failure(const Status& failure, uint64_t count, EvictionResult* result) {
  add(stats_.eviction_failures, count);
  if (result->failure.is_ok()) result->failure = failure;
  if (warned_failure_.exchange(true)) return;
  TENCACHE_LOG_WARNING(
      "an eviction failed: %s; the tensor stays in memory and nothing is lost (further failures "
      "are only counted)",
      failure.clause().c_str());
}

}  // namespace tencache
