// SPDX-License-Identifier: Apache-2.0
//
// Which stream captures into what. The count lets streams pass without the lock while none
// captures.
#include "capture.h"

namespace emulated_gpu::runtime {

std::mutex capture_mutex;
std::map<CUstream, std::shared_ptr<Capture>> captures;
std::atomic<int> capture_count = 0;

std::shared_ptr<Capture> capture_of(CUstream stream) {
  if (capture_count == 0) return nullptr;
  const std::lock_guard lock(capture_mutex);
  const auto found = captures.find(stream);
  return found != captures.end() ? found->second : nullptr;
}
std::shared_ptr<Capture> capture_with(CUevent event) {
  if (capture_count == 0) return nullptr;
  const std::lock_guard lock(capture_mutex);
  for (const auto& [stream, capture] : captures) {
    if (capture->events.contains(event)) return capture;
  }
  return nullptr;
}
}  // namespace emulated_gpu::runtime
