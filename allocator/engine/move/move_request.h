// SPDX-License-Identifier: Apache-2.0
//
// MoveRequest: an extent that a plan wants moved. Extents are recycled, so an order names the one
// that is meant, too; whoever carries it out drops it when another extent has taken its place.
//
// RequestSource: whoever fetches ahead of use takes requests one at a time, so that it goes on for
// as long as there are some and room, and stops as soon as they are called off.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "memory/extent.h"

namespace tencache {

/// What the program had queued on a device when an order was given; the backend knows what it is.
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
  std::shared_ptr<const QueuedWork> queued = {};  // null where nothing is, or it is not known

  /// A guess as long as nobody has claimed the extent; moving another one instead does no harm.
  bool is_current() const { return extent->id == extent_id; }
  /// Whether it was used, or wanted back, since the order was given.
  bool is_outdated() const {
    return extent->last_use_at.load(std::memory_order_relaxed) > given_at;
  }
};

/// Orders of fetches, in the sequence in which they are due. One thread takes them.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  /// The one whose turn it is; none when there is none, or an op goes first.
  virtual std::optional<MoveRequest> take() = 0;
  /// The one taken last has to wait; it is the next one again.
  virtual void put_back(const MoveRequest& request) = 0;
};

/// Whether `a` is to leave before `b`: what is needed last goes first, and of what is needed at the
/// same time that which was used longest ago.
template <typename Candidate>
bool leaves_before(const Candidate& a, const Candidate& b) {
  if (a.ticks_to_next_use != b.ticks_to_next_use) return a.ticks_to_next_use > b.ticks_to_next_use;
  return a.last_use_at < b.last_use_at;
}

}  // namespace tencache
