// SPDX-License-Identifier: Apache-2.0
//
// read_slots: reads slots of the disk tier into memory that nobody else sees, in a transfer with
// several requests in flight, and hashes the pieces as they arrive. Bytes are handed on only when
// their hash is that of what was written. Other bytes end the process: those that were written are
// lost, and the program would go on with wrong ones. A read that the kernel refuses is repeated,
// since a path of the device may reset; the caller decides whether the last refusal is fatal.
//
// Threads: any; a transfer runs on the calling thread. The slots are the caller's.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/stats.h"
#include "base/status.h"
#include "memory/extent.h"
#include "tier/disk_tier.h"

namespace tencache {

struct SlotRead {
  const Extent* extent = nullptr;  // whose slot is read
  char* memory = nullptr;          // for all of its bytes, aligned to kIoAlignment
};

struct SlotReadResult {
  size_t done = 0;  // this many, from the first on, are there and proved
  Status status;    // why the others are not, after several tries
};

/// Gives one more slot to read. Returns false when there is none now.
using NextRead = std::function<bool(SlotRead* read)>;

/// Reads in order, and calls `on_read` with the index of each slot as soon as all of the slot is
/// there and proved, while later ones are still read. As long as reads are in flight this asks
/// `next_read`, which may be empty, for more; those are numbered after `reads`.
SlotReadResult read_slots(DiskTier& disk, std::span<const SlotRead> reads,
                          const std::function<void(size_t index)>& on_read, Stats& stats,
                          const NextRead& next_read = {});

/// Ends the process: an op or a checkpoint needs bytes that cannot be read back.
[[noreturn]] void end_for_unreadable_slots(const DiskTier& disk, const Status& reason);
/// Ends the process: the disk gave other bytes than were written.
[[noreturn]] void end_for_other_bytes(const DiskTier& disk, const Extent& extent);

}  // namespace tencache
