// SPDX-License-Identifier: Apache-2.0
//
// eventually(): waits for the work of another thread or of the kernel. Threads: any.
#pragma once

#include <chrono>
#include <thread>

namespace tencache {

/// Evaluates the condition until it holds, for a minute at most. The wait ends as soon as the
/// condition holds, and a minute is long enough for a busy machine. Returns the last answer.
template <typename Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tencache
