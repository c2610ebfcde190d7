// SPDX-License-Identifier: Apache-2.0
//
// Flights: the extents whose bytes are on their way to the GPU. A flight is a batch of them with
// one mark, which is reached when all of the batch has arrived. Flights owns the list of flights,
// and the end of every fetch: an extent that was claimed takes off, or is left cold.
//
// Invariants
//   1. An extent of a flight is Arriving, or Cached where the program has freed it meanwhile. It is
//      busy, and belongs to its flight.
//   2. An extent is Arriving a moment before its flight is entered, and a moment after the flight
//      is taken out; a thread that finds it in no flight looks again.
//   3. One thread lands a flight: the one that took it out.
//   4. bytes_ahead of the ledger counts the bytes of every flight, and of fetches ahead of use that
//      have not taken off.
//
// Threads: any. mutex_ is a leaf and held for bookkeeping only, never across a call of the driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/move/cuda/stream_parts.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/stream_mark.h"
#include "platform/stream_set.h"

namespace tencache {

/// Extents that are fetched together, and what becomes of them.
struct FetchBatch {
  bool is_ahead = false;
  std::vector<CudaExtent*> extents = {};    // still to be brought
  std::vector<CudaExtent*> later = {};      // on demand: once the others leave room in host memory
  std::vector<CudaExtent*> left_cold = {};  // neither now nor later
};

class Flights {
 public:
  /// The parts outlive this object.
  explicit Flights(const StreamParts& parts) : parts_(parts) {}
  Flights(const Flights&) = delete;
  Flights& operator=(const Flights&) = delete;

  /// Call when the bytes of these extents are queued on `stream`, with `mark` after them.
  void take_off(const std::vector<CudaExtent*>& extents, StreamMark mark, StreamSet stream,
                bool is_ahead) TENCACHE_EXCLUDES(mutex_);
  /// Ends the fetch of an extent of the batch that has no frame: it is cold again and has no room.
  void leave_cold(CudaExtent* extent, FetchBatch* batch, const Status& reason);

  /// Lets the streams wait for the extent unless it has arrived. Returns true if it has. Returns
  /// nullopt when it is in no flight, though it was Arriving a moment ago.
  std::optional<bool> join(const CudaExtent* extent, StreamSet streams) TENCACHE_EXCLUDES(mutex_);
  /// Whether both are in one flight: their bytes count as arrived at the same moment.
  bool are_together(const Extent* one, const Extent* other) TENCACHE_EXCLUDES(mutex_);
  /// Waits for the flight of the extent. Returns false when it is in none.
  bool await(const Extent* extent) TENCACHE_EXCLUDES(mutex_);
  /// Waits for the oldest flight, and returns true. Returns false, without a wait, where there are
  /// fewer than two: another is to be queued behind the first.
  bool wait_for_oldest() TENCACHE_EXCLUDES(mutex_);
  /// Lands what has arrived; waits for all flights if it may.
  void settle(bool may_wait) TENCACHE_EXCLUDES(mutex_);

 private:
  struct Flight {
    std::vector<CudaExtent*> extents;
    StreamMark mark;
    StreamSet stream = kNoStreams;  // that brings them
    uint64_t begun_at = 0;          // a timestamp
    bool is_ahead = false;
  };
  using FlightPtr = std::shared_ptr<const Flight>;

  FlightPtr find(const Extent* extent) TENCACHE_EXCLUDES(mutex_);
  void hold_back(StreamSet streams, const Flight& flight);
  void land(const Flight& flight);

  const StreamParts& parts_;
  std::atomic<bool> has_warned_{false};

  Mutex mutex_;
  std::deque<FlightPtr> flights_ TENCACHE_GUARDED_BY(mutex_);  // oldest first
  std::unordered_map<const Extent*, FlightPtr> flight_of_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
