// SPDX-License-Identifier: Apache-2.0
//
// SlotFetches: fetches cold extents on the cpu backend, in the phases of
// engine/move/cpu/slot_mover.h: those that an op waits for, in a batch, and those that are
// requested ahead of use, for as long as there are requests and room.
//
// Invariants
//   1. An extent that was claimed is resident or cold again, and its scratch gone, when the call
//      returns.
//   2. A fetch ahead of use has its room before it begins; a fetch on demand waits for it, or
//      exceeds the budget.
//   3. bytes_ahead of the ledger counts exactly the fetches under way that no op began.
//
// Threads: any. An extent belongs to the thread that claimed it. The thread holds a MigrationPermit
// while bytes move, and none while it waits for room.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/move/fork_latch.h"
#include "engine/move/move_ledger.h"
#include "engine/move/move_request.h"
#include "engine/move/slot_reader.h"
#include "memory/cpu_heap.h"
#include "platform/page_map.h"
#include "tier/disk_tier.h"

namespace tencache {

class SlotFetches {
 public:
  /// The arguments must outlive this object.
  SlotFetches(CpuHeap& heap, DiskTier& disk, const PageMap& page_map, MoveLedger& ledger,
              ForkLatch& latch)
      : heap_(heap), disk_(disk), page_map_(page_map), ledger_(ledger), fork_latch_(latch) {}

  /// fetch() does the work of Mover::fetch, and prefetch() that of Mover::prefetch.
  LateFetches fetch(std::span<Extent* const> extents);
  uint64_t prefetch(RequestSource& requests);
  /// Fetches what leaves again at once, because the program wrote to it while it was cold. Nobody
  /// waits for such a fetch, and it must not wait for room: it makes some.
  void fetch_to_evict(std::span<Extent* const> extents);
  /// Books what the program wrote to the extent while it is cold, and returns how many bytes that
  /// is in all. Returns nullopt where the extent is not cold, or nobody can tell. A thread that
  /// wants the extent meanwhile waits.
  std::optional<uint64_t> count_written(Extent* extent);
  /// Whether count_written() has claimed the extent: it is cold again in a moment.
  bool is_counted(const Extent* extent) const { return counted_.load() == extent; }
  /// Claims the extent. Returns false if it is not cold.
  bool claim_cold(Extent* extent) const;

 private:
  struct Fetch {
    Extent* extent = nullptr;
    bool is_ahead = false;  // nobody waits for it
    char* scratch = nullptr;
    uint64_t room_bytes = 0;     // that it has in the budget
    uint32_t mapping_count = 1;  // of the scratch
    uint64_t begun_at = 0;       // a timestamp, when all its room was there
  };
  enum class AheadOutcome : uint8_t { kBegun, kSkipped, kNoRoom };

  std::vector<Extent*> fetch_once(std::span<Extent* const> extents, LateFetches* late);
  bool await_others(Extent* extent, LateFetches* late);
  std::vector<Fetch> claim(std::span<Extent* const> extents, std::vector<const Extent*>* left_cold);
  void move_in_as_room_appears(std::span<Fetch> fetches, std::vector<const Extent*>* left_cold);
  void await_room(std::span<Fetch> fetches);
  bool try_take_room(Fetch* fetch);
  static void note_room_taken(Fetch* fetch);
  bool begin_next(RequestSource& requests, std::vector<Fetch>* fetches,
                  std::vector<const Extent*>* left_cold, uint64_t* lacking_bytes);
  bool lacks_room(const MoveRequest& request) const;
  AheadOutcome begin_ahead(Fetch* fetch, std::vector<const Extent*>* left_cold);
  bool make_scratch(Fetch* fetch, std::vector<const Extent*>* left_cold);
  void furnish(Fetch* fetch);
  bool adopt(Extent* extent);
  void move_in(const std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold,
               const NextRead& next_read = {});
  bool read_back(const std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold,
                 const NextRead& next_read);
  void give_up(std::span<const Fetch> fetches, const Status& reason,
               std::vector<const Extent*>* left_cold);
  void merge_and_move(const Fetch& fetch, std::vector<const Extent*>* left_cold);
  static void note_written(Extent* extent, const TouchedPages& touched);
  void take_room_of_written(Extent* extent, uint64_t room_bytes);
  void take_as_it_is(Extent* extent, const TouchedPages& touched);
  std::optional<TouchedPages> written_past_waiting(const Extent* extent) const;
  void leave_to_writers(Extent* extent, const TouchedPages& touched,
                        std::vector<const Extent*>* left_cold);
  Status merge_written_pages(const Fetch& fetch, TouchedPages* touched);
  Status move_scratch(const Fetch& fetch, uint64_t* moved_bytes);
  void leave_cold(const Fetch& fetch, const Status& reason, std::vector<const Extent*>* left_cold);
  void warn_once(const Status& reason);

  CpuHeap& heap_;
  DiskTier& disk_;
  const PageMap& page_map_;
  MoveLedger& ledger_;
  ForkLatch& fork_latch_;
  std::atomic<bool> has_warned_{false};
  // The extent whose written pages are being counted, by one thread at a time.
  std::atomic<const Extent*> counted_{nullptr};
};

}  // namespace tencache
