// SPDX-License-Identifier: Apache-2.0
//
// Evictions of extents whose pages are kept and whose bytes have to be written: the pages are moved
// away first (engine/slot_seals.cpp), and written from where they are then. Nobody can reach them
// there, so the slot holds exactly the bytes that were hashed on their way, and neither a copy nor
// a second hash has to prove it (unlike Note [Bounce ring] in engine/eviction_writer.h). That
// halves the processor time of an eviction, which a program that computes on all processors goes
// without.
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
#include "engine/slot_migrations.h"

namespace tencache {

struct SlotMigrations::KeptEviction {
  Eviction eviction;
  Extent* keeper = nullptr;
  ContentHasher hasher;
  Slot abandoned_slot;  // of one that was called off, which the device may still write

  bool is_called_off() const { return abandoned_slot.is_valid(); }
  bool is_wanted() const {
    return eviction.is_used_since() || Extent::pins_of(eviction.extent->load()) > 0;
  }
};

/// Hashes what leaves, and looks whether somebody wants it back.
class SlotMigrations::KeptWriter final : public PieceObserver {
 public:
  KeptWriter(SlotMigrations& migrations, std::span<KeptEviction> evictions)
      : migrations_(migrations), evictions_(evictions) {
    segments_.reserve(evictions.size());
    for (const KeptEviction& kept : evictions) {
      const Extent* extent = kept.eviction.extent;
      segments_.push_back({kept.keeper->address, extent->slot.offset, extent->bytes});
    }
  }

  std::span<const IoSegment> segments() const { return segments_; }

  bool before_submit(size_t segment, uint64_t /*offset*/, char* memory, size_t bytes) override {
    call_off_wanted();
    KeptEviction& kept = evictions_[segment];
    // Of one that was called off the rest is written like a piece of nothing: a transfer has no way
    // to leave out a segment, and this hardly ever happens.
    if (!kept.is_called_off()) kept.hasher.append(memory, bytes);
    return true;
  }
  void after_complete(size_t, uint64_t, size_t) override { call_off_wanted(); }

 private:
  void call_off_wanted() {
    for (KeptEviction& kept : evictions_) {
      if (!kept.is_called_off() && kept.is_wanted()) migrations_.call_off(&kept);
    }
  }

  SlotMigrations& migrations_;
  const std::span<KeptEviction> evictions_;
  std::vector<IoSegment> segments_;
};

// Leaves in `evictions` those that the kernel does not move.
void SlotMigrations::evict_kept(std::vector<Eviction>* evictions, EvictionResult* result) {
  const uint64_t begin_move_ns = thread_work_ns();
  std::vector<KeptEviction> kept_evictions = move_all_away(evictions);
  if (kept_evictions.empty()) return;
  const uint64_t move_ns = thread_work_ns() - begin_move_ns;
  KeptWriter writer(*this, kept_evictions);
  const TransferResult transfer = write_measured(writer.segments(), &writer);
  const uint64_t begin_end_ns = thread_work_ns();
  const uint64_t bytes_before = result->bytes;
  for (KeptEviction& kept : kept_evictions) end_kept(&kept, transfer.status, result);
  drop_work_.add(result->bytes - bytes_before, move_ns + thread_work_ns() - begin_end_ns);
}

std::vector<SlotMigrations::KeptEviction> SlotMigrations::move_all_away(
    std::vector<Eviction>* evictions) {
  std::vector<KeptEviction> kept_evictions;
  std::vector<Eviction> not_moved;
  for (const Eviction& eviction : *evictions) {
    if (!seal_unused(eviction)) {
      abandon(eviction);
    } else if (Extent* keeper = move_away(eviction.extent); keeper != nullptr) {
      kept_evictions.push_back({eviction, keeper, ContentHasher(), Slot()});
    } else {
      eviction.extent->unseal();
      not_moved.push_back(eviction);
    }
  }
  *evictions = std::move(not_moved);
  return kept_evictions;
}

// The keeper stays until the transfer has ended, which still reads at its address.
void SlotMigrations::call_off(KeptEviction* kept) {
  Extent* extent = kept->eviction.extent;
  move_back(extent, kept->keeper, extent->bytes);
  kept->abandoned_slot = std::exchange(extent->slot, Slot());
  abandon(kept->eviction);
}

void SlotMigrations::end_kept(KeptEviction* kept, const Status& written, EvictionResult* result) {
  if (kept->is_called_off()) {
    disk_.release(kept->abandoned_slot);
    heap_.drop_keeper(kept->keeper);
    return;
  }
  Extent* extent = kept->eviction.extent;
  Status status = written;
  if (status.is_ok()) {
    extent->slot_hash = kept->hasher.finish();
    extent->slot_is_written = true;
    const Departure departure(*extent);
    status = leave_to_keeper(extent, kept->keeper);
    if (status.is_ok()) {
      count_departure(departure, result);
      return;
    }
  }
  move_back(extent, kept->keeper, extent->bytes);
  heap_.drop_keeper(kept->keeper);
  abandon(kept->eviction);
  count_failure(status, 1, result);
}

}  // namespace tencache
