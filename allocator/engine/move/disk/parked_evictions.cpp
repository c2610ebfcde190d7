// SPDX-License-Identifier: Apache-2.0
//
// Evictions of extents whose pages are kept and whose bytes have to be written: the pages are moved
// away first (engine/move/disk/seal.cpp), and written from where they are then. Nobody can reach
// them there, so the slot holds exactly the bytes that were hashed on their way, and neither a copy
// nor a second hash has to prove it (unlike Note [Bounce ring] in
// engine/move/disk/eviction_writer.h). That halves the processor time of an eviction, which a
// program that computes on all processors goes without.
//
// The price: whoever touches the extent while it is written waits. An op, an order to fetch it and
// free() call the eviction off, which is looked for at each piece; the pages are back at once then,
// and the program goes on while the device still reads from them. What it reads may be anything, so
// the slot stays out of use until the transfer has ended. An access that nobody announced waits for
// the end of the transfer, some milliseconds.
//
// Threads: the evicting one, which never touches the address itself.
#include <utility>

#include "base/clock.h"
#include "engine/move/disk/slot_mover.h"

namespace tencache {

struct SlotMover::ParkedEviction {
  Eviction eviction;
  Extent* parking = nullptr;
  ContentHasher hasher;
  Slot abandoned_slot;  // of one that was called off, which the device may still write

  bool is_called_off() const { return abandoned_slot.is_valid(); }
  bool is_wanted() const {
    return eviction.is_used_since() || Extent::pins_of(eviction.extent->load()) > 0;
  }
};

/// Hashes what leaves, and looks whether somebody wants it back.
class SlotMover::ParkedWriter final : public PieceObserver {
 public:
  ParkedWriter(SlotMover& mover, std::span<ParkedEviction> evictions)
      : mover_(mover), evictions_(evictions) {
    segments_.reserve(evictions.size());
    for (const ParkedEviction& parked : evictions) {
      const Extent* extent = parked.eviction.extent;
      segments_.push_back({parked.parking->address, extent->slot.offset, extent->bytes});
    }
  }

  std::span<const IoSegment> segments() const { return segments_; }

  bool before_submit(size_t segment, uint64_t /*offset*/, char* memory, size_t bytes) override {
    call_off_wanted();
    ParkedEviction& parked = evictions_[segment];
    // Of one that was called off the rest is written like a piece of nothing: a transfer has no way
    // to leave out a segment, and this hardly ever happens.
    if (!parked.is_called_off()) parked.hasher.append(memory, bytes);
    return true;
  }
  void after_complete(size_t, uint64_t, size_t) override { call_off_wanted(); }

 private:
  void call_off_wanted() {
    for (ParkedEviction& parked : evictions_) {
      if (!parked.is_called_off() && parked.is_wanted()) mover_.call_off(&parked);
    }
  }

  SlotMover& mover_;
  const std::span<ParkedEviction> evictions_;
  std::vector<IoSegment> segments_;
};

// Leaves in `evictions` those that the kernel does not move.
void SlotMover::evict_parked(std::vector<Eviction>* evictions, EvictionResult* result) {
  const uint64_t begin_move_ns = thread_work_ns();
  std::vector<ParkedEviction> parked_evictions = move_all_away(evictions);
  if (parked_evictions.empty()) return;
  const uint64_t move_ns = thread_work_ns() - begin_move_ns;
  ParkedWriter writer(*this, parked_evictions);
  const TransferResult transfer = write_measured(writer.segments(), &writer);
  const uint64_t begin_end_ns = thread_work_ns();
  const uint64_t bytes_before = result->bytes;
  for (ParkedEviction& parked : parked_evictions) end_parked(&parked, transfer.status, result);
  drop_work_.add(result->bytes - bytes_before, move_ns + thread_work_ns() - begin_end_ns);
}

std::vector<SlotMover::ParkedEviction> SlotMover::move_all_away(std::vector<Eviction>* evictions) {
  std::vector<ParkedEviction> parked_evictions;
  std::vector<Eviction> not_moved;
  for (const Eviction& eviction : *evictions) {
    if (!seal_unused(eviction)) {
      abandon(eviction);
    } else if (Extent* parking = move_away(eviction.extent); parking != nullptr) {
      parked_evictions.push_back({eviction, parking, ContentHasher(), Slot()});
    } else {
      eviction.extent->unseal();
      not_moved.push_back(eviction);
    }
  }
  *evictions = std::move(not_moved);
  return parked_evictions;
}

// The parking extent stays until the transfer has ended, which still reads at its address.
void SlotMover::call_off(ParkedEviction* parked) {
  Extent* extent = parked->eviction.extent;
  move_back(extent, parked->parking, extent->bytes);
  parked->abandoned_slot = std::exchange(extent->slot, Slot());
  abandon(parked->eviction);
}

void SlotMover::end_parked(ParkedEviction* parked, const Status& written, EvictionResult* result) {
  if (parked->is_called_off()) {
    disk_.release(parked->abandoned_slot);
    heap_.drop_parking(parked->parking);
    return;
  }
  Extent* extent = parked->eviction.extent;
  Status status = written;
  if (status.is_ok()) {
    extent->slot_hash = parked->hasher.finish();
    extent->has_copy_below = true;
    const Departure departure(*extent);
    status = leave_parked(extent, parked->parking);
    if (status.is_ok()) {
      count_departure(departure, result);
      return;
    }
  }
  move_back(extent, parked->parking, extent->bytes);
  heap_.drop_parking(parked->parking);
  abandon(parked->eviction);
  count_failure(status, 1, result);
}

}  // namespace tencache
