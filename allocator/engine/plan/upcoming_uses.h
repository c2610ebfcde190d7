// SPDX-License-Identifier: Apache-2.0
//
// UpcomingUses: what the program is about to name, known without having been learned. A list
// operator that is cut into chunks (shim/list_split.h) knows what all of them name before the first
// begins. So already the first step of an optimizer is a pipeline: while one chunk computes, what
// the next one names is fetched, and what no later chunk names leaves first. The least recently
// used would be the worst victims there: they are just those that the next chunk names.
//
// Where a plan foresaw the chunk, it knows the next ones and all that comes after them, so then
// nothing is requested here.
//
// Threads: any. Only the latest sequence counts, whichever thread passed it. mutex_ is a leaf lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/move/move_request.h"
#include "engine/parts.h"
#include "engine/plan/noted_extent.h"

namespace tencache {

class UpcomingUses {
 public:
  /// Of the parts, this uses heap and prefetcher.
  explicit UpcomingUses(const Parts& parts) : parts_(parts) {}

  /// Whether any use is still to come. If not, on_tick() may be left out.
  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }

  /// Tells that the calling thread will name these extents in this order. An empty sequence takes
  /// back the thread's last one.
  void expect(std::span<Extent* const> extents) TENCACHE_EXCLUDES(mutex_);
  /// Call once an op that names these extents has opened and all of them are usable. A plan may
  /// have foreseen the op.
  void on_tick(std::span<Extent* const> extents, bool is_foreseen) TENCACHE_EXCLUDES(mutex_);

  /// Bytes that were requested here and have not begun to come.
  uint64_t missing_bytes() const TENCACHE_EXCLUDES(mutex_);
  /// Places in the sequence, from where the program is. Returns an empty map when nothing is
  /// expected.
  std::unordered_map<const Extent*, uint64_t> next_uses() const TENCACHE_EXCLUDES(mutex_);

 private:
  struct Use : NotedExtent {
    bool is_requested = false;
  };

  void clear() TENCACHE_REQUIRES(mutex_);
  std::vector<MoveRequest> next_requests() TENCACHE_REQUIRES(mutex_);

  const Parts& parts_;
  std::atomic<bool> is_active_{false};

  mutable Mutex mutex_;
  std::thread::id owner_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<Use> uses_ TENCACHE_GUARDED_BY(mutex_);
  std::unordered_map<const Extent*, size_t> places_ TENCACHE_GUARDED_BY(mutex_);  // in uses_
  size_t position_ TENCACHE_GUARDED_BY(mutex_) = 0;  // everything before it has been named
};

}  // namespace tencache
