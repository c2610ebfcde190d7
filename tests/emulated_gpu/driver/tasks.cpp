// SPDX-License-Identifier: Apache-2.0
#include "driver/tasks.h"

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "driver/kernel_durations.h"
#include "support/cuda/simulated_driver_parts.h"

namespace tencache {
namespace {

// The names of the emulation's kernels, by handle. A handle is the address of its name, which never
// moves.
class FunctionNames {
 public:
  CUfunction handle(const char* name) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::unique_ptr<std::string>& known = names_[name];
    if (known == nullptr) {
      known = std::make_unique<std::string>(name);
      handles_.insert(known.get());
    }
    return reinterpret_cast<CUfunction>(known.get());
  }
  const char* name(CUfunction handle) const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return handles_.contains(handle) ? reinterpret_cast<std::string*>(handle)->c_str() : nullptr;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<std::string>, std::less<>> names_
      TENCACHE_GUARDED_BY(mutex_);
  std::set<const void*> handles_ TENCACHE_GUARDED_BY(mutex_);
};

// The names of this process. They live for ever, as the driver does, whose streams work while the
// process exits.
FunctionNames& function_names() {
  static auto* const made = new FunctionNames;
  return *made;
}

// A task from its launch until it ran or was dropped, or until the graph that captured it is gone.
// A task that was not queued stays the caller's.
class QueuedTask {
 public:
  QueuedTask(const EmulatedParameters& parameters, CUstream stream, int device)
      : task_(parameters.task), stream_(stream), device_(device) {
    for (uint64_t index = 0; index < parameters.count; ++index) {
      const EmulatedRange& range = parameters.ranges[index];
      if (range.bytes == 0) continue;
      ranges_.push_back({range.address, range.bytes, range.is_written != 0});
    }
  }
  ~QueuedTask() {
    if (is_owned_) task_.destroy(task_.state);
  }
  QueuedTask(const QueuedTask&) = delete;
  QueuedTask& operator=(const QueuedTask&) = delete;

  void leave_to_caller() { is_owned_ = false; }

  const std::vector<DeviceRange>& ranges() const { return ranges_; }
  uint64_t duration_ns() const {
    uint64_t bytes = 0;
    for (const DeviceRange& range : ranges_) bytes += range.bytes;
    return kernel_durations().duration_ns(task_.name, bytes);
  }

  void run() const { task_.run(task_.state); }

  void report_illegal_ranges(const SimulatedMemory& memory) const {
    for (const DeviceRange& range : ranges_) {
      const SimulatedMemory::Place place = memory.place_of(range, device_);
      if (place.is_accessible) continue;
      fprintf(stderr,
              "emulated GPU: ILLEGAL ADDRESS: %s in stream %p %s [0x%llx, +%llu), which is %s\n",
              task_.name, static_cast<void*>(stream_), range.is_written ? "writes" : "reads",
              static_cast<unsigned long long>(range.address),
              static_cast<unsigned long long>(range.bytes),
              place.is_reserved ? "not (all) mapped for this GPU" : "no device memory");
    }
  }

 private:
  const EmulatedTask task_;
  const CUstream stream_;
  const int device_;
  bool is_owned_ = true;
  std::vector<DeviceRange> ranges_;
};

}  // namespace

CUfunction emulated_function(const char* name) { return function_names().handle(name); }

const char* name_of_emulated(CUfunction function) { return function_names().name(function); }

CUresult launch_task(SimulatedDriver& driver, const EmulatedParameters& parameters,
                     CUstream stream) {
  // The task is shared, because std::function copies its captures.
  const auto task =
      std::make_shared<QueuedTask>(parameters, stream, driver.parts().devices.current_device());
  const SimulatedMemory& memory = driver.parts().memory;
  const CUresult result = driver.parts().streams.launch(
      stream, {.touches = task->ranges(),
               .run = [task] { task->run(); },
               .duration_ns = task->duration_ns(),
               .explain = [task, &memory] { task->report_illegal_ranges(memory); }});
  if (result != CUDA_SUCCESS) task->leave_to_caller();
  return result;
}

}  // namespace tencache
