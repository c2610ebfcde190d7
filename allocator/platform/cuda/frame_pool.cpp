// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/frame_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

// While the pool may grow, it may ask for a handle that is larger than what a frame misses, but of
// at most this share of what is allowed.
constexpr uint64_t kStepsPerAllowed = 64;

std::vector<uint64_t> handle_sizes(uint64_t granularity) {
  std::vector<uint64_t> sizes = {granularity};
  while (2 * sizes.back() <= FramePool::kHandleBytesMax) sizes.push_back(2 * sizes.back());
  return sizes;
}

uint64_t bytes_of(const std::vector<FrameHandle>& handles) {
  uint64_t bytes = 0;
  for (const FrameHandle& handle : handles) bytes += handle.bytes;
  return bytes;
}

}  // namespace

FramePool::FramePool(const Gpu& gpu, uint64_t limit_bytes)
    : gpu_(gpu),
      sizes_(handle_sizes(gpu.facts().granularity_bytes)),
      limit_bytes_(limit_bytes),
      free_(sizes_.size()) {}

FramePool::~FramePool() {
  // Another thread may have held the lock when this child was forked.
  if (!may_call_driver()) return;
  trim(~uint64_t{0});
  MutexLock lock(mutex_);
  TENCACHE_CHECK(bytes_ == 0, "%s of frames are still in use", format_bytes(bytes_).c_str());
}

Result<Frame> FramePool::take(uint64_t bytes, const Terms& terms) {
  TENCACHE_CHECK(bytes > 0 && bytes % sizes_.front() == 0, "%lu bytes", bytes);
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  Handles present;
  uint64_t missing_bytes = 0;
  for (;;) {
    Handles victims;
    {
      MutexLock lock(mutex_);
      if (missing_now(bytes) == 0) return make_frame(pick(bytes), terms.is_small);
      const uint64_t wanted_bytes = used_now() + bytes;
      uint64_t allowed_bytes = std::min(limit_bytes_, terms.allowed_bytes);
      if (wanted_bytes > allowed_bytes && !terms.is_reserved) return no_room(bytes);
      allowed_bytes = std::max(allowed_bytes, wanted_bytes);
      missing_bytes = bytes_to_create(bytes, allowed_bytes);
      if (bytes_ + missing_bytes <= allowed_bytes) {
        bytes_ += missing_bytes;
        present = pick(bytes - missing_bytes);
        break;
      }
      const uint64_t excess_bytes = bytes_ + missing_bytes - allowed_bytes;
      if (excess_bytes > leaving_bytes_) {
        victims = pick_others(bytes, excess_bytes - leaving_bytes_);
      } else {
        has_left_.wait(mutex_);
      }
    }
    destroy(victims);
  }
  return complete(std::move(present), missing_bytes, terms.is_small);
}

uint64_t FramePool::missing(uint64_t bytes) const {
  MutexLock lock(mutex_);
  return missing_now(bytes);
}

// Each size is a multiple of the smaller ones, so taking the largest first leaves the least.
uint64_t FramePool::missing_now(uint64_t bytes) const {
  for (size_t index = sizes_.size(); index-- > 0;) {
    const uint64_t count = std::min<uint64_t>(free_[index].size(), bytes / sizes_[index]);
    bytes -= count * sizes_[index];
  }
  return bytes;
}

// What the driver is to create for a frame that free handles do not make up. While the pool may
// grow, that is a larger handle than the frame misses, where free handles make up the rest: the
// free handles that are spared serve the next frame. So frames that grow by a little cost less than
// a handle each.
uint64_t FramePool::bytes_to_create(uint64_t bytes, uint64_t allowed_bytes) const {
  const uint64_t missing_bytes = missing_now(bytes);
  uint64_t step = largest_size_in(std::min(bytes, allowed_bytes / kStepsPerAllowed));
  for (; step > missing_bytes; step = largest_size_in(step - 1)) {
    if (bytes_ + step <= allowed_bytes && missing_now(bytes - step) == 0) return step;
  }
  return missing_bytes;
}

// The largest size of a handle that is at most `bytes`; 0 when all are larger.
uint64_t FramePool::largest_size_in(uint64_t bytes) const {
  const auto larger = std::ranges::upper_bound(sizes_, bytes);
  return larger == sizes_.begin() ? 0 : *std::prev(larger);
}

// Free handles that together have as many of the bytes as can be had. The newest of each size go
// first: the device's caches and TLBs know their pages best.
FramePool::Handles FramePool::pick(uint64_t bytes) {
  Handles picked;
  for (size_t index = sizes_.size(); index-- > 0;) {
    while (bytes >= sizes_[index] && !free_[index].empty()) {
      picked.push_back(free_[index].back());
      free_[index].pop_back();
      free_bytes_ -= sizes_[index];
      bytes -= sizes_[index];
    }
  }
  return picked;
}

// Picks free handles that are to leave. The small ones go first, so that what is left makes frames
// of few handles.
FramePool::Handles FramePool::pick_smallest(uint64_t bytes) {
  Handles picked;
  uint64_t picked_bytes = 0;
  for (size_t index = 0; index < sizes_.size(); ++index) {
    while (picked_bytes < bytes && !free_[index].empty()) {
      picked.push_back(free_[index].back());
      free_[index].pop_back();
      picked_bytes += sizes_[index];
    }
  }
  free_bytes_ -= picked_bytes;
  leaving_bytes_ += picked_bytes;
  return picked;
}

// Picks likewise among the handles that the frame could do without. Each of those has more bytes
// than the frame misses.
FramePool::Handles FramePool::pick_others(uint64_t frame_bytes, uint64_t bytes) {
  const Handles wanted = pick(frame_bytes);
  Handles others = pick_smallest(bytes);
  put_free(wanted);
  return others;
}

void FramePool::put_free(const Handles& handles) {
  for (const FrameHandle& handle : handles) {
    const auto size = std::ranges::lower_bound(sizes_, handle.bytes);
    free_[static_cast<size_t>(size - sizes_.begin())].push_back(handle);
    free_bytes_ += handle.bytes;
  }
}

Frame FramePool::make_frame(Handles handles, bool is_small) {
  for (FrameHandle& handle : handles) {
    if (handle.is_small == is_small) continue;
    uses_of(handle.is_small).bytes.remove(handle.bytes);
    handle.is_small = is_small;
    uses_of(handle.is_small).bytes.add(handle.bytes);
  }
  for (FrameUse* use : {&uses_.all, &uses_of(is_small)}) use->frames.add(1);
  const uint64_t bytes = bytes_of(handles);
  return {std::move(handles), bytes, is_small};
}

// Creates the handles that a frame still lacks. Their room is counted already. If the driver
// refuses one, those that the frame has so far become free handles of the pool.
Result<Frame> FramePool::complete(Handles handles, uint64_t missing_bytes, bool is_small) {
  Status status;
  while (missing_bytes > 0) {
    const Result<FrameHandle> created = create(largest_size_in(missing_bytes), is_small);
    status = created.status();
    if (!status.is_ok()) break;
    handles.push_back(created.value());
    missing_bytes -= created.value().bytes;
  }
  MutexLock lock(mutex_);
  if (status.is_ok()) return make_frame(std::move(handles), is_small);
  put_free(handles);
  bytes_ -= missing_bytes;
  return status;
}

// Creates one handle. Where others have used up the GPU's memory, free handles go first.
Result<FrameHandle> FramePool::create(uint64_t bytes, bool is_small) {
  const CUmemAllocationProp properties = frame_properties(gpu_.device(), gpu_.facts());
  const DriverApi& driver = gpu_.driver();
  FrameHandle created{0, bytes, is_small};
  Status status;
  uint64_t destroyed_before = 0;
  do {
    destroyed_before = destroyed_count();
    const CallScope scope(driver, gpu_.context());
    TENCACHE_RETURN_IF_ERROR(scope.status());  // room would not mend that
    status = cuda_status(driver, driver.cuMemCreate(&created.handle, bytes, &properties, 0),
                         "Cannot get " + format_bytes(bytes) + " of memory from the GPU");
    if (status.is_ok()) {
      MutexLock lock(mutex_);
      for (FrameUse* use : {&uses_.all, &uses_of(is_small)}) use->bytes.add(bytes);
      return created;
    }
  } while (status.code() == StatusCode::kOutOfMemory &&
           (trim(bytes) > 0 || has_destroyed_since(destroyed_before)));
  return status;
}

uint64_t FramePool::destroyed_count() const {
  MutexLock lock(mutex_);
  return destroyed_count_;
}

// Whether another thread has given handles back to the driver since destroyed_count_ was `count`.
// Waits for a thread that is doing so.
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
    for (FrameUse* use : {&uses_.all, &uses_of(frame.is_small)}) use->frames.remove(1);
    put_free(frame.handles);
    excess_bytes = excess();
  }
  if (excess_bytes > 0) trim(excess_bytes);
}

void FramePool::write_off(const Frame& frame) {
  MutexLock lock(mutex_);
  bytes_ -= frame.bytes;
}

void FramePool::recount(uint64_t before, uint64_t after) {
  MutexLock lock(mutex_);
  for (FrameUse* use : {&uses_.all, &uses_.large}) {
    if (after > before) use->frames.add(after - before);
    if (after < before) use->frames.remove(before - after);
  }
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
  Handles victims;
  {
    MutexLock lock(mutex_);
    victims = pick_smallest(bytes);
  }
  return destroy(victims);
}

// Gives handles back to the driver. They count until the driver has them back, so that nobody
// creates others in their place too early.
uint64_t FramePool::destroy(const Handles& handles) {
  for (const FrameHandle& handle : handles) {
    const Status status =
        gpu_.call("Cannot give " + format_bytes(handle.bytes) + " back to the GPU",
                  [&](const DriverApi& driver) { return driver.cuMemRelease(handle.handle); });
    // On failure it is unknown whether the driver has the handle. It is lost to us either way.
    if (!status.is_ok() && may_call_driver()) {
      TENCACHE_LOG_WARNING("%s", status.message().c_str());
    }
  }
  const uint64_t destroyed_bytes = bytes_of(handles);
  if (destroyed_bytes == 0) return 0;
  MutexLock lock(mutex_);
  bytes_ -= destroyed_bytes;
  leaving_bytes_ -= destroyed_bytes;
  destroyed_count_ += handles.size();
  for (const FrameHandle& handle : handles) {
    for (FrameUse* use : {&uses_.all, &uses_of(handle.is_small)}) use->bytes.remove(handle.bytes);
  }
  has_left_.notify_all();
  return destroyed_bytes;
}

Status FramePool::no_room(uint64_t bytes) const {
  return {StatusCode::kOutOfMemory,
          "There is no room for " + format_bytes(bytes) + " on the GPU: of a budget of " +
              format_bytes(limit_bytes_) + ", " + format_bytes(used_now()) + " are in use."};
}

uint64_t FramePool::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

uint64_t FramePool::free_bytes() const {
  MutexLock lock(mutex_);
  return free_bytes_;
}

uint64_t FramePool::used_bytes() const {
  MutexLock lock(mutex_);
  return used_now();
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

}  // namespace tencache
