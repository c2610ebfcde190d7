// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/frame_pool.h"

#include <string>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {

FramePool::~FramePool() {
  // Another thread may have held the lock when this child was forked.
  if (!may_call_driver()) return;
  trim(~uint64_t{0});
  MutexLock lock(mutex_);
  TENCACHE_CHECK(bytes_ == 0, "%s of frames are still in use", format_bytes(bytes_).c_str());
}

Result<Frame> FramePool::take(uint64_t bytes, bool is_small, bool is_reserved) {
  TENCACHE_CHECK(bytes > 0 && bytes % gpu_.facts().granularity_bytes == 0, "%llu bytes",
                 static_cast<unsigned long long>(bytes));
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  for (;;) {
    std::vector<Frame> victims;
    {
      MutexLock lock(mutex_);
      // The newest free frame: the device's caches and TLBs know its pages best.
      const auto range = free_by_bytes_.equal_range(bytes);
      if (range.first != range.second) {
        const auto found = std::prev(range.second);
        const Frame frame = take_free(found->second, is_small);
        free_by_bytes_.erase(found);
        return frame;
      }
      const uint64_t used_bytes = bytes_ - free_bytes_ - leaving_bytes_;
      const bool exceeds = bytes > limit_bytes_ || used_bytes > limit_bytes_ - bytes;
      if (exceeds && !is_reserved) return no_room(bytes);
      const uint64_t allowed_bytes = exceeds ? used_bytes + bytes : limit_bytes_;
      if (bytes_ <= allowed_bytes - bytes) {
        bytes_ += bytes;
        break;
      }
      const uint64_t missing_bytes = bytes_ - (allowed_bytes - bytes);
      if (missing_bytes > leaving_bytes_) {
        victims = pick_oldest(missing_bytes - leaving_bytes_);
      } else {
        has_left_.wait(mutex_);
      }
    }
    destroy(victims);
  }
  return create(bytes, is_small);
}

Frame FramePool::take_free(ByAge::iterator found, bool is_small) {
  Frame frame = *found;
  free_.erase(found);
  free_bytes_ -= frame.bytes;
  if (frame.is_small == is_small) return frame;
  uses_of(frame).bytes.remove(frame.bytes);
  uses_of(frame).frames.remove(1);
  frame.is_small = is_small;
  uses_of(frame).bytes.add(frame.bytes);
  uses_of(frame).frames.add(1);
  return frame;
}

// The room is counted already. Others may use the GPU as well; if so, free frames go first.
Result<Frame> FramePool::create(uint64_t bytes, bool is_small) {
  const CUmemAllocationProp properties = frame_properties(gpu_.device(), gpu_.facts());
  const DriverApi& driver = gpu_.driver();
  Frame frame{0, bytes, is_small};
  Status status;
  uint64_t destroyed_before = 0;
  do {
    destroyed_before = destroyed_count();
    const CallScope scope(driver, gpu_.context());
    status = scope.status();
    if (!status.is_ok()) break;
    status = cuda_status(driver, driver.cuMemCreate(&frame.handle, bytes, &properties, 0),
                         "Cannot get " + format_bytes(bytes) + " of memory from the GPU");
    if (status.is_ok()) {
      MutexLock lock(mutex_);
      for (FrameUse* use : {&uses_.all, &uses_of(frame)}) {
        use->bytes.add(bytes);
        use->frames.add(1);
      }
      return frame;
    }
  } while (status.code() == StatusCode::kOutOfMemory &&
           (trim(bytes) > 0 || has_destroyed_since(destroyed_before)));
  MutexLock lock(mutex_);
  bytes_ -= bytes;
  return status;
}

uint64_t FramePool::destroyed_count() const {
  MutexLock lock(mutex_);
  return destroyed_count_;
}

// Whether another thread has given frames back to the driver since then. Waits for a thread that is
// doing so.
bool FramePool::has_destroyed_since(uint64_t count) {
  MutexLock lock(mutex_);
  while (destroyed_count_ == count && leaving_bytes_ > 0) has_left_.wait(mutex_);
  return destroyed_count_ != count;
}

void FramePool::give_back(const Frame& frame) {
  if (!may_call_driver()) return;
  uint64_t excess_bytes = 0;
  {
    MutexLock lock(mutex_);
    free_.push_back(frame);
    free_by_bytes_.emplace(frame.bytes, std::prev(free_.end()));
    free_bytes_ += frame.bytes;
    excess_bytes = excess();
  }
  if (excess_bytes > 0) trim(excess_bytes);
}

void FramePool::write_off(const Frame& frame) {
  MutexLock lock(mutex_);
  bytes_ -= frame.bytes;
}

// By how much the remaining handles exceed the limit.
uint64_t FramePool::excess() const {
  const uint64_t held_bytes = bytes_ - leaving_bytes_;
  return held_bytes > limit_bytes_ ? held_bytes - limit_bytes_ : 0;
}

void FramePool::set_limit(uint64_t bytes) {
  uint64_t excess_bytes = 0;
  {
    MutexLock lock(mutex_);
    limit_bytes_ = bytes;
    excess_bytes = excess();
  }
  if (excess_bytes > 0) trim(excess_bytes);
}

uint64_t FramePool::trim(uint64_t bytes) {
  if (!may_call_driver()) return 0;
  std::vector<Frame> victims;
  {
    MutexLock lock(mutex_);
    victims = pick_oldest(bytes);
  }
  return destroy(victims);
}

std::vector<Frame> FramePool::pick_oldest(uint64_t bytes) {
  std::vector<Frame> picked;
  uint64_t picked_bytes = 0;
  while (!free_.empty() && picked_bytes < bytes) {
    const auto oldest = free_.begin();
    // It is the first frame of its size, because frames are entered in the order of their age.
    free_by_bytes_.erase(free_by_bytes_.lower_bound(oldest->bytes));
    picked_bytes += oldest->bytes;
    picked.push_back(*oldest);
    free_.erase(oldest);
  }
  free_bytes_ -= picked_bytes;
  leaving_bytes_ += picked_bytes;
  return picked;
}

// The frames count until the driver has them back, so that nobody creates others in their place too
// early.
uint64_t FramePool::destroy(const std::vector<Frame>& frames) {
  uint64_t destroyed_bytes = 0;
  for (const Frame& frame : frames) {
    const DriverApi& driver = gpu_.driver();
    const CallScope scope(driver, gpu_.context());
    const Status status =
        scope.status().is_ok()
            ? cuda_status(driver, driver.cuMemRelease(frame.handle),
                          "Cannot give " + format_bytes(frame.bytes) + " back to the GPU")
            : scope.status();
    // On failure it is unknown whether the driver has the frame. It is lost to us either way.
    if (!status.is_ok() && may_call_driver()) {
      TENCACHE_LOG_WARNING("%s", status.message().c_str());
    }
    destroyed_bytes += frame.bytes;
  }
  if (destroyed_bytes == 0) return 0;
  MutexLock lock(mutex_);
  bytes_ -= destroyed_bytes;
  leaving_bytes_ -= destroyed_bytes;
  destroyed_count_ += frames.size();
  for (const Frame& frame : frames) {
    for (FrameUse* use : {&uses_.all, &uses_of(frame)}) {
      use->bytes.remove(frame.bytes);
      use->frames.remove(1);
    }
  }
  has_left_.notify_all();
  return destroyed_bytes;
}

Status FramePool::no_room(uint64_t bytes) const {
  return {StatusCode::kOutOfMemory,
          "There is no room for " + format_bytes(bytes) + " on the GPU: of a budget of " +
              format_bytes(limit_bytes_) + ", " +
              format_bytes(bytes_ - free_bytes_ - leaving_bytes_) + " are in use."};
}

uint64_t FramePool::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

FrameUses FramePool::uses() const {
  MutexLock lock(mutex_);
  return uses_;
}

void FramePool::reset_peaks() {
  MutexLock lock(mutex_);
  for (FrameUse* use : {&uses_.all, &uses_.small, &uses_.large}) {
    use->bytes.reset_peak();
    use->frames.reset_peak();
  }
}

void FramePool::reset_totals() {
  MutexLock lock(mutex_);
  for (FrameUse* use : {&uses_.all, &uses_.small, &uses_.large}) {
    use->bytes.reset_totals();
    use->frames.reset_totals();
  }
}

uint64_t FramePool::free_bytes() const {
  MutexLock lock(mutex_);
  return free_bytes_;
}

}  // namespace tencache
