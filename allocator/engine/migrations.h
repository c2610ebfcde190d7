// SPDX-License-Identifier: Apache-2.0
//
// Migrations: moves batches of extents between the device tier and the disk tier, in numbered
// phases. This file moves what it is told to move; who decides is the migrator (evictions under
// pressure), the gate (fetches an op waits for) and chaos mode.
//
// An eviction of an extent E
//   1. claims E (it stays usable; a pin taken from now on wins),
//   2. writes its bytes into a slot and hashes what it wrote (engine/eviction_writer.h); not when a
//      slot is presumed to hold them already,
//   3. seals E (write-protected, pins wait), hashes again and compares: the proof that the slot
//   holds
//      these very bytes, whoever may have written meanwhile,
//   4. maps the slot over the address. E is cold; its room is free.
// A pin, a use or a differing hash at any point leaves E resident and nothing is lost.
//
// A fetch claims E, reads its slot into scratch pages and compares the hash, then write-protects
// the cold mapping, copies over the pages that were written behind the gate's back, and moves the
// scratch pages onto the address. Each extent of a batch is usable as soon as its own bytes are
// there. An op waits for a fetch on demand; fetches ahead of use (plans) never exceed the budget.
//
// Threads: any. An extent in transition belongs to the thread that claimed it (memory/extent.h). No
// lock is held across a copy, an I/O or a mapping. A MigrationPermit is held for each batch: a
// fork waits until none is out, so a child never inherits a protected window or a half-done copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/page_map.h"
#include "base/mutex.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/move_rate.h"
#include "engine/order.h"
#include "memory/heap.h"
#include "tier/disk_tier.h"

namespace tencache {

/// Lets a fork wait for migrations under way and keeps new ones from starting. Not a lock: nothing
/// waits for it but forks, and permits do not exclude each other.
class MigrationGate {
 public:
  void enter() TENCACHE_EXCLUDES(mutex_);
  void leave() TENCACHE_EXCLUDES(mutex_);
  /// Blocks new permits and waits until none is out.
  void close() TENCACHE_EXCLUDES(mutex_);
  void reopen() TENCACHE_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  int permit_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  bool is_closed_ TENCACHE_GUARDED_BY(mutex_) = false;
};

struct EvictionResult {
  uint64_t count = 0;
  uint64_t bytes = 0;  // of room that became free
  Status failure;      // the first disk or mapping failure; the extents stayed resident
};

class Migrations {
 public:
  Migrations(Heap& heap, DiskTier& disk, const PageMap& page_map, Stats& stats);

  /// Evicts as many of the extents as can be; those in use, or used meanwhile, are left alone.
  EvictionResult evict(std::span<Extent* const> extents);

  /// Makes every extent resident, whoever fetches it. The caller has pinned them. Waits for room.
  /// Bytes that cannot be read back end the process (base/check.h fatal). Where the kernel refuses
  /// a mapping the extent stays cold, which is slow but right, and a warning says so.
  void fetch(std::span<Extent* const> extents);

  /// Fetches ahead of use, in order, as far as there is room. Returns how many orders are done
  /// with, those included that came to nothing because the extent is not cold any more;
  /// `lacking_bytes` is what the next one needs and does not find.
  size_t prefetch(std::span<const Order> orders, uint64_t* lacking_bytes);

  /// Whether an op waits for a fetch, or an allocation for room, right now.
  bool is_demanded() const { return demand_count_.load(std::memory_order_relaxed) > 0; }
  void begin_demand() { demand_count_.fetch_add(1, std::memory_order_relaxed); }
  void end_demand() { demand_count_.fetch_sub(1, std::memory_order_relaxed); }
  /// Room that fetches ahead of use hold and that can be evicted again once they have ended.
  uint64_t bytes_ahead() const { return bytes_ahead_.load(std::memory_order_relaxed); }

  const MoveRate& read_speed() const { return read_speed_; }
  const MoveRate& write_speed() const { return write_speed_; }
  /// Processor time of the threads that move.
  const MoveRate& read_work() const { return read_work_; }
  const MoveRate& write_work() const { return write_work_; }
  const MoveRate& drop_work() const { return drop_work_; }

  MigrationGate& gate() { return gate_; }

 private:
  struct Eviction {
    Extent* extent = nullptr;
    uint64_t claimed_at_ticks = 0;
    bool needs_write = true;
  };

  // Phases of an eviction.
  std::vector<Eviction> claim(std::span<Extent* const> extents);
  void take_slots(std::vector<Eviction>& evictions, EvictionResult* result);
  Status ensure_slot(Extent* extent);
  void write_slots(std::vector<Eviction>& evictions, EvictionResult* result);
  Status write_batch(std::span<const Eviction> evictions);
  void seal_and_map(std::span<const Eviction> evictions, EvictionResult* result,
                    std::vector<Eviction>* differing);
  enum class SealOutcome : uint8_t { kCold, kInUse, kDiffers, kFailed };
  SealOutcome seal_one(const Eviction& eviction, Status* failure);
  static bool hash_sealed(const Extent* extent, ContentHash* hash);
  void abandon(const Eviction& eviction);
  void count_failure(const Status& failure, uint64_t count, EvictionResult* result);

  // Phases of a fetch.
  struct Fetch {
    Extent* extent = nullptr;
    char* scratch = nullptr;
    bool is_ahead = false;     // nobody waits for it
    Extent* frames = nullptr;  // whose pages the scratch is, if they are a cached extent's
  };
  static void wait_while_sealing(const Extent& extent);
  void give_up_fetches(const std::vector<Fetch>& fetches, const Status& reason,
                       std::vector<const Extent*>* left_cold);
  std::vector<Fetch> claim_fetches(std::span<Extent* const> extents);
  void move_in(std::vector<Fetch> fetches, std::vector<const Extent*>* left_cold);
  void make_scratch(std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold);
  void read_slots(std::vector<Fetch> fetches, std::vector<const Extent*>* left_cold);
  void verify(const Extent& extent, const ContentHash& hash) const;
  void merge_and_move(const Fetch& fetch, std::vector<const Extent*>* left_cold);
  Status merge_written_pages(const Fetch& fetch, TouchedPages* touched);
  Status move_scratch(const Fetch& fetch);
  void drop_scratch(const Fetch& fetch);
  void leave_cold(const Fetch& fetch, const Status& reason);

  Heap& heap_;
  DiskTier& disk_;
  const PageMap& page_map_;
  Stats& stats_;
  MigrationGate gate_;
  MoveRate read_speed_;
  MoveRate write_speed_;
  MoveRate read_work_;
  MoveRate write_work_;
  MoveRate drop_work_;  // the proof and the mapping of whatever leaves, written or not
  std::atomic<uint32_t> demand_count_{0};
  std::atomic<uint64_t> bytes_ahead_{0};
  std::atomic<bool> warned_failure_{false};
  std::atomic<bool> warned_left_cold_{false};
};

}  // namespace tencache
