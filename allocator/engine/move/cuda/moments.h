// SPDX-License-Identifier: Apache-2.0
//
// Moment: one mark on each stream that has used the extents being evicted. It covers all work that
// was queued on these streams so far. Moments: makes moments and keeps the latest, the oldest
// first. An extent that was not used since a moment waits for that one, and not for what a program
// that is ahead of its GPU has queued since.
//
// Threads: any. mutex_ is a leaf and held for bookkeeping only, never across a call of the driver.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/move/move_request.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"
#include "platform/stream_set.h"

namespace tencache {

struct Moment final : QueuedWork {
  uint64_t at = 0;
  StreamSet streams = kNoStreams;
  std::vector<StreamMark> marks;

  bool covers(const Extent& extent, StreamSet users) const {
    return extent.last_use_at.load(std::memory_order_relaxed) <= at &&
           (users & ~streams) == kNoStreams;
  }
};
using MomentPtr = std::shared_ptr<const Moment>;

class Moments {
 public:
  /// `evictions` are the streams that read what leaves; that does not count as a use.
  Moments(StreamNumbers& numbers, StreamSet evictions) : numbers_(numbers), evictions_(evictions) {}

  /// The streams that have used an extent of the program's.
  StreamSet users_of(const Extent& extent) const {
    return extent.used_by.load(std::memory_order_relaxed) & ~evictions_;
  }
  /// Marks the streams that have used what is requested to leave. Returns null when the streams
  /// cannot be marked now; then they are marked when the request is carried out.
  MomentPtr mark_users(std::span<const MoveRequest> requests) TENCACHE_EXCLUDES(mutex_);
  /// The first moment known after the last use. Returns null when the extent was used since the
  /// last moment, or when that cannot be told.
  MomentPtr after_uses(const MoveRequest& request) TENCACHE_EXCLUDES(mutex_);

 private:
  StreamNumbers& numbers_;
  const StreamSet evictions_;

  Mutex mutex_;
  std::deque<MomentPtr> moments_ TENCACHE_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace tencache
