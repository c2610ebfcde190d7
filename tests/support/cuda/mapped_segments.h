// SPDX-License-Identifier: Apache-2.0
//
// MappedSegments: a SegmentSource for tests, whose segments are memory that the driver has mapped.
// It checks that what comes back was made here and did not come back before, and refuses segments
// beyond a limit that a test may change. A returned segment is unmapped at once, so work that still
// uses it fails the context. Threads: any.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "memory/cuda/segment_source.h"
#include "support/cuda/device_buffer.h"

namespace tencache {

class MappedSegments : public SegmentSource {
 public:
  explicit MappedSegments(const DriverApi& api, uint64_t limit_bytes = UINT64_MAX)
      : api_(api), limit_bytes_(limit_bytes) {}

  Result<CUdeviceptr> make(uint64_t bytes, bool /*is_small*/, StreamSet /*stream*/) override {
    EXPECT_EQ(bytes % (2 * kMiB), 0u);
    MutexLock lock(mutex_);
    ++asked_count_;
    if (bytes > limit_bytes_ || bytes_ > limit_bytes_ - bytes) {
      return Status(StatusCode::kOutOfMemory, "There is no segment left.");
    }
    auto buffer = std::make_unique<DeviceBuffer>(api_, bytes);
    const CUdeviceptr address = buffer->address();
    bytes_ += bytes;
    buffers_[address] = std::move(buffer);
    return address;
  }
  uint64_t large_segment_bytes() const override { return 20 * kMiB; }
  void give_back(CUdeviceptr address) override {
    MutexLock lock(mutex_);
    const auto found = buffers_.find(address);
    ASSERT_NE(found, buffers_.end()) << "it was not made, or went back before";
    bytes_ -= found->second->bytes();
    buffers_.erase(found);
  }

  void set_limit(uint64_t bytes) {
    MutexLock lock(mutex_);
    limit_bytes_ = bytes;
  }
  /// Bytes of segments that are not back yet.
  uint64_t bytes() const {
    MutexLock lock(mutex_);
    return bytes_;
  }
  /// How often a segment was requested.
  uint64_t asked_count() const {
    MutexLock lock(mutex_);
    return asked_count_;
  }

 private:
  const DriverApi api_;
  mutable Mutex mutex_;
  uint64_t limit_bytes_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t asked_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::map<CUdeviceptr, std::unique_ptr<DeviceBuffer>> buffers_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
