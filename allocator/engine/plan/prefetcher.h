// SPDX-License-Identifier: Apache-2.0
//
// Prefetcher: carries out the fetches that a plan or a list op (engine/plan/upcoming_uses.h)
// requests, in order, ahead of use. It takes room only where there is some: free room first, then
// that of cached extents; else it waits for an eviction. While an op waits for a fetch on demand,
// or an allocation for room, the prefetcher begins nothing new, so that the waiting thread has the
// disk or the link to itself.
//
// Guesses (engine/plan/neighbours.h) come after all requests and hold up none of them. A plan knows
// what the program is about to allocate, a guess does not: so guesses leave the headroom free.
//
// Threads: one worker; any thread calls the rest. mutex_ is never held while anything moves.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/move/move_request.h"
#include "engine/move/mover.h"
#include "memory/heap.h"

namespace tencache {

class Prefetcher final : private RequestSource {
 public:
  Prefetcher(Heap& heap, Mover& mover) : heap_(heap), mover_(mover) {}
  /// Stops the worker after the fetches under way.
  ~Prefetcher() override;

  void start();

  void request(std::span<const MoveRequest> fetches) TENCACHE_EXCLUDES(mutex_);
  /// Replaces all earlier guesses that have not begun.
  void guess(std::vector<MoveRequest> fetches) TENCACHE_EXCLUDES(mutex_);
  /// Bytes of guesses that have not begun and whose extents are cold.
  uint64_t guessed_bytes() const TENCACHE_EXCLUDES(mutex_);
  /// Drops every request that was not taken, and the one that was taken last, should it be put
  /// back.
  void forget() TENCACHE_EXCLUDES(mutex_);
  /// Whether any request is left, or anything is under way.
  bool has_requests() const TENCACHE_EXCLUDES(mutex_);
  /// Whether one of these extents is cold, and its request is left or was taken last.
  bool has_requests_for(std::span<Extent* const> extents) const TENCACHE_EXCLUDES(mutex_);
  /// Whether a fetch is under way or about to begin.
  bool is_at_work() const TENCACHE_EXCLUDES(mutex_);
  /// Call when something was evicted.
  void on_room() TENCACHE_EXCLUDES(mutex_);

 private:
  void work();
  std::optional<MoveRequest> take() override TENCACHE_EXCLUDES(mutex_);
  void put_back(const MoveRequest& request) override TENCACHE_EXCLUDES(mutex_);
  bool has_work() const TENCACHE_REQUIRES(mutex_) {
    return !requests_.empty() || !guesses_.empty();
  }
  bool has_room_for_guess() const TENCACHE_REQUIRES(mutex_);

  Heap& heap_;
  Mover& mover_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::atomic<bool> has_guesses_{false};  // so that nobody takes the lock to learn of none
  std::deque<MoveRequest> requests_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<MoveRequest> guesses_ TENCACHE_GUARDED_BY(mutex_);
  std::optional<MoveRequest> in_hand_ TENCACHE_GUARDED_BY(mutex_);  // the one that was taken last
  bool is_guess_ TENCACHE_GUARDED_BY(mutex_) = false;               // the one taken last
  bool is_at_work_ TENCACHE_GUARDED_BY(mutex_) = false;
  bool is_called_off_ TENCACHE_GUARDED_BY(mutex_) = false;  // the one taken last, if it is put back
  bool is_stopping_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread worker_;
};

}  // namespace tencache
