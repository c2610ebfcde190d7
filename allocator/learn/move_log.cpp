// SPDX-License-Identifier: Apache-2.0
#include "learn/move_log.h"

#include <algorithm>

namespace tencache {

void MoveLog::add(const Move& move) {
  MutexLock lock(mutex_);
  if (moves_.size() < kMovesKept) {
    moves_.push_back(move);
  } else {
    moves_[count_ % kMovesKept] = move;
  }
  ++count_;
}

KeptMoves MoveLog::kept() const {
  MutexLock lock(mutex_);
  KeptMoves kept{moves_, count_ - moves_.size()};
  // The oldest is where the next would go.
  const auto oldest = kept.lost_count > 0 ? static_cast<std::ptrdiff_t>(count_ % kMovesKept) : 0;
  std::rotate(kept.moves.begin(), kept.moves.begin() + oldest, kept.moves.end());
  return kept;
}

}  // namespace tencache
