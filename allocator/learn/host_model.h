// SPDX-License-Identifier: Apache-2.0
//
// HostModel: the host memory between a GPU and a disk, for the simulator. It tells how long
// departing bytes wait for room there, and returning bytes for the disk. It does what the engine
// does (engine/move/cuda/host_ahead.h): first it gives up copies of resident tensors, then it
// writes the tensors that are needed last to disk. It reads what is needed next ahead of its fetch.
// If the plan says so, it copies what is needed last to disk while the disk has nothing to write.
//
// The model: the disk does one read and one write at a time, side by side. Where an eviction would
// leave less free than half of the headroom, the whole headroom is freed. A tensor that is being
// written still holds its room, so an eviction waits where more is being written than is free.
// Reads leave half of the headroom free. In the end there is always room; the engine would leave a
// tensor on the device instead, which the simulator does not play.
//
// Time never goes back between calls. The model is pure: it has no clock and no threads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "learn/number_set.h"
#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace.h"
#include "learn/use_order.h"

namespace tencache {

/// The part of host memory that is kept free for evictions where there is a disk below it.
inline constexpr double kHostHeadroomShare = 1.0 / 16;

/// How much of what is needed next is to be in host memory: all that fits beside half of the
/// headroom, which is left to evictions. A disk is so much slower than the link that reads must
/// begin as soon as there is room. Tensors that make room are needed later than those that are
/// read, since the tensors needed last leave first.
constexpr uint64_t bytes_needed_next(uint64_t host_bytes, uint64_t headroom_bytes) {
  return host_bytes - headroom_bytes / 2;
}

class HostModel {
 public:
  /// Copies to disk are made ahead of need until `copy_ahead_bytes` lie there. REQUIRES:
  /// machine.host_bytes > 0. What the disk carries is noted in `notes`. Trace, machine and notes
  /// outlive the model.
  HostModel(const Trace& trace, const Machine& machine, uint64_t copy_ahead_bytes,
            Simulation* notes);

  /// Whether the tensor has a copy, in either tier.
  bool holds(uint32_t tensor) const {
    return copies_[tensor].is_in_host || copies_[tensor].is_on_disk;
  }
  /// Takes room for a departing tensor without a copy. Returns the time from which on there is
  /// room.
  uint64_t take_room(uint32_t tensor, uint64_t now_ns);
  /// The tensor becomes cold now; `next_use` counts ticks since the start of the simulation.
  void become_cold(uint32_t tensor, uint64_t next_use);
  /// The tensor is to come back. Returns the time from which on its bytes are in host memory.
  uint64_t fetch(uint32_t tensor, uint64_t now_ns);
  /// The tensor is back; its copy is now a spare one.
  void become_resident(uint32_t tensor);
  /// The tensor's copy is worthless from now on.
  void forget(uint32_t tensor);
  /// Plays the copies ahead of need and the reads ahead of use that can begin by then.
  void advance(uint64_t until_ns);

  uint64_t used_bytes() const { return used_bytes_; }
  /// The times until which the disk is busy with the reads, or the writes, that it was given.
  uint64_t read_free_ns() const { return read_free_ns_; }
  uint64_t write_free_ns() const { return write_free_ns_; }

 private:
  struct Copy {
    bool is_in_host = false;
    bool is_on_disk = false;
    bool is_cold = false;
    bool is_spare = false;
    uint64_t next_use = 0;  // while it is cold
    uint64_t ready_ns = 0;  // when its bytes in host memory can be read
  };

  uint64_t bytes_of(uint32_t tensor) const { return trace_.tensors[tensor].bytes; }
  uint64_t enter(uint32_t tensor, uint64_t kept_free_bytes, uint64_t now_ns);
  void make_room(uint64_t bytes, uint64_t kept_free_bytes, uint64_t now_ns);
  bool drop_spare_copy();
  bool demote_last(uint64_t now_ns);
  void give_back(uint32_t tensor);
  void read(uint32_t tensor, uint64_t now_ns);
  void write(uint32_t tensor, uint64_t begin_ns);
  void read_ahead(uint64_t until_ns);
  void copy_ahead(uint64_t until_ns);
  /// Whether the disk lacks a copy that may be made ahead of need.
  bool is_to_copy(const Copy& copy) const { return copy_ahead_bytes_ > 0 && !copy.is_on_disk; }
  bool may_be_copied(uint32_t tensor) const {
    return disk_bytes_ + bytes_of(tensor) <= copy_ahead_bytes_;
  }
  std::optional<uint32_t> first_to_read();
  uint64_t in_host_bytes_until(uint64_t use);
  bool has_room_for(uint32_t tensor);
  void enter_cold(uint32_t tensor);
  void leave_cold(uint32_t tensor);
  void remove_spare(uint32_t tensor);
  UseOrder& cold_list_of(const Copy& copy) { return copy.is_in_host ? in_host_ : on_disk_; }

  const Trace& trace_;
  const Machine& machine_;
  const uint64_t copy_ahead_bytes_;
  Simulation& notes_;
  const uint64_t window_bytes_;  // bytes_needed_next()
  std::vector<Copy> copies_;
  // Cold tensors: those with a block of host memory, and those on disk alone.
  UseOrder in_host_;
  UseOrder on_disk_;
  // counted_bytes_: the bytes of the cold tensors in host memory that are needed at counted_until_
  // or before.
  uint64_t counted_until_ = 0;
  uint64_t counted_bytes_ = 0;
  uint64_t cold_bytes_ = 0;  // of all of those in host memory
  UseOrder not_copied_;      // of them: the ones that the disk lacks; empty if none is copied ahead
  uint64_t disk_bytes_ = 0;  // of all that have a copy on disk
  NumberSet spare_;          // resident tensors with a copy in host memory
  uint64_t spare_bytes_ = 0;  // of those
  uint64_t used_bytes_ = 0;   // of host memory
  uint64_t read_free_ns_ = 0;
  uint64_t write_free_ns_ = 0;
  uint64_t now_ns_ = 0;
  uint64_t fetched_bytes_ = 0;  // since the last look for what is needed next
};

}  // namespace tencache
