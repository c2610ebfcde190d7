// SPDX-License-Identifier: Apache-2.0
//
// MoveLog: the newest moves between tiers, for the trace file. A move takes tens of microseconds at
// least, so the cost of a lock and one entry for each does not show, and the log is always on. Its
// memory is reserved at once and never grows; the untouched pages cost nothing.
//
// A move that is queued in a stream ends, for the log, when somebody notices that it has ended,
// which is a little late.
//
// Threads: any. mutex_ is a leaf.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/mutex.h"

namespace tencache {

enum class MoveKind : uint8_t {
  kFetch = 0,       // to the device; a thread waits for it
  kFetchAhead = 1,  // to the device, ahead of use
  kEvict = 2,       // from the device, copied to the tier below
  kDrop = 3,        // from the device without a copy: the tier below has the bytes already
  kDemote = 4,      // from host memory to disk
  kReadBack = 5,    // from disk to host memory, on its way to the device
};

struct Move {
  uint64_t begin = 0;  // timestamps
  uint64_t end = 0;
  uint64_t extent_id = 0;
  uint64_t bytes = 0;
  uint64_t device_used_bytes = 0;  // in the budget, at its end
  MoveKind kind = MoveKind::kFetch;
};

inline constexpr uint64_t kMovesKept = uint64_t{1} << 16;

struct KeptMoves {
  std::vector<Move> moves;  // in the order in which they ended
  uint64_t lost_count = 0;  // older ones
};

class MoveLog {
 public:
  MoveLog() { moves_.reserve(kMovesKept); }
  MoveLog(const MoveLog&) = delete;
  MoveLog& operator=(const MoveLog&) = delete;

  void add(const Move& move) TENCACHE_EXCLUDES(mutex_);
  KeptMoves kept() const TENCACHE_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::vector<Move> moves_ TENCACHE_GUARDED_BY(mutex_);  // a ring once it is full
  uint64_t count_ TENCACHE_GUARDED_BY(mutex_) = 0;       // of all moves ever
};

}  // namespace tencache
