// SPDX-License-Identifier: Apache-2.0
//
// Copies that resident tensors have in host memory, over the simulated driver: they save a copy
// when the tensor leaves again, make room for what must leave, and go when the tensor is freed.
#include <gtest/gtest.h>

#include <thread>

#include "support/cuda/spill_fixture.h"
#include "support/eventually.h"

namespace tencache {
namespace {

class SpareCopiesTest : public SpillFixture {
 protected:
  /// Starts with room for this many tensors in host memory, and no disk below it.
  void start(uint64_t host_tensors) {
    SpillFixture::start([host_tensors](CudaEngineConfig& config) {
      config.host->budget_bytes = host_tensors * kBytes;
      config.disk.reset();
    });
  }
  /// Evicts these tensors and then uses them.
  void evict_and_bring_back(uint64_t first, uint64_t count) {
    for (uint64_t index = first; index < first + count; ++index) {
      ASSERT_TRUE(engine_->evict(tensors_[index]));
    }
    for (uint64_t index = first; index < first + count; ++index) check(index);
  }
  uint64_t host_bytes() { return engine_->device().host()->stats().asked_bytes; }
};

// Spare copies make way for what has to leave.
TEST_F(SpareCopiesTest, MakeRoomInHostMemory) {
  start(4);
  allocate(8);
  for (uint64_t first = 0; first < 8; first += 4) {
    evict_and_bring_back(first, 4);
    EXPECT_EQ(host_bytes(), 4 * kBytes);
  }
}

// As long as host memory may grow, what is only read leaves without a copy.
TEST_F(SpareCopiesTest, StayWhileHostMemoryMayGrow) {
  start(16);
  allocate(8);
  evict_and_bring_back(0, 4);
  evict_and_bring_back(4, 4);
  EXPECT_EQ(host_bytes(), 8 * kBytes);
  const uint64_t copies = engine_->driver().calls("cuMemcpyDtoHAsync");
  evict_and_bring_back(0, 4);
  EXPECT_EQ(engine_->driver().calls("cuMemcpyDtoHAsync"), copies);
}

// While the eviction waits for the stream, the tensor is freed, and its memory may serve the next.
TEST_F(SpareCopiesTest, GoWithWhatIsFreedWhileItLeaves) {
  start(16);
  for (const bool is_reused : {false, true}) {
    allocate(1);
    evict_and_bring_back(0, 1);
    ASSERT_EQ(host_bytes(), kBytes);
    engine_->driver().hold(stream_);
    char* tensor = tensors_[0];
    engine_->check(stream_, tensor, kBytes, 0);
    std::jthread evictor([&] { EXPECT_FALSE(engine_->evict(tensor)); });
    EXPECT_TRUE(eventually([&] { return engine_->state(tensor) == ExtentState::kEvicting; }));
    engine_->free(tensor);
    tensors_.clear();
    if (is_reused) {
      allocate(1);
      EXPECT_EQ(tensors_[0], tensor);
    }
    engine_->driver().let_go();
    evictor.join();
    EXPECT_EQ(host_bytes(), 0u);
  }
}

}  // namespace
}  // namespace tencache
