// SPDX-License-Identifier: Apache-2.0
//
// BlockPoolFixture: a BlockPool over the simulated driver and mapped segments, with streams and
// kernels that a test can hold up. At the end every segment must be back with the source and
// nothing left in the driver, unless the test says that the context has failed. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "memory/cuda/block_pool.h"
#include "support/cuda/mapped_segments.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {

class BlockPoolFixture : public ::testing::Test {
 protected:
  BlockPoolFixture() {
    // A death test runs in a fresh process, because the threads of streams do not survive a fork.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    driver_.emplace(SimulatedDriverConfig{.capacity_bytes = kGiB});
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(api(), 0);
    EXPECT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    context_.emplace(api());
    marks_.emplace(*gpu_);
    numbers_.emplace(*gpu_, *marks_);
    source_.emplace(api());
    pool_.emplace(*numbers_, *source_, use_);
  }
  ~BlockPoolFixture() override {
    driver_->wait_until_idle();
    pool_.reset();
    if (!has_failed_) {
      EXPECT_EQ(source_->bytes(), 0u);
    }
    source_.reset();
    driver_->wait_until_idle();
    for (const CUstream stream : streams_) api().cuStreamDestroy(stream);
    numbers_.reset();
    marks_.reset();
    context_.reset();
    gpu_.reset();
    if (!has_failed_) {
      EXPECT_EQ(driver_->leaks(), "");
    }
  }

  const DriverApi& api() { return driver_->api(); }
  CUstream make_stream() {
    CUstream stream = nullptr;
    EXPECT_EQ(api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return streams_.emplace_back(stream);
  }
  StreamSet set_of(CUstream stream) { return numbers_->set_of(stream); }
  // Uses up all numbers, so that new streams get the shared bit.
  void use_up_numbers() {
    uintptr_t handle = 0x1000000;
    while (numbers_->set_of(reinterpret_cast<CUstream>(handle)) != StreamNumbers::kShared >> 1) {
      ++handle;
    }
  }

  CUdeviceptr allocate(uint64_t bytes, CUstream stream) {
    const Result<CUdeviceptr> made = pool_->allocate(bytes, set_of(stream));
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    return made.is_ok() ? made.value() : 0;
  }
  void free(CUdeviceptr address) { EXPECT_TRUE(pool_->free(address)); }
  void note_use(CUdeviceptr address, CUstream stream) {
    EXPECT_TRUE(pool_->note_use(address, set_of(stream)));
  }

  // The block that begins at the address.
  BlockView view_of(CUdeviceptr address) {
    for (const SegmentView& segment : pool_->segments()) {
      for (const BlockView& block : segment.blocks) {
        if (block.address == address) return block;
      }
    }
    ADD_FAILURE() << "no block begins at " << address;
    return {};
  }

  std::optional<SimulatedDriver> driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<StreamNumbers> numbers_;
  std::optional<MappedSegments> source_;
  ProgramUse use_;
  std::optional<BlockPool> pool_;
  std::vector<CUstream> streams_;
  bool has_failed_ = false;
};

}  // namespace tencache
