// SPDX-License-Identifier: Apache-2.0
//
// The CUDA allocator through PyTorch's own interface, over the simulated driver: the contract of a
// DataPtr, streams, statistics, running out of memory, several GPUs, copies.
#include "cuda_allocator.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "cuda_allocator_fixture.h"
#include "cuda_settings.h"

namespace tencache::shim {
namespace {

using c10::CachingAllocator::StatType;

TEST_F(CudaAllocatorTest, ADataPtrIsItsOwnContext) {
  start();
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1000}, kExtent}) {
    const c10::DataPtr pointer = allocate(bytes);
    EXPECT_NE(pointer.get(), nullptr);
    EXPECT_EQ(pointer.get(), pointer.get_context());
    EXPECT_EQ(pointer.get_deleter(), cuda_->raw_deleter());
    EXPECT_EQ(pointer.device(), c10::Device(c10::kCUDA, 0));
    EXPECT_TRUE(cuda_->is_simple_data_ptr(pointer));
  }
  const c10::DataPtr empty = allocate(0);
  EXPECT_EQ(empty.get(), nullptr);
  EXPECT_EQ(empty.device(), c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(cuda_->raw_alloc(0), nullptr);
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), 0);

  void* raw = cuda_->raw_allocate(1000);
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), 1024);
  cuda_->raw_deallocate(raw);
  raw = cuda_->raw_alloc_with_stream(kExtent, make_stream());
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), static_cast<int64_t>(kExtent));
  cuda_->raw_delete(raw);
  cuda_->raw_delete(nullptr);
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), 0);
}

TEST_F(CudaAllocatorTest, NothingWorksBeforeInit) {
  start();
  CudaAllocator* const first = allocator_.get();
  EXPECT_TRUE(first->initialized());
  EXPECT_NE(text_of([&] { CudaAllocator second(test_calls(), nullptr); }).find("already"),
            std::string::npos);
  allocator_.reset();
  allocator_ = std::make_unique<CudaAllocator>(test_calls(), nullptr);
  EXPECT_FALSE(allocator_->initialized());
  EXPECT_NE(text_of([&] { (void)allocator_->allocate(1); }).find("did you call init?"),
            std::string::npos);
  EXPECT_EQ(allocator_->name(), "tencache");
  EXPECT_TRUE(allocator_->isEnabled());
  EXPECT_FALSE(allocator_->isHistoryEnabled());
}

TEST_F(CudaAllocatorTest, AGpuThatCannotBeOpenedSaysWhy) {
  start();
  driver_->fail("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(text_of([&] { (void)allocate(1); }).find("addresses"), std::string::npos);
  EXPECT_NE(allocate(1).get(), nullptr);  // the next one tries again
  EXPECT_NE(text_of([&] { (void)cuda_->getDeviceStats(1); }).find("Invalid device argument 1"),
            std::string::npos);
}

TEST_F(CudaAllocatorTest, AStreamHasItsMemoryAgainAndOthersWait) {
  start();
  CUstream other = make_stream();
  c10::DataPtr pointer = allocate(kExtent);
  void* const address = pointer.get();
  pointer.clear();
  pointer = allocate(kExtent);
  EXPECT_EQ(pointer.get(), address);
  cuda_->recordStream(pointer, as_torch(other));
  driver_->hold(other);
  pointer.clear();
  EXPECT_EQ(cuda_->getDeviceStats(0).active_bytes[0].current, static_cast<int64_t>(kExtent));
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), 0);
  EXPECT_NE(keep(kExtent), address);
  driver_->wait_until_idle();
  EXPECT_EQ(keep(kExtent), address);
}

// recordStream() passes over empty tensors and memory of another allocator, as PyTorch's own
// allocator does.
TEST_F(CudaAllocatorTest, RecordStreamLeavesWhatIsNotOurs) {
  start();
  int on_host = 0;
  cuda_->recordStream(allocate(0), as_torch(stream_));
  const c10::DataPtr foreign(
      &on_host, &on_host, [](void*) {}, c10::Device(c10::kCUDA, 0));
  cuda_->recordStream(foreign, as_torch(stream_));
  c10::DeviceAllocator* const general = cuda_;
  const c10::DataPtr own = allocate(kExtent);
  general->recordStream(own, as_torch(make_stream()).unwrap());
  EXPECT_NE(text_of([&] { cuda_->raw_delete(&on_host); }).find("invalid device pointer"),
            std::string::npos);
}

TEST_F(CudaAllocatorTest, StatisticsTellWhatHappened) {
  start();
  keep(1000);
  void* const large = keep(kExtent + 1);
  auto stats = cuda_->getDeviceStats(0);
  EXPECT_EQ(all(stats.allocation), 2);
  EXPECT_EQ(all(stats.allocated_bytes), static_cast<int64_t>(kExtent + 512 + 1024));
  EXPECT_EQ(all(stats.requested_bytes), static_cast<int64_t>(kExtent + 1 + 1000));
  EXPECT_EQ(stats.allocated_bytes[static_cast<size_t>(StatType::SMALL_POOL)].current, 1024);
  EXPECT_EQ(all(stats.reserved_bytes), static_cast<int64_t>(kExtent + 4 * kMiB));
  EXPECT_EQ(stats.reserved_bytes[1].current + stats.reserved_bytes[2].current,
            all(stats.reserved_bytes));
  EXPECT_EQ(all(stats.inactive_split_bytes),
            static_cast<int64_t>(2 * kMiB - 1024 + 2 * kMiB - 512));
  EXPECT_EQ(stats.num_device_alloc, 2);
  EXPECT_NE(large, nullptr);
  kept_.pop_back();
  stats = cuda_->getDeviceStats(0);
  EXPECT_EQ(all(stats.allocated_bytes), 1024);
  EXPECT_EQ(stats.allocated_bytes[0].peak, static_cast<int64_t>(kExtent + 512 + 1024));
  EXPECT_EQ(stats.active_bytes[0].peak, stats.allocated_bytes[0].peak);
  EXPECT_EQ(stats.allocation[0].freed, 1);
  EXPECT_EQ(all(stats.reserved_bytes), static_cast<int64_t>(kExtent + 4 * kMiB));
  cuda_->resetPeakStats(0);
  cuda_->resetAccumulatedStats(0);
  stats = cuda_->getDeviceStats(0);
  EXPECT_EQ(stats.allocated_bytes[0].peak, 1024);
  EXPECT_EQ(stats.active_bytes[0].peak, 1024);
  EXPECT_EQ(stats.allocation[0].allocated, 0);
  EXPECT_EQ(stats.num_device_alloc, 0);
}

// What each total counts as current, allocated and freed is the sum over both pools. Each pool has
// a peak of its own.
TEST_F(CudaAllocatorTest, FiguresByPoolAreCountedWhereMemoryComesAndGoes) {
  start();
  keep(kMiB);
  keep(30 * kMiB);
  kept_.clear();
  cuda_->emptyCache({0, 0});
  const auto stats = cuda_->getDeviceStats(0);
  constexpr auto kSmall = static_cast<size_t>(StatType::SMALL_POOL);
  constexpr auto kLarge = static_cast<size_t>(StatType::LARGE_POOL);
  for (const StatArray* figure : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.segment,
                                  &stats.active, &stats.inactive_split_bytes}) {
    EXPECT_EQ((*figure)[0].allocated, (*figure)[kSmall].allocated + (*figure)[kLarge].allocated);
    EXPECT_EQ((*figure)[0].freed, (*figure)[0].allocated);
    EXPECT_EQ((*figure)[kSmall].freed, (*figure)[kSmall].allocated);
    EXPECT_EQ((*figure)[0].current, 0);
  }
  EXPECT_EQ(stats.segment[kSmall].allocated, 1);
  EXPECT_EQ(stats.segment[kLarge].peak, 1);
  EXPECT_EQ(stats.reserved_bytes[kSmall].peak, static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(stats.reserved_bytes[kLarge].peak, static_cast<int64_t>(30 * kMiB));
  EXPECT_EQ(stats.inactive_split[kSmall].allocated, 1);
  EXPECT_EQ(stats.inactive_split_bytes[kSmall].peak, static_cast<int64_t>(kMiB));
  EXPECT_EQ(stats.num_sync_all_streams, 1);
}

TEST_F(CudaAllocatorTest, EmptyCacheGivesMemoryBack) {
  start();
  const size_t total = cuda_->getMemoryInfo(0).second;
  EXPECT_EQ(free_bytes(), total);
  { const c10::DataPtr first = allocate(kExtent), second = allocate(1000); }
  EXPECT_EQ(free_bytes(), total - kExtent - 2 * kMiB);
  size_t largest = 1;
  cuda_->cacheInfo(0, &largest);
  EXPECT_EQ(largest, kExtent);
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(free_bytes(), total);
  EXPECT_EQ(all(cuda_->getDeviceStats(0).reserved_bytes), 0);
  largest = 0;
  cuda_->cacheInfo(0, &largest);
  EXPECT_EQ(largest, total);
}

// The link is measured with memory that is not the program's.
TEST_F(CudaAllocatorTest, WhatMeasuredTheLinkIsInNoStatistics) {
  spill_to_host(64 * kMiB);
  config_.probe_bytes = 16 * kMiB;
  start();
  const size_t total = cuda_->getMemoryInfo(0).second;
  EXPECT_EQ(free_bytes(), total);
  keep(1000);
  keep(kExtent);
  constexpr auto kReserved = static_cast<int64_t>(kExtent + 2 * kMiB);
  auto reserved = cuda_->getDeviceStats(0).reserved_bytes[0];
  EXPECT_EQ(reserved.current, kReserved);
  EXPECT_EQ(reserved.peak, kReserved);
  int64_t in_segments = 0;
  for (const auto& segment : cuda_->snapshot({0, 0}, false).segments) {
    in_segments += static_cast<int64_t>(segment.total_size);
  }
  EXPECT_EQ(in_segments, kReserved);
  kept_.clear();
  cuda_->emptyCache({0, 0});
  reserved = cuda_->getDeviceStats(0).reserved_bytes[0];
  EXPECT_EQ(reserved.current, 0);
  EXPECT_EQ(reserved.allocated, kReserved);
  EXPECT_EQ(reserved.freed, kReserved);
  EXPECT_EQ(free_bytes(), total);
}

TEST_F(CudaAllocatorTest, BaseAllocationsAreFound) {
  start();
  char* const small = static_cast<char*>(keep(1000));
  char* const second = static_cast<char*>(keep(1000));
  char* const large = static_cast<char*>(keep(kExtent));
  size_t bytes = 0;
  EXPECT_EQ(cuda_->getBaseAllocation(second, &bytes), small);
  EXPECT_EQ(bytes, 2 * kMiB);
  EXPECT_EQ(cuda_->getBaseAllocation(large + 5, &bytes), large);
  EXPECT_EQ(bytes, kExtent);
  EXPECT_NE(text_of([&] { cuda_->getBaseAllocation(&bytes, nullptr); }).find("invalid device"),
            std::string::npos);
  EXPECT_TRUE(cuda_->getExpandableSegmentSizes(0).empty());
}

TEST_F(CudaAllocatorTest, OutOfMemoryIsToldInPyTorchsWords) {
  config_.heap.strict = true;
  start();
  std::vector<std::array<uint64_t, 4>> seen;
  cuda_->attachOutOfMemoryObserver(
      [&](int64_t device, size_t bytes, size_t total_bytes, size_t free_bytes) {
        seen.push_back({static_cast<uint64_t>(device), bytes, total_bytes, free_bytes});
      });
  keep(40 * kMiB);
  std::string text;
  try {
    (void)allocate(30 * kMiB);
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_EQ(seen.size(), 1u) << "observers come first";
    text = error.what_without_backtrace();
  }
  EXPECT_EQ(text.find("CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity "
                      "of 256.00 MiB of which 216.00 MiB is free. Of the allocated memory 40.00 "
                      "MiB is allocated by PyTorch"),
            0u)
      << text;
  EXPECT_NE(text.find("--strict"), std::string::npos) << text;
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0], (std::array<uint64_t, 4>{0, 30 * kMiB, 256 * kMiB, 216 * kMiB}));
  EXPECT_EQ(cuda_->getDeviceStats(0).num_ooms, 1);
  EXPECT_THROW((void)allocate(uint64_t{1} << 61), c10::OutOfMemoryError);
  EXPECT_NE(text_of([&] { (void)allocate(uint64_t{1} << 61); }).find("more than 1EB"),
            std::string::npos);
  // The failure leaves everything usable.
  EXPECT_NE(keep(20 * kMiB), nullptr);
}

TEST_F(CudaAllocatorTest, AMemoryFractionBoundsTheBudget) {
  config_.budget_bytes = 256 * kMiB;  // all the memory there is
  config_.heap.strict = true;
  start();
  EXPECT_EQ(cuda_->getMemoryFraction(0), 1.0);
  EXPECT_NE(text_of([&] { cuda_->setMemoryFraction(1.5, 0); }).find("invalid fraction"),
            std::string::npos);
  cuda_->setMemoryFraction(0.25, 0);
  keep(60 * kMiB);
  EXPECT_THROW((void)allocate(8 * kMiB), c10::OutOfMemoryError);
  // The fraction may change while the GPU is in use.
  cuda_->setMemoryFraction(0.5, 0);
  EXPECT_EQ(cuda_->getMemoryFraction(0), 0.5);
  keep(8 * kMiB);
  cuda_->setMemoryFraction(0.0, 0);
  EXPECT_THROW((void)allocate(8 * kMiB), c10::OutOfMemoryError);
  cuda_->setMemoryFraction(1.0, 0);
  keep(8 * kMiB);
}

TEST_F(CudaAllocatorTest, WhatALowerFractionDoesNotHoldLeavesTheGpu) {
  config_.budget_bytes = 256 * kMiB;  // all the memory there is
  spill_to_host(256 * kMiB);
  engine_config_.arm_at = 0;
  start();
  for (int index = 0; index < 12; ++index) op(keep(kExtent));
  tencache_gpu_stats core;
  tencache_gpu_get_stats(gpus_[0], &core);
  EXPECT_EQ(core.cold_bytes, 0u);
  cuda_->setMemoryFraction(4.0 * kExtent / static_cast<double>(cuda_->getMemoryInfo(0).second), 0);
  op(keep(kExtent));
  EXPECT_LE(all(cuda_->getDeviceStats(0).reserved_bytes), static_cast<int64_t>(4 * kExtent));
  EXPECT_THROW((void)allocate(5 * kExtent), c10::OutOfMemoryError);
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), static_cast<int64_t>(13 * kExtent));
}

TEST_F(CudaAllocatorTest, EachGpuHasItsOwnMemory) {
  start(2);
  keep(kExtent);
  g_current.device = 1;
  g_current.stream = make_stream(1);
  const c10::DataPtr other = allocate(1000);
  EXPECT_EQ(other.device(), c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), static_cast<int64_t>(kExtent));
  EXPECT_EQ(all(cuda_->getDeviceStats(1).allocated_bytes), 1024);
  g_current.device = 0;  // the GPU of kept_
  kept_.clear();
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), 0);
  const auto snapshot = cuda_->snapshot({0, 0}, true);
  EXPECT_EQ(snapshot.device_traces.size(), 2u);
  ASSERT_EQ(snapshot.segments.size(), 2u);
  EXPECT_EQ(snapshot.segments[1].device, 1);
}

TEST_F(CudaAllocatorTest, CopiesGoTheWayThatWorks) {
  start();
  char* const source = static_cast<char*>(keep(kExtent));
  char* const target = static_cast<char*>(keep(kExtent));
  source[7] = 42;
  EXPECT_EQ(cuda_->memcpyAsync(target, 0, source, 0, kExtent, stream_, true), cudaSuccess);
  driver_->wait_until_idle();
  EXPECT_EQ(target[7], 42);
  EXPECT_EQ(g_current.peer_copy_count, 0);
  EXPECT_EQ(cuda_->memcpyAsync(target, 1, source, 0, kExtent, stream_, true), cudaSuccess);
  EXPECT_EQ(g_current.peer_copy_count, 0) << "peers have each other's memory mapped";
  EXPECT_EQ(cuda_->memcpyAsync(target, 1, source, 0, kExtent, stream_, false), cudaSuccess);
  EXPECT_EQ(g_current.peer_copy_count, 1);
  source[8] = 43;
  cuda_->copy_data(target, source, kExtent);
  EXPECT_EQ(target[8], 43);
  const c10::DataPtr clone = cuda_->clone(source, kExtent);
  EXPECT_EQ(static_cast<char*>(clone.get())[8], 43);
}

TEST(CudaSettings, WhatHasNoEffectIsNamedWithItsReason) {
  EXPECT_EQ(ignored_settings("", false), "");
  EXPECT_EQ(ignored_settings("per_process_memory_fraction:0.5,expandable_segments:False", false),
            "");
  const std::string text = ignored_settings(
      "max_split_size_mb:20,roundup_power2_divisions:[256:1,>:4],pinned_num_register_threads:8,"
      "new_option:1",
      true);
  for (const char* part :
       {"max_split_size_mb (", "roundup_power2_divisions (", "pinned_num_register_threads (",
        "new_option (tencache does not know", "PYTORCH_NO_CUDA_MEMORY_CACHING ("}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_EQ(text.find("256"), std::string::npos) << text;
}

}  // namespace
}  // namespace tencache::shim
