// SPDX-License-Identifier: Apache-2.0
//
// EvictionSource: gives a mover requests to evict, and hears what left. Whoever wants room is one.
// The mover asks for more before it runs dry, so the link stays busy from one request to the next.
//
// ListedEvictions: a source of requests that are known from the start.
//
// Threads: the one that evicts.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "engine/move/move_ledger.h"
#include "engine/move/move_request.h"

namespace tencache {

class EvictionSource {
 public:
  virtual ~EvictionSource() = default;
  /// Returns what is to leave next, in this sequence (extents that are presumed clean may go
  /// first). Returns an empty vector when there is nothing for now. Of what was taken before,
  /// `bytes_under_way` have begun to leave.
  virtual std::vector<MoveRequest> take(uint64_t bytes_under_way) = 0;
  /// Returns after this time, or as soon as there may be more to take.
  virtual void await_more(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }
  /// Call when a part has left, or a failure kept it.
  virtual void on_evicted(const EvictionResult& part) = 0;
};

class ListedEvictions final : public EvictionSource {
 public:
  explicit ListedEvictions(std::vector<MoveRequest> requests) : requests_(std::move(requests)) {}

  std::vector<MoveRequest> take(uint64_t /*bytes_under_way*/) override {
    return std::exchange(requests_, {});
  }
  void on_evicted(const EvictionResult& part) override { total_.add(part); }

  const EvictionResult& total() const { return total_; }

 private:
  std::vector<MoveRequest> requests_;
  EvictionResult total_;
};

}  // namespace tencache
