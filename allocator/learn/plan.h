// SPDX-License-Identifier: Apache-2.0
//
// Plan: which tensor of a trace leaves the device after which op, and at which op it begins to come
// back, so that it is there before it is named. Machine: what moving costs, for planner and
// simulator.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/trace.h"

namespace tencache {

struct PlannedMove {
  uint32_t tensor = 0;
  Tick evict_after = 0;     // at the end of this op
  Tick fetch_at = kNoTick;  // may start at the start of this op; kNoTick: freed before its next use
  Tick needed_at = kNoTick;  // the op that names it next
};

/// Which tensor leaves when room is short and no planned move makes any.
enum class Victim : uint8_t {
  kLeastRecentlyUsed,  // what the engine does without a plan
  kFarthestNextUse,    // Belady's rule, the best for blocks of one size that need no write
};

struct Plan {
  std::vector<PlannedMove> moves;
  Victim otherwise = Victim::kFarthestNextUse;
  // Where a disk lies below host memory: while the disk has nothing else to write, what is needed
  // last is copied to it, until this much lies there.
  uint64_t copy_ahead_bytes = 0;
};

constexpr uint64_t transfer_ns(uint64_t bytes, double bytes_per_s) {
  return static_cast<uint64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9);
}

/// By how much links and disk may be slower or faster than measured at another time.
inline constexpr double kSpeedErrorShare = 0.2;

/// What the machine offers. Sizes are in bytes, times in nanoseconds.
struct Machine {
  uint64_t budget_bytes = 0;
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  bool is_half_duplex = false;  // reads and writes take turns, as on one disk
  uint64_t read_fixed_ns = 0;   // per migration, besides its bytes
  uint64_t write_fixed_ns = 0;
  // Processor time of a move, which a program that computes on all processors loses.
  double read_work_ns_per_byte = 0;
  double write_work_ns_per_byte = 0;
  double drop_work_ns_per_byte = 0;  // for everything that leaves, written or not
  // Where a disk lies below the tier that the device writes to: the size of that tier, the part of
  // it that is kept free, and the speed of the disk. A size of 0 means that the tier holds
  // everything.
  uint64_t host_bytes = 0;
  uint64_t host_headroom_bytes = 0;
  double disk_read_bytes_per_s = 0;
  double disk_write_bytes_per_s = 0;
  // A fetch that an op waits for no longer than this is not late. 0 means that threads wait, not a
  // device, and that whatever an op finds cold is late.
  uint64_t wait_resolution_ns = 0;
  bool is_read_guessed = false;   // the speed of reads, because too little has come back
  bool is_write_guessed = false;  // the same of writes
  // How much a half-duplex link carries at once, over what it carries in turn. A bound counts it,
  // since a schedule may have both directions under way; the simulator does not.
  double gain_of_both = 1;

  uint64_t read_ns(uint64_t bytes) const {
    return read_fixed_ns + transfer_ns(bytes, read_bytes_per_s);
  }
  uint64_t write_ns(uint64_t bytes) const {
    return write_fixed_ns + transfer_ns(bytes, write_bytes_per_s);
  }
  /// The least time for reads and writes on a half-duplex link, given the time of each alone.
  uint64_t both_ns(uint64_t read_ns, uint64_t write_ns) const {
    return static_cast<uint64_t>(static_cast<double>(read_ns + write_ns) / gain_of_both);
  }
  /// The same machine with links and disk at this share of their speed.
  Machine at_speed(double share) const {
    Machine other = *this;
    other.read_bytes_per_s *= share;
    other.write_bytes_per_s *= share;
    other.disk_read_bytes_per_s *= share;
    other.disk_write_bytes_per_s *= share;
    return other;
  }
  uint64_t work_ns(uint64_t read_bytes, uint64_t written_bytes, uint64_t left_bytes) const {
    return static_cast<uint64_t>(static_cast<double>(read_bytes) * read_work_ns_per_byte +
                                 static_cast<double>(written_bytes) * write_work_ns_per_byte +
                                 static_cast<double>(left_bytes) * drop_work_ns_per_byte);
  }
};

}  // namespace tencache
