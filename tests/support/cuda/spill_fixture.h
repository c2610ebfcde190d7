// SPDX-License-Identifier: Apache-2.0
//
// SpillFixture: tensors on a simulated GPU, host memory for four of them, and a disk below, whose
// faults the test chooses. In the end everything is freed and the books must be right.
//
// Threads: the test's own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "support/cuda/test_cuda_engine.h"
#include "support/faulty_channel.h"
#include "support/function_uses.h"
#include "support/test_directory.h"

namespace tencache {

class SpillFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 4 * kMiB;
  static constexpr uint64_t kHostTensors = 4;  // number that host memory holds

  ~SpillFixture() override { stop(); }

  /// Ends the engine. A fixture that owns what the engine uses calls this in its destructor.
  void stop() {
    if (!engine_.has_value()) return;
    for (char* address : tensors_) engine_->free(address);
    EXPECT_EQ(engine_->check_books(), "");
    engine_.reset();
  }

  void start(const TestCudaEngine::Adjust& adjust = {}) {
    engine_.emplace([&](CudaEngineConfig& config) {
      config.host->budget_bytes = kHostTensors * kBytes;
      config.host_headroom = 0;
      config.disk.emplace();
      config.disk->directory = directory_.path();
      config.disk->quota_bytes = 256 * kMiB;
      config.disk->channel_factory = faulty_channel_factory(faults_);
      if (adjust) adjust(config);
    });
    stream_ = engine_->make_stream();
  }
  void allocate(uint64_t count) {
    for (uint64_t index = 0; index < count; ++index) {
      tensors_.push_back(engine_->allocate(kBytes, stream_));
      write(tensors_.size() - 1);
    }
  }
  void write(uint64_t index) { engine_->write(stream_, tensors_[index], kBytes, index); }
  void check(uint64_t index) {
    engine_->check(stream_, tensors_[index], kBytes, index);
    settle();
  }
  void check_all() {
    for (uint64_t index = 0; index < tensors_.size(); ++index) check(index);
  }
  void settle() {
    engine_->wait_until_idle();
    (*engine_)->mover()->settle(true);
  }
  /// Evicts the first `count` tensors, one after another.
  void evict(uint64_t count) {
    for (uint64_t index = 0; index < count; ++index) ASSERT_TRUE(engine_->evict(tensors_[index]));
  }
  CudaExtent* extent(uint64_t index) { return engine_->extent(tensors_[index]); }
  bool is_on_disk_alone(uint64_t index) {
    return extent(index)->state() == ExtentState::kCold && !extent(index)->host_block.is_valid() &&
           extent(index)->slot.is_valid();
  }
  /// Follows a plan that predicts these uses. A null function means no plan any more.
  void follow(const FunctionUses::Function& function, uint64_t copy_ahead_bytes = 0) {
    auto uses = function ? std::make_unique<FunctionUses>(function, copy_ahead_bytes) : nullptr;
    (*engine_)->mover()->set_next_uses(uses.get());
    uses_ = std::move(uses);
  }
  /// Follows a plan that needs the tensors in their order.
  void need_in_order(uint64_t copy_ahead_bytes = 0) {
    const auto uses_in_order = [this] {
      std::unordered_map<const Extent*, uint64_t> uses;
      for (uint64_t index = 0; index < tensors_.size(); ++index) uses[extent(index)] = index;
      return uses;
    };
    follow(uses_in_order, copy_ahead_bytes);
  }
  /// Whether the tensor is cold and has a block. The function looks between two batches of the
  /// thread that reads ahead, and claims nothing, since a batch leaves out a claimed extent.
  bool has_block(uint64_t index) {
    ForkLatch& gate = (*engine_)->mover()->fork_latch();
    gate.close();
    const CudaExtent* found = extent(index);
    const bool has = found->state() == ExtentState::kCold && found->host_block.is_valid();
    gate.reopen();
    return has;
  }
  uint64_t written_bytes() { return engine_->stats().disk_written_bytes; }

  TestDirectory directory_;
  std::shared_ptr<FaultPlan> faults_ = std::make_shared<FaultPlan>();
  std::unique_ptr<FunctionUses> uses_;  // outlives the engine
  std::optional<TestCudaEngine> engine_;
  CUstream stream_ = nullptr;
  std::vector<char*> tensors_;
};

}  // namespace tencache
