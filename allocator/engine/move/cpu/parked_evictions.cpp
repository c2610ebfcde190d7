// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cpu/parked_evictions.h"

#include <span>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "engine/move/cpu/eviction_writer.h"
#include "tier/content_hash.h"

namespace tencache {

struct ParkedEvictions::Parked {
  SlotEviction eviction;
  Extent* parking = nullptr;
  ContentHasher hasher;
  Slot abandoned_slot;  // of an eviction that was called off; the device may still write to it

  bool is_called_off() const { return abandoned_slot.is_valid(); }
  bool is_wanted() const {
    return eviction.is_used_since() || Extent::pins_of(eviction.extent->load()) > 0;
  }
};

/// Hashes what leaves, and calls off the evictions of extents that are wanted back.
class ParkedEvictions::Writer final : public PieceObserver {
 public:
  Writer(ParkedEvictions& owner, std::span<Parked> evictions)
      : owner_(owner), evictions_(evictions) {
    segments_.reserve(evictions.size());
    for (const Parked& parked : evictions) {
      const Extent* extent = parked.eviction.extent;
      segments_.push_back({parked.parking->address, extent->slot.offset, extent->bytes});
    }
  }

  std::span<const IoSegment> segments() const { return segments_; }

  bool before_submit(size_t segment, uint64_t /*offset*/, char* memory, size_t bytes) override {
    call_off_wanted();
    Parked& parked = evictions_[segment];
    // A transfer cannot skip a segment, so the rest of a cancelled one is still written (rare).
    if (!parked.is_called_off()) parked.hasher.append(memory, bytes);
    return true;
  }
  void after_complete(size_t, uint64_t, size_t) override { call_off_wanted(); }

 private:
  void call_off_wanted() {
    for (Parked& parked : evictions_) {
      if (!parked.is_called_off() && parked.is_wanted()) owner_.call_off(&parked);
    }
  }

  ParkedEvictions& owner_;
  const std::span<Parked> evictions_;
  std::vector<IoSegment> segments_;
};

void ParkedEvictions::evict(std::vector<SlotEviction>* evictions, EvictionResult* result) {
  const uint64_t begin_move_ns = thread_work_ns();
  std::vector<Parked> moved = move_all_away(evictions);
  if (moved.empty()) return;
  const uint64_t move_ns = thread_work_ns() - begin_move_ns;
  Writer writer(*this, moved);
  const TransferResult transfer = write_measured(disk_, writer.segments(), &writer, ledger_);
  const uint64_t begin_end_ns = thread_work_ns();
  const uint64_t bytes_before = result->bytes;
  for (Parked& parked : moved) end(&parked, transfer.status, result);
  ledger_.drop_work.add(result->bytes - bytes_before, move_ns + thread_work_ns() - begin_end_ns);
}

std::vector<ParkedEvictions::Parked> ParkedEvictions::move_all_away(
    std::vector<SlotEviction>* evictions) {
  std::vector<Parked> moved;
  std::vector<SlotEviction> not_moved;
  for (const SlotEviction& eviction : *evictions) {
    if (!Seal::close_unused(eviction)) {
      eviction.abandon();
    } else if (Extent* parking = seal_.move_away(eviction.extent); parking != nullptr) {
      moved.push_back({eviction, parking, ContentHasher(), Slot()});
    } else {
      eviction.extent->unseal();
      not_moved.push_back(eviction);
    }
  }
  *evictions = std::move(not_moved);
  return moved;
}

// The parking extent stays until the end of the transfer, which still reads at its address.
void ParkedEvictions::call_off(Parked* parked) {
  Extent* extent = parked->eviction.extent;
  seal_.move_back(extent, parked->parking, extent->bytes);
  parked->abandoned_slot = std::exchange(extent->slot, Slot());
  parked->eviction.abandon();
}

void ParkedEvictions::end(Parked* parked, const Status& written, EvictionResult* result) {
  TENCACHE_DCHECK(parked->parking != nullptr);
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
    const Departure departure = parked->eviction.departure();
    status = seal_.leave_parked(extent, parked->parking);
    if (status.is_ok()) {
      ledger_.count_departure(departure, result);
      return;
    }
  }
  seal_.move_back(extent, parked->parking, extent->bytes);
  heap_.drop_parking(parked->parking);
  parked->eviction.abandon();
  ledger_.count_failure(status, 1, kStaysInMemory, result);
}

}  // namespace tencache
