// SPDX-License-Identifier: Apache-2.0
//
// SlotMover: how the cpu backend moves extents between the device tier and slots of the disk
// tier, in numbered phases.
//
// An eviction of an extent E
//   1. claims E (it stays usable; a pin taken from now on wins),
//   2. writes its bytes into a slot and hashes what it wrote (engine/move/disk/eviction_writer.h);
//   not when a
//      slot is presumed to hold them already,
//   3. seals E (nobody can write, pins wait), hashes again and compares: the proof that the slot
//      holds these very bytes, whoever may have written meanwhile (engine/move/disk/seal.cpp),
//   4. maps the slot over the address. E is cold; its room is free, or its pages are cached.
// Where its pages are kept, E is sealed before it is written, and what is written needs no proof
// (engine/move/disk/parked_evictions.cpp).
// A pin, a use or a differing hash at any point leaves E resident and nothing is lost.
//
// A fetch claims E, reads its slot into scratch pages and compares the hash, then write-protects
// the cold mapping, copies over the pages that were written behind the gate's back, and moves the
// scratch pages onto the address. Each extent of a batch is usable as soon as its own bytes are
// there.
//
// Threads: any. An extent in transition belongs to the thread that claimed it (memory/extent.h). No
// lock is held across a copy, an I/O or a mapping. A MigrationPermit is held for each batch: a
// fork waits until none is out, so a child never inherits a protected window or a half-done copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/stats.h"
#include "base/status.h"
#include "engine/move/mover.h"
#include "engine/move/slot_reader.h"
#include "memory/cpu_heap.h"
#include "platform/access_barrier.h"
#include "platform/page_map.h"
#include "tier/disk_tier.h"

namespace tencache {

class SlotMover final : public Mover {
 public:
  /// `access_barrier` may be null; then pages of what leaves go back to the kernel.
  SlotMover(CpuHeap& heap, DiskTier& disk, const PageMap& page_map,
            const AccessBarrier* access_barrier, Stats& stats)
      : Mover(stats),
        heap_(heap),
        disk_(disk),
        page_map_(page_map),
        access_barrier_(access_barrier) {}

  EvictionResult evict(std::span<Extent* const> extents) override;
  /// Bytes that cannot be read back end the process (base/check.h fatal). Where the kernel refuses
  /// a mapping the extent stays cold, which is slow but right, and a warning says so.
  LateFetches fetch(std::span<Extent* const> extents, StreamSet streams) override;
  uint64_t prefetch(RequestSource& requests) override;

 private:
  struct Eviction {
    Extent* extent = nullptr;
    uint64_t claimed_at = 0;
    bool needs_write = true;

    bool is_used_since() const {
      return extent->last_use_at.load(std::memory_order_relaxed) > claimed_at;
    }
  };
  /// What is told of an extent that has become cold: by then anybody may free it.
  struct Departure {
    explicit Departure(const Extent& extent)
        : bytes(extent.bytes), was_fetched_in_vain(extent.has(kFlagAhead)) {}
    uint64_t bytes;
    bool was_fetched_in_vain;
  };
  struct ParkedEviction;
  class ParkedWriter;

  // Phases of an eviction.
  std::vector<Eviction> claim(std::span<Extent* const> extents);
  void take_slots(std::vector<Eviction>& evictions, EvictionResult* result);
  Status ensure_slot(Extent* extent);
  void write_slots(std::vector<Eviction>& evictions, EvictionResult* result);
  Status write_batch(std::span<const Eviction> evictions);
  TransferResult write_measured(std::span<const IoSegment> segments, PieceObserver* observer);
  void seal_and_map(std::span<const Eviction> evictions, EvictionResult* result,
                    std::vector<Eviction>* differing);
  enum class SealOutcome : uint8_t { kCold, kInUse, kDiffers, kFailed };
  SealOutcome seal_one(const Eviction& eviction, Status* failure);
  static bool seal_unused(const Eviction& eviction);
  bool parks_pages() const;
  SealOutcome seal_by_protecting(Extent* extent, Status* failure);
  SealOutcome seal_by_moving(Extent* extent);
  Extent* move_away(const Extent* extent);
  void move_back(const Extent* extent, const Extent* parking, uint64_t bytes);
  Status leave_parked(Extent* extent, Extent* parking);
  static SealOutcome prove(const Extent* extent, const char* memory);
  Status map_slot(Extent* extent);
  static bool hash_sealed(const Extent* extent, const char* memory, ContentHash* hash);
  void evict_parked(std::vector<Eviction>* evictions, EvictionResult* result);
  std::vector<ParkedEviction> move_all_away(std::vector<Eviction>* evictions);
  void call_off(ParkedEviction* kept);
  void end_parked(ParkedEviction* kept, const Status& written, EvictionResult* result);
  void count_departure(const Departure& departure, EvictionResult* result);
  void abandon(const Eviction& eviction);
  void count_failure(const Status& failure, uint64_t count, EvictionResult* result);

  // Phases of a fetch.
  struct Fetch {
    Extent* extent = nullptr;
    bool is_ahead = false;  // nobody waits for it
    char* scratch = nullptr;
    uint64_t room_bytes = 0;     // in the budget, that it has
    uint32_t mapping_count = 1;  // of the scratch
  };
  void give_up_fetches(std::span<const Fetch> fetches, const Status& reason,
                       std::vector<const Extent*>* left_cold);
  std::vector<Fetch> claim_fetches(std::span<Extent* const> extents,
                                   std::vector<const Extent*>* left_cold);
  bool begin_next(RequestSource& requests, std::vector<Fetch>* fetches, uint64_t* lacking_bytes);
  enum class AheadOutcome : uint8_t { kBegun, kLeftCold, kNoRoom };
  AheadOutcome begin_ahead(Fetch* fetch);
  bool make_scratch(Fetch* fetch);
  void furnish(Fetch* fetch);
  void take_room(std::span<Fetch> fetches);
  void move_in(const std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold,
               const NextRead& next_read = {});
  void read_back(const std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold,
                 const NextRead& next_read);
  void merge_and_move(const Fetch& fetch, std::vector<const Extent*>* left_cold);
  Status merge_written_pages(const Fetch& fetch, TouchedPages* touched);
  Status move_scratch(const Fetch& fetch, uint64_t* moved_bytes);
  void leave_cold(const Fetch& fetch, const Status& reason);

  CpuHeap& heap_;
  DiskTier& disk_;
  const PageMap& page_map_;
  const AccessBarrier* const access_barrier_;
  std::atomic<bool> warned_failure_{false};
  std::atomic<bool> warned_left_cold_{false};
};

}  // namespace tencache
