// SPDX-License-Identifier: Apache-2.0
//
// The C ABI for GPUs, on which the shim builds PyTorch's allocator, over the simulated driver.
// Memory is allocated, used on streams, freed and counted; private pools do not share theirs;
// walks, look-ups and figures agree with each other.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "abi/cuda/open_gpu.h"
#include "abi/tencache_gpu.h"
#include "base/stats.h"
#include "base/units.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "tier/host_tier.h"

namespace tencache {
namespace {

struct Segment {
  tencache_gpu_segment head = {};
  std::vector<tencache_gpu_block> blocks;
};

class GpuAbiTest : public ::testing::Test {
 protected:
  GpuAbiTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~GpuAbiTest() override {
    if (gpu_ != nullptr) {
      for (void* address : allocated_) tencache_gpu_free(gpu_, address);
      driver_->wait_until_idle();
      tencache_gpu_close(gpu_);
    }
    for (const CUstream stream : streams_) driver_->api().cuStreamDestroy(stream);
    context_.reset();
    if (driver_) {
      EXPECT_EQ(driver_->leaks(), "");
    }
  }
  static CudaDeviceConfig config() {
    CudaDeviceConfig config;
    config.budget_bytes = 64 * kMiB;
    config.heap.extent_min_bytes = 2 * kMiB;
    config.probe_bytes = 0;
    return config;
  }
  static CudaDeviceConfig spilling(uint64_t budget_bytes) {
    CudaDeviceConfig made = config();
    made.budget_bytes = budget_bytes;
    made.host.emplace();
    made.host->budget_bytes = 128 * kMiB;
    return made;
  }
  void start() { start(config()); }
  void start(const CudaDeviceConfig& config) {
    driver_.emplace();
    context_.emplace(driver_->api());
    const Result<tencache_gpu*> gpu = open_gpu(driver_->api(), config);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = gpu.value();
    stream_ = make_stream();
  }
  CUstream make_stream() {
    CUstream stream = nullptr;
    EXPECT_EQ(driver_->api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    return streams_.emplace_back(stream);
  }
  void* kept(void* address) {
    EXPECT_NE(address, nullptr) << error_.message;
    allocated_.push_back(address);
    return address;
  }
  void* allocate(uint64_t bytes, CUstream stream) {
    return kept(tencache_gpu_allocate(gpu_, bytes, stream, &error_));
  }
  void* allocate(uint64_t bytes) { return allocate(bytes, stream_); }
  void* allocate_in(uint64_t pool, uint64_t bytes) {
    return kept(tencache_gpu_allocate_in_pool(gpu_, pool, bytes, stream_, &error_));
  }
  void free(void* address) {
    std::erase(allocated_, address);
    tencache_gpu_free(gpu_, address);
  }
  void op(const std::vector<void*>& addresses) {
    std::vector<Access> accesses;
    for (const void* address : addresses) accesses.push_back({address, AccessMode::kWrite});
    gpu_->engine->open_op(gpu_->engine->recorder().register_op("test::op"), accesses, stream_);
    gpu_->engine->gate().close();
  }
  tencache_gpu_stats stats() {
    tencache_gpu_stats stats;
    tencache_gpu_get_stats(gpu_, &stats);
    return stats;
  }
  const Stats& counters() { return gpu_->engine->settled_stats(); }
  std::vector<Segment> walk() {
    std::vector<Segment> segments;
    tencache_gpu_walk(
        gpu_,
        [](void* context, const tencache_gpu_segment* segment) {
          static_cast<std::vector<Segment>*>(context)->push_back(
              {*segment, {segment->blocks, segment->blocks + segment->block_count}});
        },
        &segments);
    return segments;
  }
  // Expects that walk and figures agree, and that blocks cover their segments.
  void expect_agreement() {
    const tencache_gpu_stats figures = stats();
    uint64_t reserved_bytes = 0;
    uint64_t cold_bytes = 0;
    std::map<int, uint64_t> bytes_of;
    uint64_t requested_bytes = 0;
    uint64_t count = 0;
    uintptr_t last = 0;
    for (const Segment& segment : walk()) {
      ASSERT_GE(segment.head.address, last);
      (segment.head.is_resident != 0 ? reserved_bytes : cold_bytes) += segment.head.bytes;
      uintptr_t at = segment.head.address;
      for (const tencache_gpu_block& block : segment.blocks) {
        ASSERT_EQ(block.address, at);
        at += block.bytes;
        bytes_of[block.state] += block.bytes;
        requested_bytes += block.state == TENCACHE_BLOCK_INACTIVE ? 0 : block.requested_bytes;
        count += block.state == TENCACHE_BLOCK_ALLOCATED ? 1 : 0;
      }
      last = segment.head.address + segment.head.bytes;
      ASSERT_EQ(at, last);
    }
    EXPECT_EQ(figures.all.bytes.current, bytes_of[TENCACHE_BLOCK_ALLOCATED]);
    EXPECT_EQ(tencache_gpu_use_now(gpu_).bytes, figures.all.bytes.current);
    EXPECT_EQ(tencache_gpu_use_now(gpu_).device_bytes, figures.all.device_bytes.current);
    EXPECT_EQ(figures.all.bytes.current, figures.small.bytes.current + figures.large.bytes.current);
    EXPECT_EQ(figures.all.requested_bytes.current, requested_bytes);
    EXPECT_EQ(figures.all.allocations.current, count);
    EXPECT_EQ(figures.all.active_bytes.current - figures.all.bytes.current,
              bytes_of[TENCACHE_BLOCK_PENDING_FREE]);
    EXPECT_EQ(figures.cold_bytes, cold_bytes);
    EXPECT_GE(figures.all.device_bytes.current, reserved_bytes);
    EXPECT_EQ(figures.all.device_bytes.current,
              figures.small.device_bytes.current + figures.large.device_bytes.current);
  }

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;
  tencache_gpu* gpu_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUstream> streams_;
  std::vector<void*> allocated_;
  tencache_error error_ = {};
};

TEST_F(GpuAbiTest, WhatIsAllocatedIsCounted) {
  start();
  allocate(1000);
  void* large = allocate(5 * kMiB);
  allocate(kMiB + 1);  // large for PyTorch, and no extent
  expect_agreement();
  tencache_gpu_stats now = stats();
  EXPECT_EQ(now.small.bytes.current, 1024u);
  EXPECT_EQ(now.small.requested_bytes.current, 1000u);
  EXPECT_EQ(now.large.bytes.current, 5 * kMiB + kMiB + 512);
  EXPECT_EQ(now.large.requested_bytes.current, 6 * kMiB + 1);
  EXPECT_EQ(now.all.allocations.current, 3u);
  EXPECT_EQ(now.small.device_bytes.current, 2 * kMiB);
  EXPECT_EQ(now.small.split_bytes.current, 2 * kMiB - 1024);
  EXPECT_EQ(now.large.split_bytes.current, kMiB + (4 * kMiB - kMiB - 512));
  EXPECT_EQ(now.large.split_count.current, 2u);
  EXPECT_EQ(now.large.device_bytes.current, 6 * kMiB + 4 * kMiB);
  EXPECT_EQ(now.all.device_bytes.current, 12 * kMiB);
  EXPECT_EQ(now.all.device_count.current, 3u);

  free(large);
  expect_agreement();
  now = stats();
  EXPECT_EQ(now.all.bytes.peak - now.all.bytes.current, 5 * kMiB);
  EXPECT_EQ(now.all.bytes.removed, 5 * kMiB);
  EXPECT_EQ(now.large.split_count.current, 1u);
  EXPECT_EQ(gpu_->device->heap().cached_bytes(), 6 * kMiB);
  tencache_gpu_reset_peaks(gpu_);
  tencache_gpu_reset_totals(gpu_);
  now = stats();
  EXPECT_EQ(now.all.bytes.peak, now.all.bytes.current);
  EXPECT_EQ(now.all.bytes.added, 0u);
  EXPECT_EQ(now.all.bytes.removed, 0u);
  EXPECT_EQ(now.all.device_bytes.added, 0u);
}

// PyTorch's own allocator cuts the same requests the same way.
TEST_F(GpuAbiTest, WhatARequestLeavesOverIsFree) {
  struct Edge {
    uint64_t requested_bytes;
    uint64_t block_bytes;
    uint64_t device_bytes;
  };
  start();
  for (const Edge& edge : {
           Edge{2 * kMiB + 1, 2 * kMiB + 512, 4 * kMiB},
           Edge{4 * kMiB - 512, 4 * kMiB - 512, 4 * kMiB},
           Edge{10 * kMiB - 512, 10 * kMiB - 512, 10 * kMiB},
           Edge{10 * kMiB + 512, 10 * kMiB + 512, 12 * kMiB},
           Edge{11 * kMiB, 12 * kMiB, 12 * kMiB},  // 1 MiB would serve no large request
       }) {
    SCOPED_TRACE(edge.requested_bytes);
    void* address = allocate(edge.requested_bytes);
    expect_agreement();
    const tencache_gpu_stats now = stats();
    EXPECT_EQ(now.all.bytes.current, edge.block_bytes);
    EXPECT_EQ(now.all.split_bytes.current, edge.device_bytes - edge.block_bytes);
    free(address);
    expect_agreement();
    EXPECT_EQ(stats().all.split_bytes.current, 0u);
    tencache_gpu_empty_cache(gpu_);
  }
}

TEST_F(GpuAbiTest, EmptyCacheGivesEverythingBackToTheDriver) {
  start();
  void* const large = allocate(5 * kMiB);
  free(allocate(1000));
  free(large);
  uint64_t free_before = 0;
  uint64_t total = 0;
  ASSERT_EQ(tencache_gpu_memory(gpu_, &free_before, &total, &error_), TENCACHE_OK);
  EXPECT_EQ(total - free_before, 8 * kMiB);
  EXPECT_EQ(tencache_gpu_empty_cache(gpu_), 8 * kMiB);
  uint64_t free_after = 0;
  ASSERT_EQ(tencache_gpu_memory(gpu_, &free_after, &total, &error_), TENCACHE_OK);
  EXPECT_EQ(free_after, total);
  EXPECT_EQ(stats().all.device_bytes.current, 0u);
  EXPECT_EQ(stats().all.device_bytes.peak, 8 * kMiB);
  EXPECT_TRUE(walk().empty());
}

TEST_F(GpuAbiTest, BlocksAreFoundByAnyAddress) {
  start();
  auto* small = static_cast<char*>(allocate(1000));
  auto* second = static_cast<char*>(allocate(1000));
  auto* large = static_cast<char*>(allocate(5 * kMiB));
  tencache_gpu_block block;
  tencache_gpu_segment segment;
  ASSERT_EQ(tencache_gpu_find(gpu_, second + 1023, &block, &segment), 1);
  EXPECT_EQ(block.address, reinterpret_cast<uintptr_t>(second));
  EXPECT_EQ(block.bytes, 1024u);
  EXPECT_EQ(block.requested_bytes, 1000u);
  EXPECT_EQ(segment.address, reinterpret_cast<uintptr_t>(small));
  EXPECT_EQ(segment.bytes, 2 * kMiB);
  ASSERT_EQ(tencache_gpu_find(gpu_, large + 5 * kMiB - 1, &block, nullptr), 1);
  EXPECT_EQ(block.address, reinterpret_cast<uintptr_t>(large));
  EXPECT_EQ(block.bytes, 5 * kMiB);
  EXPECT_EQ(tencache_gpu_find(gpu_, large + 5 * kMiB, &block, nullptr), 0);
  EXPECT_EQ(tencache_gpu_find(gpu_, second + 1024, &block, nullptr), 0);
  EXPECT_EQ(tencache_gpu_find(gpu_, &block, &block, nullptr), 0);
  free(large);
  EXPECT_EQ(tencache_gpu_find(gpu_, large, &block, nullptr), 0);
  const tencache_arena arena = tencache_gpu_arena(gpu_);
  for (char* address : {small, second, large}) {
    EXPECT_LT(reinterpret_cast<uintptr_t>(address) - arena.base, arena.bytes);
  }
}

TEST_F(GpuAbiTest, RecordedStreamsKeepMemoryPending) {
  start();
  CUstream other = make_stream();
  void* small = allocate(1000);
  void* large = allocate(5 * kMiB);
  for (void* address : {small, large}) {
    ASSERT_EQ(tencache_gpu_record_stream(gpu_, address, other, &error_), TENCACHE_OK);
  }
  driver_->hold(other);
  free(small);
  free(large);
  expect_agreement();
  EXPECT_EQ(stats().large.active_bytes.current - stats().large.bytes.current, 5 * kMiB);
  EXPECT_EQ(stats().small.active_bytes.current - stats().small.bytes.current, 1024u);
  EXPECT_NE(allocate(5 * kMiB), large);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(5 * kMiB), large);
  expect_agreement();
}

TEST_F(GpuAbiTest, ColdMemoryIsStillTheProgramsOwn) {
  start(spilling(16 * kMiB));
  for (int index = 0; index < 8; ++index) op({allocate(4 * kMiB)});
  const tencache_gpu_stats now = stats();
  EXPECT_EQ(now.all.bytes.current, 32 * kMiB);
  EXPECT_GE(now.cold_bytes, 16 * kMiB);
  EXPECT_GT(counters().evicted_bytes, 0u);
  EXPECT_GT(gpu_->device->host()->stats().chunk_bytes, 0u);
  EXPECT_EQ(counters().over_budget_events, 0u);
}

TEST_F(GpuAbiTest, KeptMemoryStays) {
  start(spilling(16 * kMiB));
  void* kept = allocate(4 * kMiB);
  gpu_->engine->gate().keep_resident(std::vector<Access>{{kept, AccessMode::kWrite}});
  op({kept});
  for (int index = 0; index < 8; ++index) op({allocate(4 * kMiB)});
  EXPECT_GT(counters().evicted_bytes, 0u);
  for (const Segment& segment : walk()) {
    if (segment.head.address == reinterpret_cast<uintptr_t>(kept)) {
      EXPECT_EQ(segment.head.is_resident, 1);
    }
  }
}

// Memory freed in a pool serves that pool alone, and goes back when the pool is dropped.
TEST_F(GpuAbiTest, PrivatePoolsKeepTheirMemory) {
  start();
  const uint64_t pool = tencache_gpu_make_pool(gpu_);
  const uint64_t other = tencache_gpu_make_pool(gpu_);
  ASSERT_NE(pool, 0u);
  ASSERT_NE(pool, other);
  void* small = allocate_in(pool, 1000);
  void* large = allocate_in(pool, 5 * kMiB);
  expect_agreement();
  EXPECT_EQ(stats().all.allocations.current, 2u);
  for (const Segment& segment : walk()) EXPECT_EQ(segment.head.pool, pool);
  free(small);
  free(large);
  EXPECT_NE(allocate(1000), small);
  EXPECT_NE(allocate(5 * kMiB), large);
  EXPECT_NE(allocate_in(other, 1000), small);
  tencache_gpu_empty_cache(gpu_);
  EXPECT_EQ(allocate_in(pool, 1000), small);
  EXPECT_EQ(allocate_in(pool, 5 * kMiB), large);
  expect_agreement();

  EXPECT_EQ(tencache_gpu_drop_pool(gpu_, pool), 0);  // in use
  free(small);
  free(large);
  const uint64_t before = stats().all.device_bytes.current;
  EXPECT_EQ(tencache_gpu_drop_pool(gpu_, pool), 1);
  EXPECT_LT(stats().all.device_bytes.current, before) << "the driver has it back";
  EXPECT_EQ(tencache_gpu_drop_pool(gpu_, pool), 1);  // already gone
  for (const Segment& segment : walk()) EXPECT_NE(segment.head.pool, pool);
  expect_agreement();
}

TEST_F(GpuAbiTest, APoolGoesBackToAnEarlierState) {
  start();
  const uint64_t pool = tencache_gpu_make_pool(gpu_);
  void* small = allocate_in(pool, 1000);
  void* large = allocate_in(pool, 5 * kMiB);
  tencache_gpu_pool_state* const state = tencache_gpu_pool_state_of(gpu_, pool);
  free(large);
  void* newer = allocate_in(pool, 2000);
  struct Noted {
    std::vector<void*> addresses[2];
    static void note(void* context, int is_allocated, void* address) {
      static_cast<Noted*>(context)->addresses[is_allocated].push_back(address);
    }
  };
  Noted noted;
  ASSERT_EQ(tencache_gpu_restore_pool(gpu_, state, &Noted::note, &noted, &error_), TENCACHE_OK);
  EXPECT_EQ(noted.addresses[0], (std::vector<void*>{small, newer}));
  EXPECT_EQ(noted.addresses[1], (std::vector<void*>{small, large}));
  EXPECT_EQ(stats().all.allocations.current, 2u);
  std::erase(allocated_, newer);
  free(small);
  allocated_.push_back(large);
  free(large);
  ASSERT_EQ(tencache_gpu_drop_pool(gpu_, pool), 1);
  EXPECT_EQ(tencache_gpu_restore_pool(gpu_, state, &Noted::note, &noted, &error_),
            TENCACHE_FAILED_PRECONDITION);
  EXPECT_EQ(noted.addresses[0].size(), 2u);
  tencache_gpu_delete_pool_state(state);
}

// Ops whose tensors together exceed the budget do not make a pool's memory leave.
TEST_F(GpuAbiTest, PrivatePoolsNeverLeave) {
  start(spilling(48 * kMiB));
  const uint64_t pool = tencache_gpu_make_pool(gpu_);
  void* graph = allocate_in(pool, 5 * kMiB);
  for (int index = 0; index < 12; ++index) op({graph, allocate(4 * kMiB)});
  EXPECT_GT(counters().evicted_bytes, 0u);
  bool found = false;
  for (const Segment& segment : walk()) {
    if (segment.head.pool != pool) continue;
    found = true;
    EXPECT_EQ(segment.head.is_resident, 1);
  }
  EXPECT_TRUE(found);
}

// While a stream captures a graph, a pool still serves it, and memory it frees comes back at once.
TEST_F(GpuAbiTest, PoolsServeAStreamThatCaptures) {
  start();
  const uint64_t pool = tencache_gpu_make_pool(gpu_);
  driver_->set_capturing(stream_, true);
  void* first = allocate_in(pool, 5 * kMiB);
  free(first);
  EXPECT_EQ(allocate_in(pool, 5 * kMiB), first);
  driver_->set_capturing(stream_, false);
}

TEST_F(GpuAbiTest, RefusalsSayWhy) {
  CudaDeviceConfig strict = config();
  strict.heap.strict = true;
  start(strict);
  EXPECT_EQ(tencache_gpu_allocate(gpu_, 80 * kMiB, stream_, &error_), nullptr);
  EXPECT_EQ(error_.code, TENCACHE_OUT_OF_MEMORY);
  EXPECT_NE(std::string(error_.message).find("80.0 MiB"), std::string::npos) << error_.message;
  EXPECT_EQ(tencache_gpu_allocate(gpu_, kGiB, stream_, &error_), nullptr);
  EXPECT_EQ(error_.code, TENCACHE_OUT_OF_MEMORY);
  const uint64_t pool = tencache_gpu_make_pool(gpu_);
  EXPECT_EQ(tencache_gpu_allocate_in_pool(gpu_, pool, uint64_t{1} << 50, stream_, &error_),
            nullptr);
  EXPECT_EQ(error_.code, TENCACHE_OUT_OF_MEMORY);
  EXPECT_EQ(tencache_gpu_allocate(gpu_, 1000, CU_STREAM_PER_THREAD, &error_), nullptr);
  EXPECT_EQ(error_.code, TENCACHE_INVALID_ARGUMENT);
  void* block = allocate(1000);
  EXPECT_EQ(tencache_gpu_record_stream(gpu_, block, CU_STREAM_PER_THREAD, &error_),
            TENCACHE_INVALID_ARGUMENT);
  EXPECT_DEATH(tencache_gpu_free(gpu_, static_cast<char*>(block) + 512), "freed");
}

// Opening fails because this machine has no driver, or because the runtime was not started.
TEST_F(GpuAbiTest, OpeningTellsWhyItCannot) {
  EXPECT_EQ(tencache_open_gpu(0, 1.0, &error_), nullptr);
  EXPECT_TRUE(error_.code == TENCACHE_UNAVAILABLE || error_.code == TENCACHE_FAILED_PRECONDITION)
      << error_.code;
  EXPECT_NE(std::string(error_.message), "");
}

TEST_F(GpuAbiTest, TheShareOfTheGpuBoundsTheBudget) {
  CudaDeviceConfig whole = config();
  whole.budget_bytes = 256 * kMiB;
  start(whole);
  EXPECT_EQ(tencache_gpu_set_fraction(gpu_, 0.5, &error_), TENCACHE_OK);
  EXPECT_EQ(gpu_->engine->budget().limit(), 128 * kMiB);
  EXPECT_EQ(tencache_gpu_set_fraction(gpu_, 1.5, &error_), TENCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("share"), std::string::npos) << error_.message;
  EXPECT_EQ(gpu_->engine->budget().limit(), 128 * kMiB);
}

}  // namespace
}  // namespace tencache
