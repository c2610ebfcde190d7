// SPDX-License-Identifier: Apache-2.0
//
// The allocator of pinned memory through PyTorch's own interface, over the simulated driver: the
// contract of a DataPtr, streams, memory of the allocator before it, private pools, statistics.
#include "pinned_allocator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/cuda/open_pinned.h"
#include "cuda_allocator_fixture.h"
#include "cuda_doors.h"

namespace tencache::shim {
namespace {

constexpr uint64_t kBudget = 256 * kKiB;

// The allocator that was installed before. It notes the calls that a test asks about.
class PreviousAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
  bool record_event(void* address, void* context, c10::Stream) override {
    recorded.push_back({address, context});
    return address == &own;
  }
  void empty_cache() override { ++empty_count; }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  void end_allocate_to_pool(c10::MempoolId_t id) override { ended.push_back(id); }
  void release_pool(c10::MempoolId_t id) override { released.push_back(id); }

  char own = 0;
  std::vector<std::pair<void*, void*>> recorded;
  std::vector<c10::MempoolId_t> ended;
  std::vector<c10::MempoolId_t> released;
  int empty_count = 0;
};

class PinnedAllocatorTest : public ::testing::Test {
 protected:
  ~PinnedAllocatorTest() override {
    kept_.clear();
    if (!driver_) return;
    driver_->wait_until_idle();
    allocator_.reset();
    for (const CUstream stream : streams_) driver_->api().cuStreamDestroy(stream);
    context_.reset();
    EXPECT_EQ(driver_->leaks(), "");
  }
  void start(at::HostAllocator* previous = nullptr, const SimulatedDriverConfig& driver = {}) {
    driver_.emplace(driver);
    context_.emplace(driver_->api());
    g_current = {};
    g_current.driver = &*driver_;
    CudaCalls calls = test_calls();
    calls.current_torch_stream = [](c10::DeviceIndex) {
      return as_torch(reinterpret_cast<CUstream>(g_current.stream)).unwrap();
    };
    allocator_ = std::make_unique<PinnedAllocator>(
        calls,
        [this](int ordinal, tencache_error* error) -> tencache_pinned* {
          ++open_count_;
          if (is_refused_) {
            report({StatusCode::kUnavailable, "There is no GPU today."}, error);
            return nullptr;
          }
          PinnedMemoryConfig config;
          config.ordinal = ordinal;
          config.host.budget_bytes = kBudget;
          Result<tencache_pinned*> made = open_pinned(driver_->api(), std::move(config));
          if (made.is_ok()) return made.value();
          report(made.status(), error);
          return nullptr;
        },
        previous);
    host_ = allocator_.get();
    stream_ = make_stream();
    g_current.stream = stream_;
  }
  CUstream make_stream() {
    CUstream stream = nullptr;
    EXPECT_EQ(driver_->api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    return streams_.emplace_back(stream);
  }
  c10::DataPtr allocate(uint64_t bytes) { return host_->allocate(bytes); }
  // Records a use on the current stream, as a non_blocking copy does, with the storage's context.
  bool record(void* address, void* context) {
    return host_->record_event(address, context, as_torch(stream_).unwrap());
  }
  bool is_pinned(void* address) {
    CUdeviceptr found = 0;
    return driver_->api().cuMemHostGetDevicePointer(&found, address, 0) == CUDA_SUCCESS;
  }

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;
  std::unique_ptr<PinnedAllocator> allocator_;
  at::HostAllocator* host_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUstream> streams_;
  std::vector<c10::DataPtr> kept_;
  bool is_refused_ = false;
  int open_count_ = 0;
};

TEST_F(PinnedAllocatorTest, ADataPtrIsItsOwnContext) {
  start();
  EXPECT_EQ(host_->get_stats().allocated_bytes.current, 0) << "nothing is opened by asking";
  EXPECT_EQ(open_count_, 0);
  for (const uint64_t bytes : {1, 1000, 33 * 1024}) {
    const c10::DataPtr pointer = allocate(bytes);
    EXPECT_EQ(pointer.get(), pointer.get_context());
    EXPECT_EQ(pointer.get_deleter(), host_->raw_deleter());
    EXPECT_NE(host_->raw_deleter(), nullptr);
    EXPECT_EQ(pointer.device(), c10::Device(c10::kCPU));
    EXPECT_TRUE(host_->is_simple_data_ptr(pointer));
    EXPECT_TRUE(is_pinned(static_cast<char*>(pointer.get()) + bytes - 1));
  }
  EXPECT_EQ(open_count_, 1);
  const c10::DataPtr empty = allocate(0);
  EXPECT_EQ(empty.get(), nullptr);
  EXPECT_EQ(empty.device(), c10::Device(c10::kCPU));
  void* raw = host_->raw_allocate(1000);
  EXPECT_EQ(host_->get_stats().active_bytes.current, 1000);
  host_->raw_deallocate(raw);
  EXPECT_EQ(host_->get_stats().active_bytes.current, 0);
  const char text[] = "the same bytes";
  const c10::DataPtr copy = host_->clone(text, sizeof text);
  EXPECT_STREQ(static_cast<const char*>(copy.get()), text);
}

TEST_F(PinnedAllocatorTest, PyTorchTakesItForTheOneBefore) {
  PreviousAllocator previous;
  at::setHostAllocator(at::kCUDA, &previous);
  start(present_pinned_allocator());
  install_pinned_door(*allocator_);
  EXPECT_EQ(at::getHostAllocator(at::kCUDA), host_);
  EXPECT_EQ(present_pinned_allocator(), host_);
  kept_.push_back(at::getHostAllocator(at::kCUDA)->allocate(100));
  EXPECT_TRUE(is_pinned(kept_.back().get()));
  kept_.clear();
  EXPECT_TRUE(at::getHostAllocator(at::kCUDA)->record_event(&previous.own, nullptr,
                                                            as_torch(stream_).unwrap()));
  at::setHostAllocator(at::kCUDA, nullptr, 255);  // PyTorch must not keep an allocator that is gone
}

TEST_F(PinnedAllocatorTest, AFreedBlockWaitsForRecordedStreams) {
  start();
  c10::DataPtr pointer = allocate(kBudget / 2);
  char* const address = static_cast<char*>(pointer.get());
  driver_->hold(stream_);
  // The address lies within the block, like a view's, and the context is no block's: the address
  // decides.
  EXPECT_TRUE(record(address + 1000, &open_count_));
  pointer.clear();
  EXPECT_EQ(host_->get_stats().active_bytes.current, static_cast<int64_t>(kBudget / 2));
  kept_.push_back(allocate(kBudget / 2));
  EXPECT_NE(kept_.back().get(), address);
  driver_->wait_until_idle();
  host_->empty_cache();
  EXPECT_EQ(host_->get_stats().active_bytes.current, static_cast<int64_t>(kBudget / 2));
  kept_.push_back(allocate(kBudget / 2));
  EXPECT_EQ(kept_.back().get(), address);
}

TEST_F(PinnedAllocatorTest, WhatConcernsTheAllocatorBeforeReachesIt) {
  PreviousAllocator previous;
  start(&previous);
  EXPECT_TRUE(record(&previous.own, nullptr)) << "before ours was used at all";
  kept_.push_back(allocate(100));
  EXPECT_TRUE(record(kept_[0].get(), kept_[0].get_context()));
  EXPECT_EQ(previous.recorded.size(), 1u) << "ours does not concern it";
  EXPECT_TRUE(record(&previous.own, &previous));
  EXPECT_EQ(previous.recorded.back(), (std::pair<void*, void*>(&previous.own, &previous)));
  char foreign = 0;
  EXPECT_FALSE(record(&foreign, nullptr));
  EXPECT_FALSE(record(nullptr, nullptr));
  host_->empty_cache();
  EXPECT_EQ(previous.empty_count, 1);
  host_->end_allocate_to_pool({3, 0});
  host_->release_pool({3, 0});
  EXPECT_EQ(previous.ended, std::vector<c10::MempoolId_t>({{3, 0}}));
  EXPECT_EQ(previous.released, std::vector<c10::MempoolId_t>({{3, 0}}));
}

TEST_F(PinnedAllocatorTest, OutOfMemoryIsAnOutOfMemoryError) {
  start();
  kept_.push_back(allocate(kBudget));
  try {
    (void)allocate(1);
    FAIL() << "the budget is exceeded";
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find(" out of memory."), std::string::npos) << text;
    EXPECT_NE(text.find("budget of 256 KiB"), std::string::npos) << text;
  }
  kept_.clear();
  EXPECT_NE(allocate(1).get(), nullptr);
}

TEST_F(PinnedAllocatorTest, MemoryThatCannotBeOpenedSaysWhy) {
  start();
  is_refused_ = true;
  EXPECT_NE(text_of([&] { (void)allocate(1); }).find("There is no GPU today."), std::string::npos);
  is_refused_ = false;
  EXPECT_NE(allocate(1).get(), nullptr) << "the next one tries again";
  const c10::DataPtr pointer = allocate(1);
  const c10::Stream other(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 5), 0);
  EXPECT_NE(text_of([&] { (void)host_->record_event(pointer.get(), nullptr, other); }), "")
      << "a stream that cannot be waited for is no stream to forget";
}

TEST_F(PinnedAllocatorTest, ThereIsOneAtATime) {
  start();
  EXPECT_NE(text_of([] { PinnedAllocator second(test_calls(), nullptr, nullptr); }).find("already"),
            std::string::npos);
}

TEST_F(PinnedAllocatorTest, WhatIsNotPinnedIsGivenAndSaysSo) {
  start(nullptr, {.registered_bytes_max = 0});
  const c10::DataPtr pointer = allocate(1000);
  ASSERT_NE(pointer.get(), nullptr);
  memset(pointer.get(), 1, 1000);
  EXPECT_FALSE(is_pinned(pointer.get()));
}

// A capture takes memory of its pool only on its own stream. Memory that the capture freed stays
// for the graph's replays.
TEST_F(PinnedAllocatorTest, APoolKeepsWhatItsGraphUsed) {
  start();
  const Id graph = {1, 0};
  CUstream outside = make_stream();
  host_->begin_allocate_to_pool(
      graph, [this](c10::Stream stream) { return stream == as_torch(stream_).unwrap(); });
  EXPECT_NE(text_of([&] { host_->begin_allocate_to_pool(graph, nullptr); }).find("already"),
            std::string::npos);
  void* const of_graph = allocate(kBudget / 2).get();  // freed at once
  g_current.stream = outside;
  void* const of_nobody = allocate(kBudget / 4).get();
  EXPECT_EQ(allocate(kBudget / 4).get(), of_nobody);
  g_current.stream = stream_;
  host_->end_allocate_to_pool(graph);
  EXPECT_NE(text_of([&] { host_->end_allocate_to_pool(graph); }).find("not currently recording"),
            std::string::npos);
  EXPECT_NE(text_of([&] { (void)allocate(kBudget); }).find("CUDA graphs keep another 128 KiB"),
            std::string::npos);
  EXPECT_EQ(g_current.synchronize_count, 0);
  // Once the pool is released, its memory is available when memory is short, after a wait for the
  // device.
  host_->release_pool(graph);
  EXPECT_EQ(allocate(kBudget).get(), of_graph);
  EXPECT_EQ(g_current.synchronize_count, 1);
  EXPECT_NE(text_of([&] { host_->release_pool(graph); }).find("no private pool (1, 0)"),
            std::string::npos);
}

TEST_F(PinnedAllocatorTest, APoolOfTwoGraphsIsReleasedByBoth) {
  start();
  const Id shared = {0, 7};
  const auto everything = [](c10::Stream) { return true; };
  for (int graph = 0; graph < 2; ++graph) {
    host_->begin_allocate_to_pool(shared, everything);
    (void)allocate(4096);
    // While a graph may be captured, nobody waits for the device.
    host_->empty_cache();
    host_->end_allocate_to_pool(shared);
  }
  host_->release_pool(shared);
  host_->empty_cache();
  EXPECT_EQ(g_current.synchronize_count, 0);
  host_->release_pool(shared);
  host_->empty_cache();
  EXPECT_EQ(g_current.synchronize_count, 1);
}

TEST_F(PinnedAllocatorTest, PoolsStayWhereTheDeviceCannotBeWaitedFor) {
  start();
  for (const Id& graph : {Id{1, 0}, Id{2, 0}}) {
    host_->begin_allocate_to_pool(graph, [](c10::Stream) { return true; });
    (void)allocate(kBudget / 2);
    host_->end_allocate_to_pool(graph);
    host_->release_pool(graph);
  }
  g_current.on_synchronize = [] { TORCH_CHECK(false, "the device is broken"); };
  EXPECT_EQ(text_of([&] { host_->empty_cache(); }), "the device is broken");
  g_current.on_synchronize = nullptr;
  kept_.push_back(allocate(kBudget));  // the memory of both
}

TEST_F(PinnedAllocatorTest, StatisticsTellExactBytes) {
  start();
  kept_.push_back(allocate(33 * kKiB));
  {
    const c10::DataPtr second = allocate(1000);
    const at::HostStats stats = host_->get_stats();
    EXPECT_EQ(stats.active_requests.current, 2);
    EXPECT_EQ(stats.active_bytes.current, static_cast<int64_t>(33 * kKiB + 1000));
  }
  at::HostStats stats = host_->get_stats();
  EXPECT_EQ(stats.active_requests.current, 1);
  EXPECT_EQ(stats.active_requests.peak, 2);
  EXPECT_EQ(stats.active_requests.allocated, 2);
  EXPECT_EQ(stats.active_requests.freed, 1);
  EXPECT_EQ(stats.active_bytes.peak, static_cast<int64_t>(33 * kKiB + 1000));
  EXPECT_EQ(stats.num_host_alloc, 1) << "both lie in one piece";
  EXPECT_EQ(stats.num_host_free, 0);
  EXPECT_EQ(stats.allocations.current, 1);
  EXPECT_LE(stats.allocated_bytes.current, static_cast<int64_t>(kBudget));
  EXPECT_EQ(stats.allocated_bytes.allocated, stats.allocated_bytes.current);
  EXPECT_EQ(stats.host_alloc_time.count, 1);
  int64_t bucket_sum = 0;
  for (const int64_t count : stats.bucket_allocation) bucket_sum += count;
  EXPECT_EQ(bucket_sum, 1);
  EXPECT_EQ(stats.bucket_allocation[18], 1) << "of up to 256 KiB";
  host_->reset_accumulated_stats();
  host_->reset_peak_stats();
  stats = host_->get_stats();
  EXPECT_EQ(stats.active_requests.allocated, 0);
  EXPECT_EQ(stats.active_requests.peak, 1);
  EXPECT_EQ(stats.num_host_alloc, 0);
  EXPECT_EQ(stats.allocations.current, 1);
}

#if TENCACHE_TORCH_SINCE(14)
TEST_F(PinnedAllocatorTest, SegmentsAreItsBlocks) {
  start();
  EXPECT_TRUE(host_->get_segments().empty());
  kept_.push_back(allocate(100));
  c10::DataPtr waiting = allocate(200);
  driver_->hold(stream_);
  EXPECT_TRUE(record(waiting.get(), waiting.get_context()));
  waiting.clear();
  host_->begin_allocate_to_pool({1, 0}, [](c10::Stream) { return true; });
  kept_.push_back(allocate(300));
  host_->end_allocate_to_pool({1, 0});
  const std::vector<at::HostSegmentInfo> segments = host_->get_segments();
  std::map<size_t, at::HostSegmentInfo> by_size;
  for (const at::HostSegmentInfo& segment : segments) by_size[segment.size] = segment;
  ASSERT_EQ(by_size.size(), 3u);
  EXPECT_EQ(by_size[100].address, reinterpret_cast<size_t>(kept_[0].get()));
  EXPECT_TRUE(by_size[100].allocated);
  EXPECT_FALSE(by_size[200].allocated);
  EXPECT_TRUE(by_size[200].active);
  EXPECT_EQ(by_size[300].owner_private_pool_id, Id(1, 0));
  host_->release_pool({1, 0});
  EXPECT_FALSE(host_->is_history_enabled());
  host_->record_history(false, nullptr, 0, {}, false);
  EXPECT_NE(text_of([&] {
              host_->record_history(true, nullptr, 0, {}, false);
            }).find("tencache does not support"),
            std::string::npos);
}
#endif

}  // namespace
}  // namespace tencache::shim
