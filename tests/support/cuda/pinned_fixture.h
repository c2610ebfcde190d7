// SPDX-License-Identifier: Apache-2.0
//
// PinnedFixture: pinned memory over the simulated driver, with streams that copy from and to it and
// that a test can hold up. Chunks are 64 KiB, so few blocks fill one. At the end everything must be
// back with the driver. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/cuda/pinned_memory.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {

class PinnedFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kChunk = 64 * kKiB;
  static constexpr uint64_t kBudget = 4 * kChunk;

  PinnedFixture() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~PinnedFixture() override {
    if (!driver_) return;
    driver_->wait_until_idle();
    for (void* address : allocated_) pool().free(address);
    memory_.reset();
    for (const CUstream stream : streams_) api().cuStreamDestroy(stream);
    context_.reset();
    EXPECT_EQ(driver_->leaks(), "");
  }
  void start(const SimulatedDriverConfig& driver = {}, uint64_t budget_bytes = kBudget) {
    driver_.emplace(driver);
    context_.emplace(api());
    PinnedMemoryConfig config;
    config.host.budget_bytes = budget_bytes;
    config.host.chunk_bytes = kChunk;
    config.host.threads = 1;
    Result<std::unique_ptr<PinnedMemory>> made = PinnedMemory::open(api(), config);
    ASSERT_TRUE(made.is_ok()) << made.status().message();
    memory_ = std::move(made).value();
  }

  const DriverApi& api() { return driver_->api(); }
  PinnedPool& pool() { return memory_->pool(); }
  HostTierStats tier() { return memory_->tier().stats(); }
  PinnedFigures figures() { return pool().figures(); }

  CUstream make_stream() {
    CUstream stream = nullptr;
    EXPECT_EQ(api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return streams_.emplace_back(stream);
  }
  char* allocate(uint64_t bytes, uint64_t private_pool = 0) {
    const Result<void*> made = pool().allocate(bytes, private_pool);
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    if (!made.is_ok()) return nullptr;
    allocated_.push_back(made.value());
    return static_cast<char*>(made.value());
  }
  void free(void* address) {
    std::erase(allocated_, address);
    pool().free(address);
  }
  bool note_use(const void* address, CUstream stream, int ordinal = 0) {
    const Result<bool> noted = memory_->note_use(address, ordinal, stream);
    EXPECT_TRUE(noted.is_ok()) << noted.status().message();
    return noted.is_ok() && noted.value();
  }
  // Asks the driver, as PyTorch's is_pinned() does.
  bool is_pinned(void* address) {
    CUdeviceptr found = 0;
    return api().cuMemHostGetDevicePointer(&found, address, 0) == CUDA_SUCCESS;
  }

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;
  std::unique_ptr<PinnedMemory> memory_;
  std::vector<CUstream> streams_;
  std::vector<void*> allocated_;
};

}  // namespace tencache
