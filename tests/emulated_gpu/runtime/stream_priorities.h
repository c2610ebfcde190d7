// SPDX-License-Identifier: Apache-2.0
//
// StreamPriorities: a table of the priorities that the run time's streams were created with, since
// the simulated driver has none. A stream that the run time did not create has priority 0, as the
// legacy stream has. A mutex guards the table; any thread may call.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>

namespace emulated_gpu::runtime {

class StreamPriorities {
 public:
  static StreamPriorities& instance() {
    static auto* const made = new StreamPriorities;
    return *made;
  }
  void add(CUstream stream, int priority) {
    const std::lock_guard lock(mutex_);
    priorities_[stream] = priority;
  }
  void remove(CUstream stream) {
    const std::lock_guard lock(mutex_);
    priorities_.erase(stream);
  }
  int find(CUstream stream) const {
    const std::lock_guard lock(mutex_);
    const auto found = priorities_.find(stream);
    return found != priorities_.end() ? found->second : 0;
  }

 private:
  mutable std::mutex mutex_;
  std::map<CUstream, int> priorities_;
};

}  // namespace emulated_gpu::runtime
