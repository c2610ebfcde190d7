// SPDX-License-Identifier: Apache-2.0
//
// eventually(): for what another thread or the kernel does in its own time. Any thread.
#pragma once

#include <chrono>
#include <thread>

namespace tencache {

/// Asks until the answer is yes, for a minute: that costs nothing where it comes, and is long
/// enough for a machine that does much else. Returns the last answer.
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
