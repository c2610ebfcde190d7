// SPDX-License-Identifier: Apache-2.0
//
// ParkedEvictions: evicts dirty extents whose pages can be parked. Their pages are moved away first
// (engine/move/cpu/seal.h) and written from where they are then. Nobody can reach them there, so
// the slot holds exactly the bytes that were hashed on their way; neither a copy nor a second hash
// has to prove it, as they do for other extents (Note [Bounce ring] in
// engine/move/cpu/eviction_writer.h). That halves the processor time of an eviction, which a
// program that computes on all processors would miss.
//
// The price: a thread that touches the extent while it is written waits. An op, a request to fetch
// it and free() call the eviction off; the writer checks for that at each piece. Then the pages are
// back at once, and the program goes on while the device still reads from them. The device may read
// anything then, so the slot stays out of use until the transfer has ended. An access that nobody
// announced waits for the end of the transfer, some milliseconds.
//
// Threads: any; the calling one never touches the address of an extent whose pages are away.
#pragma once

#include <vector>

#include "engine/move/cpu/seal.h"
#include "engine/move/cpu/slot_eviction.h"
#include "engine/move/move_ledger.h"
#include "memory/cpu_heap.h"
#include "tier/disk_tier.h"

namespace tencache {

class ParkedEvictions {
 public:
  /// The arguments must outlive this object.
  ParkedEvictions(CpuHeap& heap, DiskTier& disk, Seal& seal, MoveLedger& ledger)
      : heap_(heap), disk_(disk), seal_(seal), ledger_(ledger) {}

  /// Runs phases 2 to 4 of evictions that have slots. Leaves in `evictions` those whose pages the
  /// kernel does not move.
  void evict(std::vector<SlotEviction>* evictions, EvictionResult* result);

 private:
  struct Parked;
  class Writer;

  std::vector<Parked> move_all_away(std::vector<SlotEviction>* evictions);
  void call_off(Parked* parked);
  void end(Parked* parked, const Status& written, EvictionResult* result);

  CpuHeap& heap_;
  DiskTier& disk_;
  Seal& seal_;
  MoveLedger& ledger_;
};

}  // namespace tencache
