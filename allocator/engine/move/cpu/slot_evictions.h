// SPDX-License-Identifier: Apache-2.0
//
// SlotEvictions: evicts batches of extents on the cpu backend, in the phases of
// engine/move/cpu/slot_mover.h: it claims them, gives them slots and writes these; Seal proves and
// maps. Extents that are presumed clean skip phase 2 and go first. Dirty ones whose pages can be
// parked go through ParkedEvictions.
//
// Invariant: an extent that was claimed is cold or abandoned when evict() returns.
//
// Threads: any. The calling thread holds a MigrationPermit and the batch; no lock is held across a
// copy, an I/O or a mapping.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/move/cpu/parked_evictions.h"
#include "engine/move/cpu/seal.h"
#include "engine/move/cpu/slot_eviction.h"
#include "engine/move/fork_latch.h"
#include "engine/move/move_ledger.h"
#include "memory/cpu_heap.h"
#include "platform/access_barrier.h"
#include "tier/disk_tier.h"

namespace tencache {

class SlotEvictions {
 public:
  /// `access_barrier` may be null. The arguments outlive this object.
  SlotEvictions(CpuHeap& heap, DiskTier& disk, const AccessBarrier* access_barrier,
                MoveLedger& ledger, ForkLatch& latch)
      : heap_(heap),
        disk_(disk),
        ledger_(ledger),
        fork_latch_(latch),
        seal_(heap, disk, access_barrier),
        parked_(heap, disk, seal_, ledger) {}

  EvictionResult evict(std::span<Extent* const> extents);

 private:
  std::vector<SlotEviction> claim(std::span<Extent* const> extents) const;
  bool may_be_sealed(const Extent* extent) const;
  void take_slots(std::vector<SlotEviction>& evictions, EvictionResult* result);
  Status ensure_slot(Extent* extent);
  void write_slots(std::vector<SlotEviction>& evictions, EvictionResult* result);
  void seal_and_map(std::span<const SlotEviction> evictions, EvictionResult* result,
                    std::vector<SlotEviction>* differing);

  CpuHeap& heap_;
  DiskTier& disk_;
  MoveLedger& ledger_;
  ForkLatch& fork_latch_;
  Seal seal_;
  ParkedEvictions parked_;
};

}  // namespace tencache
