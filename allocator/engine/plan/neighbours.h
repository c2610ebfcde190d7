// SPDX-License-Identifier: Apache-2.0
//
// Neighbours: fetches ahead where nothing is known about the program. Extents that were allocated
// in a row are mostly named in a row, too, or in the reverse order: parameters in a forward pass,
// activations in a backward pass, all that a checkpoint holds. So where the program has had to wait
// for some extents that are neighbours by their numbers, the next ones in that direction are
// fetched before it names them, up to a share of the budget. A few rows may take turns: a backward
// pass names activations and parameters. A row that does not go on while others do is over.
//
// Where a plan or a list operator (engine/plan/upcoming_uses.h) tells what comes next, nothing is
// guessed.
//
// Threads: any. mutex_ is a leaf lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/move/move_request.h"
#include "engine/parts.h"
#include "engine/plan/noted_extent.h"

namespace tencache {

class Neighbours {
 public:
  /// Of the parts, this uses heap, prefetcher and evictor.
  explicit Neighbours(const Parts& parts) : parts_(parts) {}

  /// Whether anything that was guessed has not been named yet. If not, on_early() and clear() may
  /// be left out.
  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }

  /// Call when the program had to wait for these extents, which nothing had foreseen.
  void on_late(std::span<Extent* const> extents) TENCACHE_EXCLUDES(mutex_);
  /// Call when the program names an extent that was fetched ahead.
  void on_early(const Extent* extent) TENCACHE_EXCLUDES(mutex_);
  /// Call when something else tells from now on what comes next.
  void clear() TENCACHE_EXCLUDES(mutex_);

 private:
  static constexpr size_t kRows = 4;

  struct Row {
    uint64_t last_id = 0;     // named last
    uint64_t ahead_id = 0;    // the farthest guess; `last_id` when nothing is ahead
    uint64_t half_id = 0;     // from where on less than half of what was guessed is still ahead
    ptrdiff_t direction = 0;  // 1 or -1; 0: not known yet
    uint32_t length = 0;      // 0: there is no row
    uint64_t used_at = 0;     // the newest is the highest

    bool is_past_half() const { return direction > 0 ? last_id >= half_id : last_id <= half_id; }
  };

  void list_extents() TENCACHE_EXCLUDES(mutex_);
  bool is_list_old(std::span<Extent* const> extents) TENCACHE_EXCLUDES(mutex_);
  ptrdiff_t place_of(uint64_t id) const TENCACHE_REQUIRES(mutex_);
  bool is_known(uint64_t id) const TENCACHE_REQUIRES(mutex_);
  bool continues(const Row& row, uint64_t id) const TENCACHE_REQUIRES(mutex_);
  const Row* go_on(uint64_t id) TENCACHE_REQUIRES(mutex_);
  void append_guesses(Row* row, std::vector<MoveRequest>* guesses) const TENCACHE_REQUIRES(mutex_);
  std::vector<MoveRequest> next_guesses() TENCACHE_REQUIRES(mutex_);
  void guess(std::vector<MoveRequest> guesses) const TENCACHE_EXCLUDES(mutex_);

  const Parts& parts_;
  std::atomic<bool> is_active_{false};

  mutable Mutex mutex_;
  std::vector<NotedExtent> known_ TENCACHE_GUARDED_BY(mutex_);  // by their numbers
  uint64_t late_since_listed_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::array<Row, kRows> rows_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t uses_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

}  // namespace tencache
