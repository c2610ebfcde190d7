// SPDX-License-Identifier: Apache-2.0
//
// Fetch requests from a list, for tests that fetch ahead of use without a prefetcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "engine/move/move_request.h"
#include "engine/move/mover.h"

namespace tencache {

class ListedRequests final : public RequestSource {
 public:
  explicit ListedRequests(std::span<const MoveRequest> requests)
      : requests_(requests.begin(), requests.end()) {}

  std::optional<MoveRequest> take() override {
    if (requests_.empty()) return std::nullopt;
    const MoveRequest request = requests_.front();
    requests_.pop_front();
    return request;
  }
  void put_back(const MoveRequest& request) override { requests_.push_front(request); }

  size_t left() const { return requests_.size(); }

 private:
  std::deque<MoveRequest> requests_;
};

/// Fetches as many of the requests as there is room for, and returns the number of finished
/// requests. `lacking_bytes` is the room that the next one needs and does not find.
inline size_t prefetch(Mover& mover, std::span<const MoveRequest> requests,
                       uint64_t* lacking_bytes = nullptr) {
  ListedRequests listed(requests);
  uint64_t lacking = 0;
  while (listed.left() > 0 && lacking == 0) lacking = mover.prefetch(listed);
  if (lacking_bytes != nullptr) *lacking_bytes = lacking;
  return requests.size() - listed.left();
}

}  // namespace tencache
