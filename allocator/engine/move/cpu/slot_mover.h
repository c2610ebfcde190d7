// SPDX-License-Identifier: Apache-2.0
//
// SlotMover: the mover of the cpu backend. It moves extents between the device tier and slots of
// the disk tier, in numbered phases. SlotEvictions evicts, SlotFetches fetches; this class joins
// all parts behind the interface.
//
// An eviction of an extent E
//   1. claims E (it stays usable; a pin taken from now on wins),
//   2. writes its bytes into a slot and hashes what it wrote (engine/move/cpu/eviction_writer.h),
//      unless a slot is presumed to hold them already,
//   3. seals E (nobody can write, pins wait), hashes again and compares: the proof that the slot
//      holds these very bytes, whoever may have written meanwhile (engine/move/cpu/seal.h),
//   4. maps the slot over the address. E is cold; its room is free, or its pages are cached.
// Where its pages are parked, E is sealed before it is written, and what is written needs no proof
// (engine/move/cpu/parked_evictions.h).
// A pin, a use or a differing hash at any point leaves E resident and nothing is lost.
//
// A fetch of an extent E
//   1. claims E, and makes scratch pages for it,
//   2. takes room in the budget, and pages of cached extents under the scratch,
//   3. reads the slot into the scratch and compares the hash,
//   4. write-protects the cold mapping, copies over the pages that were written behind the gate's
//      back, and moves the scratch pages onto the address. Each extent of a batch is usable as soon
//      as its own bytes are there.
//   5. An op then waits for the extents that other threads bring.
//
// Threads: any. An extent in transition belongs to the thread that claimed it (memory/extent.h). No
// lock is held across a copy, an I/O or a mapping. A thread holds a MigrationPermit while it moves
// bytes.
#pragma once

#include <chrono>
#include <span>

#include "base/stats.h"
#include "engine/move/cpu/slot_checks.h"
#include "engine/move/cpu/slot_evictions.h"
#include "engine/move/cpu/slot_fetches.h"
#include "engine/move/cpu/unannounced_writes.h"
#include "engine/move/mover.h"
#include "memory/cpu_heap.h"
#include "platform/access_barrier.h"
#include "platform/page_map.h"
#include "tier/disk_tier.h"

namespace tencache {

class SlotMover final : public Mover {
 public:
  /// `access_barrier` may be null; then pages of what leaves go back to the kernel. `look_interval`
  /// is the `interval` of UnannouncedWrites.
  SlotMover(CpuHeap& heap, DiskTier& disk, const PageMap& page_map,
            const AccessBarrier* access_barrier, Stats& stats,
            std::chrono::milliseconds look_interval)
      : Mover(stats, heap.budget()),
        evictions_(heap, disk, access_barrier, ledger_, fork_latch_),
        fetches_(heap, disk, page_map, ledger_, fork_latch_),
        checks_(disk, fetches_, fork_latch_),
        unannounced_(heap, page_map, fetches_, evictions_, look_interval) {}

  EvictionResult evict(std::span<Extent* const> extents) override {
    const EvictionResult result = evictions_.evict(extents);
    if (result.count > 0) unannounced_.on_cold();
    return result;
  }
  EvictionResult evict_written(uint64_t bytes, bool takes_all) override {
    return unannounced_.evict_again(bytes, takes_all);
  }
  void check_cold(std::span<Extent* const> extents, bool is_in_child) override {
    if (is_in_child) return checks_.check_in_child(extents);
    checks_.check(extents);
  }
  void look_for_writes() override { (void)unannounced_.count(); }
  void stop_looking() override { unannounced_.stop(); }
  /// Bytes that cannot be read back end the process (base/check.h fatal). Where the kernel refuses
  /// a mapping the extent stays cold, which is slow but right; the first time, a warning says so.
  void fetch(std::span<Extent* const> extents, StreamSet /*streams*/, OpWait* wait) override {
    const LateFetches late = fetches_.fetch(extents);
    if (wait != nullptr) wait->add(late);
  }
  uint64_t prefetch(RequestSource& requests) override { return fetches_.prefetch(requests); }

 private:
  SlotEvictions evictions_;
  SlotFetches fetches_;
  SlotChecks checks_;
  UnannouncedWrites unannounced_;
};

}  // namespace tencache
