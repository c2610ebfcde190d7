// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/stream_mark.h"

#include "base/check.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {

Result<bool> StreamMark::is_reached() const {
  if (event_ == nullptr) return true;
  const Gpu& gpu = event_->marks.gpu_;
  const DriverApi& driver = gpu.driver();
  const CallScope scope(driver, gpu.context());
  if (!scope.status().is_ok()) return scope.status();
  const CUresult result = driver.cuEventQuery(event_->event);
  if (result == CUDA_SUCCESS) return true;
  if (result == CUDA_ERROR_NOT_READY) return false;
  return cuda_status(driver, result, "Cannot ask how far a stream has come");
}

Status StreamMark::hold_back(CUstream stream) const {
  if (event_ == nullptr) return Status::ok();
  return event_->marks.gpu_.call(
      "Cannot make a stream wait for another",
      [&](const DriverApi& driver) { return driver.cuStreamWaitEvent(stream, event_->event, 0); });
}

Status StreamMark::wait() const {
  if (event_ == nullptr) return Status::ok();
  return event_->marks.gpu_.call("Cannot wait for a stream", [&](const DriverApi& driver) {
    return driver.cuEventSynchronize(event_->event);
  });
}

bool StreamMark::poll() const {
  for (int tries = 0; tries < kTries; ++tries) {
    const Result<bool> reached = is_reached();
    if (reached.is_ok()) return reached.value();
  }
  return true;
}

void StreamMark::await() const {
  for (int tries = 0; tries < kTries; ++tries) {
    if (wait().is_ok()) return;
  }
}

// The event may be recorded anew at once: a stream that already waits for it waits for the old
// moment.
StreamMark::Event::~Event() {
  // Where the driver must not be called, StreamMarks may already be gone.
  if (may_call_driver()) marks.give_back(event);
}

StreamMarks::~StreamMarks() {
  if (!may_call_driver()) return;
  const CallScope scope(gpu_.driver(), gpu_.context());
  MutexLock lock(mutex_);
  TENCACHE_CHECK(free_.size() == count_, "%zu marks are still in use", count_ - free_.size());
  if (!scope.status().is_ok()) return;
  for (const CUevent event : free_) (void)gpu_.driver().cuEventDestroy(event);
}

Result<StreamMark> StreamMarks::make(CUstream stream) {
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  const Result<CUevent> event = take();
  if (!event.is_ok()) return event.status();
  const Status recorded = cuda_status(driver, driver.cuEventRecord(event.value(), stream),
                                      "Cannot mark a moment in a stream");
  StreamMark mark(*this, event.value());
  if (!recorded.is_ok()) return recorded;
  return mark;
}

Result<CUevent> StreamMarks::take() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      const CUevent event = free_.back();
      free_.pop_back();
      return event;
    }
    ++count_;
  }
  const DriverApi& driver = gpu_.driver();
  CUevent event = nullptr;
  const Status created = cuda_status(
      driver, driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
      "Cannot make an event");
  if (created.is_ok()) return event;
  MutexLock lock(mutex_);
  --count_;
  return created;
}

void StreamMarks::give_back(CUevent event) {
  MutexLock lock(mutex_);
  free_.push_back(event);
}

}  // namespace tencache
