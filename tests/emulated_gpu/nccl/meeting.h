// SPDX-License-Identifier: Apache-2.0
//
// The shared state of the ranks of one communicator, and their waits for each other. In shared
// memory each rank has a seat: its process, a doorbell that others ring after a change it may wait
// for, its arrivals at barriers, and its vote when the communicator is split. Each ordered pair of
// ranks has a mailbox for one piece of a message in each of two lanes, so that collectives and
// messages of send and receive do not overtake or mix with each other.
//
// Nobody waits for the dead. After every ring, and ten times a second, a waiting rank checks
// whether a rank it needs has left or its process has ended. That is an error only if the pieces it
// left in the mailboxes do not suffice. A rank leaves when its meeting is destroyed or aborted.
//
// Threads: streams' threads exchange; the program's threads join, pass barriers and abort. One
// thread at a time may fill a mailbox or empty it.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "shared_memory.h"

namespace emulated_gpu::nccl {

constexpr size_t kPieceBytes = 256 << 10;

enum class Lane : uint8_t { kCollective, kPointToPoint };
constexpr int kLaneCount = 2;

/// Room for one piece of a message. The sender fills it when it is empty, and the receiver empties
/// it.
struct Mailbox {
  std::atomic<uint32_t> is_full;
  uint32_t piece_bytes;
  uint64_t message_bytes;  // of the whole message
  alignas(64) char piece[kPieceBytes];
};

/// A rank's wish in a split, and the place where the ranks of its color will meet.
struct Vote {
  int32_t color;
  int32_t key;
  Place place;
};

class Meeting {
 public:
  Meeting(const Place& place, int rank, int count);
  /// Leaves the meeting.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  int rank() const { return rank_; }
  int count() const { return count_; }

  /// Waits until all ranks have come. Every method below requires that.
  ncclResult_t join();
  /// Waits until all ranks have called it equally often.
  ncclResult_t pass_barrier();
  Vote& vote(int rank);

  Mailbox& mailbox(Lane lane, int from, int to);
  /// Wakes the rank, which may wait for the change.
  void ring(int rank);
  /// Calls `is_done` at once, then at each ring of this rank and ten times a second, until it
  /// returns true. Fails when a rank that `is_needed` names has gone, or the meeting is aborted.
  ncclResult_t wait_until(const char* what, const std::function<bool()>& is_done,
                          const std::function<bool(int)>& is_needed);

  /// Makes waiting threads here return, and tells the other ranks that this one is gone.
  void abort();
  bool is_aborted() const { return is_aborted_.load(); }

 private:
  struct Seat;

  Seat& seat(int rank) const;
  void leave();
  bool is_gone(int rank);
  // The lowest needed rank that has gone, or -1 if none has.
  int find_gone(const std::function<bool(int)>& is_needed);

  const Place place_;
  const int rank_;
  const int count_;
  SharedMemory memory_;
  std::vector<int> processes_;  // a pidfd of each rank, -1 before it has come; filled by join()
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace emulated_gpu::nccl
