// SPDX-License-Identifier: Apache-2.0
//
// Chaos: a mode in which the end of any outermost op may evict everything that may leave. It finds
// accesses that nothing announces, and pins that end too early. The draws depend only on the seed
// and on how many outermost ops have ended.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/parts.h"

namespace tencache {

struct ChaosConfig {
  uint64_t seed = 0;
  double probability = 1.0;  // that an outermost op's end evicts
};

class Chaos {
 public:
  Chaos(const Parts& parts, ChaosConfig config) : parts_(parts), config_(config) {}

  /// Call when the calling thread has no op open any more.
  void on_outermost_close();

 private:
  const Parts& parts_;
  const ChaosConfig config_;
  std::atomic<uint64_t> draws_{0};
};

}  // namespace tencache
