// SPDX-License-Identifier: Apache-2.0
//
// A GPU's budget that changes, and one that promises memory which other programs have: hooks arm in
// time, passes and plans keep to what there is.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/plan/learned_plan.h"
#include "support/cuda/test_cuda_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 4 * kMiB;

class GpuBudgetTest : public ::testing::Test {
 protected:
  ~GpuBudgetTest() override {
    for (char* address : allocated_) engine_->free(address);
    EXPECT_EQ(engine_->check_books(), "");
  }
  void start(const TestCudaEngine::Adjust& adjust, const SimulatedDriverConfig& driver = {}) {
    engine_.emplace(adjust, driver);
    stream_ = engine_->make_stream();
  }
  char* allocate() {
    allocated_.push_back(engine_->allocate(kBytes, stream_));
    return allocated_.back();
  }

  std::atomic<uint64_t> planned_budget_bytes_{0};
  std::optional<TestCudaEngine> engine_;
  CUstream stream_ = nullptr;
  std::vector<char*> allocated_;
};

// The program lowers its share of the GPU's memory (torch.cuda.set_per_process_memory_fraction).
TEST_F(GpuBudgetTest, AnotherLimitArmsAtItsOwnMark) {
  start([](CudaEngineConfig& config) {
    config.budget_bytes = 64 * kMiB;
    config.arm_at = 0.7;
  });
  EXPECT_EQ((*engine_)->evictor().headroom_bytes(), 2 * kMiB);
  engine_->device().heap().set_limit(32 * kMiB, true);
  (*engine_)->on_budget_change();
  EXPECT_EQ((*engine_)->evictor().headroom_bytes(), kMiB);
  for (int index = 0; index < 5; ++index) allocate();
  EXPECT_FALSE((*engine_)->evictor().is_armed()) << "20 of 32 MiB";
  allocate();
  EXPECT_TRUE((*engine_)->evictor().is_armed()) << "24 of 32 MiB";
}

// Others took the GPU's memory: the budget promises memory that is not there.
TEST_F(GpuBudgetTest, GpuThatOthersUseIsSpilledEarlier) {
  start([](CudaEngineConfig& config) { config.budget_bytes = 48 * kMiB; },
        {.capacity_bytes = 32 * kMiB});
  EXPECT_EQ(engine_->device().heap().others_bytes(), 0u);
  for (uint64_t index = 0; index < 16; ++index) {
    engine_->write(stream_, allocate(), kBytes, index);
  }
  for (uint64_t index = 0; index < 16; ++index) {
    engine_->check(stream_, allocated_[index], kBytes, index);
  }
  engine_->wait_until_idle();
  EXPECT_EQ(engine_->device().heap().others_bytes(), 16 * kMiB);
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
  EXPECT_LE(engine_->stats().peak_live_bytes, 36 * kMiB) << "what others use is not the program's";
}

// What no op has used cannot leave. The budget is exceeded for it, but not beyond what the GPU
// holds.
TEST_F(GpuBudgetTest, WhatTheGpuCannotHoldIsRefusedBeforeTheBudgetIsExceeded) {
  start([](CudaEngineConfig& config) { config.budget_bytes = 48 * kMiB; },
        {.capacity_bytes = 64 * kMiB});
  allocated_.push_back(engine_->allocate(40 * kMiB, stream_));
  CudaHeap& heap = engine_->device().heap();
  const StreamSet stream = engine_->device().streams().set_of(stream_);
  const Status refused = heap.allocate(40 * kMiB, stream).status();
  EXPECT_EQ(refused.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(refused.message().find("with 40.0 MiB in use, which cannot leave"), std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("The GPU has 64.0 MiB in all"), std::string::npos);
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
  allocated_.push_back(engine_->allocate(20 * kMiB, stream_));
  EXPECT_EQ(engine_->stats().over_budget_events, 1u);
}

// On a GPU an extent is never smaller than a handle, whatever the option says.
TEST_F(GpuBudgetTest, AWarningAboutSmallTensorsAdvisesWhatHelps) {
  for (const uint64_t extent_min_bytes : {64 * kKiB, 8 * kMiB}) {
    start([&](CudaEngineConfig& config) {
      config.budget_bytes = 16 * kMiB;
      config.heap.extent_min_bytes = extent_min_bytes;
    });
    ::testing::internal::CaptureStderr();
    for (int count = 0; count < 20; ++count) {
      allocated_.push_back(engine_->allocate(kMiB, stream_));
    }
    const std::string text = ::testing::internal::GetCapturedStderr();
    const bool is_lowest = extent_min_bytes < 2 * kMiB;
    EXPECT_NE(text.find(is_lowest ? "smaller than 2.00 MiB" : "smaller than 8.00 MiB"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("--extent-min") == std::string::npos, is_lowest) << text;
    for (char* address : allocated_) engine_->free(address);
    allocated_.clear();
  }
}

// A plan keeps to what others leave.
TEST_F(GpuBudgetTest, PlansLeaveAloneWhatOthersUse) {
  start(
      [this](CudaEngineConfig& config) {
        config.budget_bytes = 48 * kMiB;
        config.hooks.on_learned_plan = [this](const LearnedPlan& learned) {
          planned_budget_bytes_ = learned.machine.budget_bytes;
        };
      },
      {.capacity_bytes = 32 * kMiB});
  for (uint64_t index = 0; index < 16; ++index) {
    engine_->write(stream_, allocate(), kBytes, index);
  }
  for (int step = 0; step < 200 && planned_budget_bytes_ == 0; ++step) {
    for (uint64_t index = 0; index < 16; ++index) {
      engine_->check(stream_, allocated_[index], kBytes, index);
    }
    (*engine_)->gate().on_step();
    engine_->wait_until_idle();
  }
  EXPECT_GT(planned_budget_bytes_, 0u);
  EXPECT_LE(planned_budget_bytes_, 32 * kMiB);
}

// What others have is found out in few steps, however small the requests are.
TEST_F(GpuBudgetTest, FewRefusalsTellWhatOthersUse) {
  start([](CudaEngineConfig& config) { config.budget_bytes = kGiB; },
        {.capacity_bytes = 64 * kMiB});
  for (int index = 0; index < 24; ++index) engine_->write(stream_, allocate(), kBytes, 1);
  engine_->wait_until_idle();
  EXPECT_GE(engine_->device().heap().others_bytes(), kGiB - 64 * kMiB);
  EXPECT_LE(engine_->driver().calls("cuMemCreate"), 128u);
}

}  // namespace
}  // namespace tencache
