// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/driver_use.h"

#include <pthread.h>

#include <cstdlib>
#include <mutex>

namespace tencache {
namespace {

// In the child only the forking thread exists, and it may do little else than this.
void note_fork() { g_driver_use.store(DriverUse::kInForkedChild, std::memory_order_relaxed); }

}  // namespace

Status driver_use_status() {
  switch (g_driver_use.load(std::memory_order_relaxed)) {
    case DriverUse::kAllowed:
      return Status::ok();
    case DriverUse::kInForkedChild:
      return {StatusCode::kUnavailable,
              "The GPU cannot be used in a forked child: its CUDA contexts are the parent's. Start "
              "the process with spawn instead of fork."};
    case DriverUse::kAtExit:
      return {StatusCode::kUnavailable,
              "The GPU cannot be used any more, because the process is exiting."};
  }
  return Status::ok();
}

void end_driver_use() {
  // A forked child stays one.
  DriverUse allowed = DriverUse::kAllowed;
  g_driver_use.compare_exchange_strong(allowed, DriverUse::kAtExit, std::memory_order_relaxed);
}

Status watch_driver_use() {
  static std::once_flag once;
  static bool is_watched = false;  // written once, under the flag
  std::call_once(once, [] {
    is_watched = pthread_atfork(nullptr, nullptr, &note_fork) == 0 && atexit(&end_driver_use) == 0;
  });
  if (is_watched) return Status::ok();
  return {StatusCode::kUnavailable,
          "The C library takes no more fork or exit handlers, without which the CUDA driver "
          "cannot be used safely."};
}

}  // namespace tencache
