// SPDX-License-Identifier: Apache-2.0
//
// MoveRequest: asks a mover to move an extent. Extents are recycled, so a request also names which
// extent is meant; the mover drops the request when another extent has taken the place of that one.
//
// RequestSource: gives a mover that fetches ahead of use its requests, one at a time. So the mover
// goes on for as long as there are requests and room, and stops as soon as they are called off.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/units.h"
#include "memory/extent.h"

namespace tencache {

/// Moves are begun in parts of at most this many bytes, or one extent.
inline constexpr uint64_t kBytesAtOnceMax = 16 * kMiB;

/// What the program had queued on a device when a request was made; the backend knows what it is.
class QueuedWork {
 public:
  QueuedWork() = default;
  virtual ~QueuedWork() = default;
  QueuedWork(const QueuedWork&) = delete;
  QueuedWork& operator=(const QueuedWork&) = delete;
};

struct MoveRequest {
  static constexpr uint64_t kAtAnyTime = ~uint64_t{0};  // given_at of what no use outdates

  Extent* extent = nullptr;
  uint64_t extent_id = 0;
  uint64_t bytes = 0;
  uint64_t given_at = 0;                          // of the recorder's clock
  std::shared_ptr<const QueuedWork> queued = {};  // null: nothing is queued, or that is unknown

  /// Whether the extent is still the one that was meant. The answer is a guess as long as nobody
  /// has claimed the extent; moving another one instead does no harm.
  bool is_current() const { return extent->id == extent_id; }
  /// Whether the extent was used, or wanted back, since the request was made.
  bool is_outdated() const {
    return extent->last_use_at.load(std::memory_order_relaxed) > given_at;
  }
};

/// A source of requests to fetch, in the sequence in which they are due. One thread takes them.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  /// The next request. Returns nullopt when there is none, or when a thread that waits goes first.
  virtual std::optional<MoveRequest> take() = 0;
  /// Call when the request taken last has to wait. It is the next one again, unless it was called
  /// off.
  virtual void put_back(const MoveRequest& request) = 0;
};

/// Call before a fetch ahead of use claims an extent: a sealed one may become cold in a moment.
inline void wait_while_sealing(const Extent& extent) {
  for (uint64_t word = extent.load(); Extent::state_of(word) == ExtentState::kSealing;
       word = extent.load()) {
    extent.wait_while(word);
  }
}

/// Whether `a` is to leave before `b`: the one needed later leaves first. Of two needed at the same
/// time, the one used longest ago does.
template <typename Candidate>
bool leaves_before(const Candidate& a, const Candidate& b) {
  if (a.ticks_to_next_use != b.ticks_to_next_use) return a.ticks_to_next_use > b.ticks_to_next_use;
  return a.last_use_at < b.last_use_at;
}

}  // namespace tencache
