// SPDX-License-Identifier: Apache-2.0
//
// The C ABI for pinned memory over the simulated driver: its conversions and its refusals.
#include <cuda.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi/cuda/open_pinned.h"
#include "abi/tencache_pinned.h"
#include "base/check.h"
#include "base/units.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {
namespace {

constexpr uint64_t kBudget = 256 * kKiB;

PinnedMemoryConfig config_of(int ordinal) {
  PinnedMemoryConfig config;
  config.ordinal = ordinal;
  config.host.budget_bytes = kBudget;
  return config;
}

class PinnedAbiTest : public ::testing::Test {
 protected:
  PinnedAbiTest() {
    driver_.emplace();
    context_.emplace(driver_->api());
    EXPECT_EQ(driver_->api().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    const Result<tencache_pinned*> made = open_pinned(driver_->api(), config_of(0));
    TENCACHE_CHECK(made.is_ok(), "%s", made.status().message().c_str());
    pinned_ = made.value();
  }
  ~PinnedAbiTest() override {
    driver_->wait_until_idle();
    tencache_pinned_close(pinned_);
    tencache_pinned_close(nullptr);
    driver_->api().cuStreamDestroy(stream_);
    context_.reset();
    EXPECT_EQ(driver_->leaks(), "");
  }
  void* allocate(uint64_t bytes) {
    void* const address = tencache_pinned_allocate(pinned_, bytes, &error_);
    EXPECT_NE(address, nullptr) << error_.message;
    return address;
  }
  tencache_pinned_stats stats() {
    tencache_pinned_stats stats;
    tencache_pinned_get_stats(pinned_, &stats);
    return stats;
  }
  PinnedFigures figures() { return pinned_->memory->pool().figures(); }
  uint64_t pinned_bytes() { return pinned_->memory->tier().stats().pinned_bytes; }
  std::vector<tencache_pinned_block> walk() {
    std::vector<tencache_pinned_block> blocks;
    tencache_pinned_walk(
        pinned_,
        [](void* context, const tencache_pinned_block* block) {
          static_cast<std::vector<tencache_pinned_block>*>(context)->push_back(*block);
        },
        &blocks);
    return blocks;
  }

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;
  CUstream stream_ = nullptr;
  tencache_pinned* pinned_ = nullptr;
  tencache_error error_ = {};
};

TEST_F(PinnedAbiTest, MemoryIsCountedUntilStreamsAreDoneWithIt) {
  void* const first = allocate(1000);
  void* const second = allocate(5000);
  EXPECT_EQ(tencache_pinned_record_stream(pinned_, static_cast<char*>(second) + 4999, 0, stream_,
                                          &error_),
            1);
  EXPECT_EQ(stats().bytes.current, 6000u);
  EXPECT_EQ(stats().allocations.current, 2u);
  EXPECT_EQ(pinned_->memory->tier().budget_bytes(), kBudget);
  EXPECT_EQ(stats().mapped_bytes.current, pinned_bytes());
  EXPECT_EQ(stats().mapped_bytes.added, stats().mapped_bytes.current);
  EXPECT_GT(stats().pin_ns_max, 0u);
  tencache_pinned_free(pinned_, second);
  tencache_pinned_free(pinned_, nullptr);
  EXPECT_EQ(figures().waiting_bytes, 5000u);
  const std::vector<tencache_pinned_block> blocks = walk();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].address, reinterpret_cast<uintptr_t>(first));
  EXPECT_EQ(blocks[0].state, TENCACHE_BLOCK_ALLOCATED);
  EXPECT_EQ(blocks[1].state, TENCACHE_BLOCK_PENDING_FREE);
  driver_->wait_until_idle();
  tencache_pinned_trim(pinned_);
  EXPECT_EQ(figures().waiting_count, 0u);
  tencache_pinned_free(pinned_, first);
  EXPECT_EQ(stats().bytes.current, 0u);
  EXPECT_EQ(stats().bytes.peak, 6000u);
  tencache_pinned_reset_peaks(pinned_);
  tencache_pinned_reset_totals(pinned_);
  EXPECT_EQ(stats().bytes.peak, 0u);
  EXPECT_EQ(stats().bytes.added, 0u);
  EXPECT_EQ(stats().mapped_count.added, 0u);
  EXPECT_EQ(stats().pin_ns_max, 0u);
}

TEST_F(PinnedAbiTest, WhatTheDriverRefusedToPinIsCountedUntilItIsUnmapped) {
  driver_->fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  void* const address = allocate(1000);
  EXPECT_GT(stats().mapped_bytes.current, 0u);
  EXPECT_EQ(stats().mapped_count.current, 1u);
  EXPECT_EQ(pinned_bytes(), 0u);
  tencache_pinned_free(pinned_, address);
  tencache_pinned_trim(pinned_);
  EXPECT_EQ(stats().mapped_bytes.current, 0u);
  EXPECT_EQ(stats().mapped_bytes.removed, stats().mapped_bytes.added);
  EXPECT_EQ(stats().mapped_count.current, 0u);
  EXPECT_EQ(stats().mapped_count.removed, 1u);
}

TEST_F(PinnedAbiTest, StreamsThatCannotBeWaitedForAreErrors) {
  void* const address = allocate(100);
  char foreign = 0;
  EXPECT_EQ(tencache_pinned_record_stream(pinned_, &foreign, 0, stream_, &error_), 0);
  EXPECT_EQ(error_.code, TENCACHE_OK);
  EXPECT_EQ(tencache_pinned_record_stream(pinned_, address, 0, CU_STREAM_PER_THREAD, &error_), 0);
  EXPECT_EQ(error_.code, TENCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("per-thread"), std::string::npos);
  EXPECT_EQ(tencache_pinned_record_stream(pinned_, address, 3, stream_, &error_), 0);
  EXPECT_EQ(error_.code, TENCACHE_INVALID_ARGUMENT);
  tencache_pinned_free(pinned_, address);
}

TEST_F(PinnedAbiTest, PoolsKeepWhatIsFreedInThem) {
  const uint64_t pool = tencache_pinned_make_pool(pinned_);
  void* const address = tencache_pinned_allocate_in_pool(pinned_, pool, 300, &error_);
  ASSERT_NE(address, nullptr) << error_.message;
  tencache_pinned_free(pinned_, address);
  EXPECT_EQ(figures().kept_bytes, 300u);
  EXPECT_EQ(walk()[0].pool, pool);
  EXPECT_EQ(walk()[0].state, TENCACHE_BLOCK_INACTIVE);
  tencache_pinned_drop_pool(pinned_, pool);
  EXPECT_EQ(figures().kept_bytes, 0u);
  EXPECT_TRUE(walk().empty());
}

TEST_F(PinnedAbiTest, RefusalsAreReported) {
  EXPECT_EQ(tencache_pinned_allocate(pinned_, 2 * kBudget, &error_), nullptr);
  EXPECT_EQ(error_.code, TENCACHE_OUT_OF_MEMORY);
  EXPECT_FALSE(open_pinned(driver_->api(), config_of(7)).is_ok());
}

}  // namespace
}  // namespace tencache
