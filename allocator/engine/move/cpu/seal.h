// SPDX-License-Identifier: Apache-2.0
//
// Seal: phases 3 and 4 of an eviction on the cpu backend (engine/move/cpu/slot_mover.h): the
// window in which an extent is sealed, the proof that its slot holds its bytes, and the mapping
// that makes it cold. There are two kinds of window.
//
//   Write-protected: reads go on, the program's writes wait, and the pages go back to the kernel
//   when the slot takes their place. The writes wait in the kernel (userfaultfd). Where that is not
//   allowed, they wait in the fault handler (mprotect), which a thread that blocks SIGSEGV does not
//   reach.
//
//   Moved (mremap behind an access barrier): the pages leave for a parking extent, an extent
//   without an owner, and are hashed there. A thread that touches the address meanwhile waits, in a
//   system call, too. Afterwards the parking extent is cached: its pages serve the next fetch or
//   allocation, so that the kernel need not clear new ones (memory/cpu_heap_frames.cpp). A dirty
//   extent is written in this window, too (engine/move/cpu/parked_evictions.h).
//
// The first kind serves where room in the budget has to become free, because a thread waits for it
// or the budget is exceeded, and where the kernel does not move the pages or keep every thread from
// them.
//
// Invariant: in both windows, nobody can change what is hashed until the extent is cold or resident
// again.
//
// Threads: any; an extent is the caller's, which has claimed it. The calling thread never touches
// an address whose pages are away. No lock is held across a hash or a mapping.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/move/cpu/slot_eviction.h"
#include "memory/cpu_heap.h"
#include "platform/access_barrier.h"
#include "tier/disk_tier.h"

namespace tencache {

enum class SealOutcome : uint8_t { kCold, kInUse, kDiffers, kFailed };

class Seal {
 public:
  /// `access_barrier` may be null: pages are never moved then. The arguments outlive the seal.
  Seal(CpuHeap& heap, DiskTier& disk, const AccessBarrier* access_barrier)
      : heap_(heap), disk_(disk), access_barrier_(access_barrier) {}

  /// Seals the extent, proves its slot and maps the slot. Unless the extent is cold then, it is
  /// still claimed: the caller writes it again or abandons it. `failure` is the reason of kFailed.
  SealOutcome make_cold(const SlotEviction& eviction, Status* failure);

  /// Whether an eviction would use the second kind of window now: the pages are parked, and serve
  /// the next fetch or allocation.
  bool parks_pages() const;
  /// Whether a thread that writes to the extent would have to wait in the fault handler.
  bool needs_signal(const Extent* extent) const;

  // The steps of the second kind of window, for extents that are written in it.

  /// Seals the extent. Returns false when it is in use, or was used since the claim; it may be
  /// sealed even so.
  static bool close_unused(const SlotEviction& eviction);
  /// Moves the pages of a sealed extent to a parking extent. A thread that touches the address
  /// waits from then on. Returns null where the kernel does not move them; nothing has happened
  /// then.
  Extent* move_away(const Extent* extent);
  /// Brings the first `bytes` of the extent back from its parking extent.
  void move_back(const Extent* extent, const Extent* parking, uint64_t bytes);
  /// Puts the slot in the place of pages that were moved away, and caches these. Where the kernel
  /// refuses, nothing has happened.
  Status leave_parked(Extent* extent, Extent* parking);

 private:
  SealOutcome close_by_protecting(Extent* extent, Status* failure);
  SealOutcome close_by_moving(Extent* extent);
  Status protect(Extent* extent, bool* by_signal);
  void unprotect(Extent* extent, bool by_signal);
  static SealOutcome prove(const Extent* extent, const char* memory);
  Status map_slot(Extent* extent);

  CpuHeap& heap_;
  DiskTier& disk_;
  const AccessBarrier* const access_barrier_;
};

}  // namespace tencache
