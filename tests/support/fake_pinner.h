// SPDX-License-Identifier: Apache-2.0
//
// FakePinner: a HostPinner that records pins and refuses on demand. It fails the test when memory
// is pinned twice, unpinned without being pinned, pinned without being present, or still pinned at
// the end. Threads: any.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "platform/host_pinner.h"

namespace tencache {

class FakePinner final : public HostPinner {
 public:
  ~FakePinner() override { EXPECT_EQ(pinned_bytes(), 0U) << "not unpinned"; }

  /// Refuses every pin() after this many more; by default all succeed.
  void refuse_after(uint64_t pins) {
    MutexLock lock(mutex_);
    pins_left_ = pins;
  }

  Status pin(void* memory, uint64_t bytes) override {
    std::vector<unsigned char> present(bytes / 4096);
    const bool is_mapped = mincore(memory, bytes, present.data()) == 0;
    MutexLock lock(mutex_);
    EXPECT_TRUE(is_mapped);
    const bool is_present = std::all_of(present.begin(), present.end(),
                                        [](unsigned char page) { return (page & 1) != 0; });
    EXPECT_TRUE(is_present) << "the driver would have to make the pages";
    if (pins_left_ == 0) {
      return {StatusCode::kOutOfMemory, "Cannot pin memory: the test refuses."};
    }
    --pins_left_;
    EXPECT_TRUE(pinned_.emplace(memory, bytes).second) << "pinned twice";
    return Status::ok();
  }

  void unpin(void* memory, uint64_t bytes) override {
    MutexLock lock(mutex_);
    const auto found = pinned_.find(memory);
    ASSERT_TRUE(found != pinned_.end()) << "not pinned";
    EXPECT_EQ(found->second, bytes);
    pinned_.erase(found);
  }

  uint64_t pinned_bytes() const {
    MutexLock lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [memory, length] : pinned_) bytes += length;
    return bytes;
  }

  /// Whether one pin() covers the whole range.
  bool is_pinned(const void* memory, uint64_t bytes) const {
    MutexLock lock(mutex_);
    const auto* const begin = static_cast<const char*>(memory);
    return std::any_of(pinned_.begin(), pinned_.end(), [&](const auto& pin) {
      const auto* const pin_begin = static_cast<const char*>(pin.first);
      return pin_begin <= begin && begin + bytes <= pin_begin + pin.second;
    });
  }

 private:
  mutable Mutex mutex_;
  uint64_t pins_left_ TENCACHE_GUARDED_BY(mutex_) = UINT64_MAX;
  std::map<void*, uint64_t> pinned_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
