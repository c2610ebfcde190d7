// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/copy_pause.h"

#include <string>

#include "base/log.h"
#include "base/service_thread.h"
#include "platform/address_arena.h"
#include "platform/cuda/call_scope.h"

namespace tencache {
namespace {

// The thread sleeps until the next pause when there was none for so many looks.
constexpr int kIdleLooksMax = 50;

}  // namespace

Result<std::unique_ptr<CopyPause>> CopyPause::create(const Gpu& gpu,
                                                     std::chrono::nanoseconds patience) {
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  int can_wait = 0;
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(gpu.driver(),
                  gpu.driver().cuDeviceGetAttribute(
                      &can_wait, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu.device()),
                  "Cannot ask whether streams can wait for a value"));
  if (can_wait == 0) {
    return Status(StatusCode::kUnavailable, "The GPU's streams cannot wait for a value.");
  }
  Result<HostMemory> memory = HostMemory::map({.bytes = kPageBytes, .node = gpu.facts().numa_node});
  if (!memory.is_ok()) return memory.status();
  std::unique_ptr<CopyPause> pause(new CopyPause(gpu, std::move(memory).value(), patience));
  TENCACHE_RETURN_IF_ERROR(pause->pin());
  pause->watcher_ = start_service_thread("tencache-pause", [&made = *pause] { made.work(); });
  return pause;
}

Status CopyPause::pin() {
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  TENCACHE_RETURN_IF_ERROR(cuda_status(
      driver,
      driver.cuMemHostRegister(memory_.data(), memory_.bytes(), CU_MEMHOSTREGISTER_DEVICEMAP),
      "Cannot pin a page of host memory"));
  CUdeviceptr address = 0;
  const Status found =
      cuda_status(driver, driver.cuMemHostGetDevicePointer(&address, memory_.data(), 0),
                  "The GPU cannot read host memory");
  if (found.is_ok()) {
    device_word_ = address;
  } else {
    (void)driver.cuMemHostUnregister(memory_.data());
  }
  return found;
}

CopyPause::~CopyPause() {
  if (watcher_.joinable()) {
    {
      MutexLock lock(mutex_);
      is_stopping_ = true;
      changed_.notify_one();
    }
    watcher_.join();
  }
  if (device_word_ == 0) return;
  const CallScope scope(gpu_.driver(), gpu_.context());
  if (scope.status().is_ok()) (void)gpu_.driver().cuMemHostUnregister(memory_.data());
}

void CopyPause::hold_back(CUstream stream) const {
  (void)gpu_.driver().cuStreamWaitValue64(stream, device_word_, 0, CU_STREAM_WAIT_VALUE_GEQ);
}

void CopyPause::start_to_watch() {
  MutexLock lock(mutex_);
  is_watched_ = true;
  changed_.notify_one();
}

void CopyPause::work() {
  MutexLock lock(mutex_);
  while (!is_stopping_) {
    if (is_watched_) {
      watch();
    } else {
      changed_.wait(mutex_);
    }
  }
}

// Looks at pauses until there are none for a while. A pause that was there at the last look is
// overdue when none has ended since.
void CopyPause::watch() {
  bool was_paused = false;
  uint64_t ended_before = 0;
  for (int idle_looks = 0; idle_looks < kIdleLooksMax && !is_stopping_; ++idle_looks) {
    const uint64_t ended = ended_;
    const bool is_paused = word().load() < 0;
    if (was_paused && is_paused && ended == ended_before) end_overdue();
    if (is_paused || ended != ended_before) idle_looks = 0;
    was_paused = is_paused;
    ended_before = ended;
    changed_.wait_for(mutex_, patience_);
  }
  is_watched_ = false;
  if (word().load() < 0) is_watched_ = true;  // it began before it could see that
}

void CopyPause::end_overdue() {
  TENCACHE_LOG_DEBUG("a mapping keeps copies from a GPU waiting: they go on");
  word().fetch_add(kOpen);
  while (word().load() < kOpen && !is_stopping_) changed_.wait_for(mutex_, patience_);
  word().fetch_sub(kOpen);
}

}  // namespace tencache
