// SPDX-License-Identifier: Apache-2.0
//
// How the run time's streams were created, since the driver does not tell: their priority, and
// whether they and the legacy stream wait for each other. A stream that the run time did not create
// is of priority 0 and non-blocking; the legacy stream has priority 0. A mutex guards the table;
// any thread may call.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>

namespace emulated_gpu::runtime {

class StreamKinds {
 public:
  static StreamKinds& instance() {
    static auto* const made = new StreamKinds;
    return *made;
  }
  void add(CUstream stream, unsigned flags, int priority) {
    const std::lock_guard lock(mutex_);
    kinds_[stream] = {(flags & CU_STREAM_NON_BLOCKING) == 0, priority};
  }
  void remove(CUstream stream) {
    const std::lock_guard lock(mutex_);
    kinds_.erase(stream);
  }
  bool is_blocking(CUstream stream) const { return find(stream).is_blocking; }
  int priority(CUstream stream) const { return find(stream).priority; }

 private:
  struct Kind {
    bool is_blocking = false;
    int priority = 0;
  };
  Kind find(CUstream stream) const {
    const std::lock_guard lock(mutex_);
    const auto found = kinds_.find(stream);
    return found != kinds_.end() ? found->second : Kind{};
  }

  mutable std::mutex mutex_;
  std::map<CUstream, Kind> kinds_;
};

}  // namespace emulated_gpu::runtime
