// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/copy_pause.h"

#include <string>
#include <system_error>

#include "base/service_thread.h"
#include "platform/address_arena.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHeld = -1;
constexpr int64_t kOpen = 0;
// The watcher sleeps until the next pause when there was none for this many looks.
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
  Result<std::unique_ptr<ZeroCopyMemory>> memory = ZeroCopyMemory::create(gpu, kPageBytes);
  if (!memory.is_ok()) return memory.status();
  std::unique_ptr<CopyPause> pause(new CopyPause(gpu, std::move(memory).value(), patience));
  TENCACHE_RETURN_IF_ERROR(pause->start());
  return pause;
}

Status CopyPause::start() {
  try {
    watcher_ = start_service_thread("tencache-pause", [this] { work(); });
  } catch (const std::system_error& error) {
    return {StatusCode::kUnavailable, std::string("Cannot start a thread: ") + error.what() + "."};
  }
  return Status::ok();
}

CopyPause::~CopyPause() {
  if (!watcher_.joinable()) return;
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_one();
  }
  watcher_.join();
}

void CopyPause::hold_back(CUstream stream) const {
  (void)gpu_.driver().cuStreamWaitValue64(stream, memory_->device_address(), kOpen,
                                          CU_STREAM_WAIT_VALUE_GEQ);
}

void CopyPause::begin() {
  MutexLock lock(mutex_);
  // While other threads pause, copies are held already, or were held for too long.
  if (pausing_++ > 0) return;
  held_since_ = Clock::now();
  word().store(kHeld);
  if (idle_looks_ == kIdleLooksMax) changed_.notify_one();
  idle_looks_ = 0;
}

void CopyPause::end() {
  MutexLock lock(mutex_);
  if (--pausing_ == 0) word().store(kOpen);
}

void CopyPause::work() {
  MutexLock lock(mutex_);
  while (!is_stopping_) {
    if (idle_looks_ == kIdleLooksMax) {
      changed_.wait(mutex_);
    } else {
      changed_.wait_for(mutex_, patience_);
      look();
    }
  }
}

void CopyPause::look() {
  if (pausing_ == 0) {
    ++idle_looks_;
  } else if (Clock::now() - held_since_ >= patience_) {
    word().store(kOpen);
  }
}

}  // namespace tencache
