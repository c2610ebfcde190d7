// SPDX-License-Identifier: Apache-2.0
#include "driver/tasks.h"

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "support/cuda/simulated_driver_parts.h"

namespace tencache {
namespace {

// A handle is the address of its name, which never moves.
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

// How many tasks each stream holds.
class Room {
 public:
  void take(CUstream stream) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (tasks_[stream] == kTasksMax) changed_.wait(mutex_);
    ++tasks_[stream];
  }
  void give_back(CUstream stream) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    size_t& tasks = tasks_[stream];
    if (tasks-- == kTasksMax) changed_.notify_all();
    if (tasks == 0) tasks_.erase(stream);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<CUstream, size_t> tasks_ TENCACHE_GUARDED_BY(mutex_);  // without the empty ones
};

// Both live for ever, as the driver does, whose streams work while the process exits.
FunctionNames& function_names() {
  static auto* const made = new FunctionNames;
  return *made;
}
Room& room() {
  static auto* const made = new Room;
  return *made;
}

// A task in its stream, from its launch until it ran or was dropped.
class QueuedTask {
 public:
  QueuedTask(const EmulatedParameters& parameters, CUstream stream)
      : task_(parameters.task), stream_(stream) {
    room().take(stream_);
    for (uint64_t index = 0; index < parameters.count; ++index) {
      const EmulatedRange& range = parameters.ranges[index];
      if (range.bytes == 0) continue;
      ranges_.push_back({range.address, range.bytes, range.is_written != 0});
    }
  }
  ~QueuedTask() {
    if (task_.destroy != nullptr) task_.destroy(task_.state);
    room().give_back(stream_);
  }
  QueuedTask(const QueuedTask&) = delete;
  QueuedTask& operator=(const QueuedTask&) = delete;

  void run(SimulatedDriver::Parts& parts) const {
    const uint64_t access = ranges_.empty() ? 0 : parts.memory.begin_access(ranges_);
    if (access == 0 && !ranges_.empty()) {
      report_illegal_ranges(parts.memory);
      parts.failure.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
      return;
    }
    task_.run(task_.state);
    if (access != 0) parts.memory.end_access(access);
  }

 private:
  void report_illegal_ranges(const SimulatedMemory& memory) const {
    for (const DeviceRange& range : ranges_) {
      const SimulatedMemory::Place place = memory.place_of(range);
      if (place.is_accessible) continue;
      fprintf(stderr,
              "emulated GPU: ILLEGAL ADDRESS: %s in stream %p %s [0x%llx, +%llu), which is %s\n",
              task_.name, static_cast<void*>(stream_), range.is_written ? "writes" : "reads",
              static_cast<unsigned long long>(range.address),
              static_cast<unsigned long long>(range.bytes),
              place.is_reserved ? "reserved but not (all) mapped" : "no device memory");
    }
  }

  const EmulatedTask task_;
  const CUstream stream_;
  std::vector<DeviceRange> ranges_;
};

}  // namespace

CUfunction emulated_function(const char* name) { return function_names().handle(name); }

const char* name_of_emulated(CUfunction function) { return function_names().name(function); }

CUresult launch_task(SimulatedDriver& driver, const EmulatedParameters& parameters,
                     CUstream stream) {
  // std::function copies what it holds.
  const auto task = std::make_shared<QueuedTask>(parameters, stream);
  return driver.launch(stream, {}, [task, &parts = driver.parts()] { task->run(parts); });
}

}  // namespace tencache
