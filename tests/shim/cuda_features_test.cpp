// SPDX-License-Identifier: Apache-2.0
//
// Private pools, snapshots that agree with the statistics, and an honest error for every
// unsupported feature, through PyTorch's own interface. With TENCACHE_SNAPSHOT_FILE set, the suite
// writes a snapshot to that file, as the dictionary that torch.cuda.memory._snapshot() makes, and
// its sums.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cuda_allocator_fixture.h"

namespace tencache::shim {
namespace {

using Json = nlohmann::json;

// A guard that sets a variable of the environment for as long as it lives.
class VariableGuard {
 public:
  VariableGuard(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~VariableGuard() { unsetenv(name_); }
  VariableGuard(const VariableGuard&) = delete;
  VariableGuard& operator=(const VariableGuard&) = delete;

 private:
  const char* const name_;
};

TEST_F(CudaPoolTest, WhatAGraphAllocatesIsItsOwn) {
  start();
  CUstream other = make_stream();
  allocate(kExtent).clear();
  EXPECT_FALSE(gpus_[0]->engine->evictor().is_armed());
  begin();
  EXPECT_TRUE(gpus_[0]->engine->evictor().is_armed()) << "nobody could tell later what it names";
  c10::DataPtr graph = allocate(kExtent);
  void* const address = graph.get();
  g_current.stream = other;  // not the one that captures
  void* const common = keep(kExtent);
  g_current.stream = stream_;
  EXPECT_EQ(pool_of(address), kGraph);
  EXPECT_EQ(pool_of(common), (Id{0, 0}));
  EXPECT_TRUE(cuda_->checkPoolLiveAllocations(0, kGraph, {address}));
  EXPECT_FALSE(cuda_->checkPoolLiveAllocations(0, kGraph, {}));
  graph.clear();
  EXPECT_TRUE(cuda_->checkPoolLiveAllocations(0, kGraph, {}));
  graph = allocate(kExtent);
  EXPECT_EQ(graph.get(), address) << "the graph uses its own memory again";
  graph.clear();
  end();
  EXPECT_NE(keep(kExtent), address) << "nobody else does";
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(pool_of(address), kGraph);
  EXPECT_EQ(cuda_->snapshot(kGraph, false).segments.size(), 1u);
  cuda_->releasePool(0, kGraph);
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(g_current.synchronize_count, 1);
  EXPECT_EQ(cuda_->snapshot(kGraph, false).segments.size(), 0u);
}

// As with PyTorch's own allocator, a request of 10 MiB or more has a segment to itself.
TEST_F(CudaPoolTest, LargeBuffersOfAGraphTakeNoMoreThanTheirSegments) {
  start();
  begin();
  for (int count = 0; count < 3; ++count) keep(11 * kMiB);
  end();
  EXPECT_EQ(all(cuda_->getDeviceStats(0).reserved_bytes), static_cast<int64_t>(36 * kMiB));
  uint64_t pool_bytes = 0;
  for (const auto& segment : cuda_->snapshot(kGraph, false).segments) {
    pool_bytes += segment.total_size;
  }
  EXPECT_EQ(pool_bytes, 36 * kMiB);
}

TEST_F(CudaPoolTest, AReleasedPoolKeepsWhatIsAlive) {
  start();
  begin();
  c10::DataPtr output = allocate(kExtent);
  end();
  cuda_->releasePool(0, kGraph);
  cuda_->emptyCache(kGraph);
  EXPECT_EQ(pool_of(output.get()), kGraph);
  output.clear();
  cuda_->emptyCache(kGraph);
  EXPECT_TRUE(cuda_->snapshot(kGraph, false).segments.empty());
  EXPECT_EQ(free_bytes(), cuda_->getMemoryInfo(0).second);
}

// The device must not be waited for while a graph is captured.
TEST_F(CudaPoolTest, NothingIsDroppedDuringACapture) {
  start();
  begin();
  allocate(kExtent).clear();
  end();
  cuda_->releasePool(0, kGraph);
  begin({2, 0});
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(g_current.synchronize_count, 0);
  EXPECT_EQ(cuda_->snapshot(kGraph, false).segments.size(), 1u);
  end({2, 0});
  cuda_->releasePool(0, {2, 0});
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(g_current.synchronize_count, 1);
  EXPECT_TRUE(cuda_->snapshot({0, 0}, false).segments.empty());
}

// A graph that is released while another thread waits for the device may have been replayed after
// that wait began.
TEST_F(CudaPoolTest, WhatIsReleasedWhileTheDeviceIsWaitedForStays) {
  start();
  constexpr Id kOther = {2, 0};
  for (const Id& id : {kGraph, kOther}) {
    begin(id);
    allocate(kExtent).clear();
    end(id);
  }
  cuda_->releasePool(0, kGraph);
  g_current.on_synchronize = [&] { cuda_->releasePool(0, kOther); };
  cuda_->emptyCache({0, 0});
  g_current.on_synchronize = nullptr;
  EXPECT_TRUE(cuda_->snapshot(kGraph, false).segments.empty());
  EXPECT_EQ(cuda_->snapshot(kOther, false).segments.size(), 1u);
  cuda_->emptyCache({0, 0});
  EXPECT_TRUE(cuda_->snapshot(kOther, false).segments.empty());
  EXPECT_EQ(g_current.synchronize_count, 2);
}

TEST_F(CudaPoolTest, APoolStaysWhereTheDeviceCannotBeWaitedFor) {
  start();
  begin();
  allocate(kExtent).clear();
  end();
  cuda_->releasePool(0, kGraph);
  g_current.on_synchronize = [] { TORCH_CHECK(false, "the device is broken"); };
  EXPECT_EQ(text_of([&] { cuda_->emptyCache({0, 0}); }), "the device is broken");
  g_current.on_synchronize = nullptr;
  EXPECT_EQ(cuda_->snapshot(kGraph, false).segments.size(), 1u);
  begin();  // the pool may have users again
  end();
  cuda_->releasePool(0, kGraph);
}

// While the device is waited for, another thread could queue a use of the live memory and free it
// right afterwards.
TEST_F(CudaPoolTest, AReleasedPoolWithLiveMemoryStaysAsAWhole) {
  start();
  begin();
  allocate(kExtent).clear();
  c10::DataPtr output = allocate(2 * kExtent);
  end();
  cuda_->releasePool(0, kGraph);
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(g_current.synchronize_count, 0);
  EXPECT_EQ(cuda_->snapshot(kGraph, false).segments.size(), 2u);
  output.clear();
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(g_current.synchronize_count, 1);
  EXPECT_TRUE(cuda_->snapshot(kGraph, false).segments.empty());
}

TEST_F(CudaPoolTest, ReleasedPoolsServeWhoRunsOutOfMemory) {
  config_.heap.strict = true;
  start();
  begin();
  allocate(40 * kMiB).clear();
  end();
  EXPECT_THROW((void)allocate(40 * kMiB), c10::OutOfMemoryError);
  cuda_->releasePool(0, kGraph);
  EXPECT_NE(keep(40 * kMiB), nullptr);
  EXPECT_EQ(cuda_->getDeviceStats(0).num_alloc_retries, 2) << "the one that failed, and this one";
}

// NCCL registers the memory of pools, and must know when that memory goes. Other memory may move,
// also to make room for a pool.
TEST_F(CudaPoolTest, TrackersHearOfTheSegmentsOfPools) {
  start();
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  std::vector<Entry> heard;
  cuda_->attachAllocatorTraceTracker([&](const Entry& entry) { heard.push_back(entry); });
  for (int count = 0; count < 14; ++count) keep(kExtent);
  kept_.clear();
  driver_->wait_until_idle();
  const uint64_t unmapped = driver_->calls("cuMemUnmap");
  begin();
  c10::DataPtr first = allocate(11 * kMiB);
  const auto address = reinterpret_cast<size_t>(first.get());
  end();
  EXPECT_GT(driver_->calls("cuMemUnmap"), unmapped) << "cached memory made room";
  keep(kExtent);
  keep(1000);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].action_, Entry::SEGMENT_ALLOC);
  first.clear();
  cuda_->emptyCache({0, 0});
  EXPECT_EQ(heard.size(), 1u) << "the pool keeps its memory";
  cuda_->releasePool(0, kGraph);
  cuda_->emptyCache({0, 0});
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[1].action_, Entry::SEGMENT_FREE);
  for (const Entry& entry : heard) {
    EXPECT_EQ(entry.device_, 0);
    EXPECT_EQ(entry.addr_, address);
    EXPECT_EQ(entry.size_, 12 * kMiB);
    EXPECT_EQ(entry.mempool_, kGraph);
  }
}

// NCCL may refuse to register memory. Whoever asked for the memory gets that error, as with
// PyTorch's own allocator.
TEST_F(CudaPoolTest, ATrackerThatThrowsLeavesThePoolWhole) {
  start();
  bool throws = true;
  cuda_->attachAllocatorTraceTracker([&](const c10::CachingDeviceAllocator::TraceEntry&) {
    TORCH_CHECK(!throws, "not registered");
  });
  begin();
  EXPECT_EQ(text_of([&] { (void)allocate(11 * kMiB); }), "not registered");
  EXPECT_TRUE(cuda_->checkPoolLiveAllocations(0, kGraph, {}));
  throws = false;
  EXPECT_EQ(pool_of(allocate(11 * kMiB).get()), kGraph);
  EXPECT_EQ(cuda_->snapshot(kGraph, false).segments.size(), 1u) << "the same memory serves now";
  end();
  cuda_->releasePool(0, kGraph);
  throws = true;
  EXPECT_EQ(text_of([&] { cuda_->emptyCache({0, 0}); }), "not registered");
  EXPECT_EQ(g_current.synchronize_count, 1) << "nobody is about to allocate in it";
  EXPECT_TRUE(cuda_->snapshot(kGraph, false).segments.empty());
}

TEST_F(CudaPoolTest, PoolsCountTheirUsers) {
  start();
  EXPECT_NE(text_of([&] { cuda_->releasePool(0, kGraph); }).find("no private pool (1, 0)"),
            std::string::npos);
  cuda_->createOrIncrefPool(0, kGraph, nullptr);
  begin();
  EXPECT_EQ(cuda_->getPoolUseCount(0, kGraph), 2);
  EXPECT_NE(text_of([&] { begin(); }).find("already recording"), std::string::npos);
  begin({2, 0});
  const c10::DataPtr inner = allocate(1000);
  EXPECT_EQ(pool_of(inner.get()), (Id{2, 0})) << "the innermost has it";
  end({2, 0});
  end();
  EXPECT_NE(text_of([&] { end(); }).find("not currently recording"), std::string::npos);
  cuda_->releasePool(0, kGraph);
  cuda_->releasePool(0, kGraph);
  EXPECT_NE(text_of([&] { cuda_->releasePool(0, kGraph); }).find("released already"),
            std::string::npos);
  EXPECT_NE(text_of([&] { begin({0, 0}); }).find("not a private pool"), std::string::npos);
  cuda_->releasePool(0, {2, 0});
  cuda_->createOrIncrefPool(0, {2, 0}, nullptr);  // in use again, with its live blocks
  EXPECT_EQ(cuda_->getPoolUseCount(0, {2, 0}), 1);
  EXPECT_TRUE(cuda_->checkPoolLiveAllocations(0, {2, 0}, {inner.get()}));
  cuda_->setUseOnOOM(0, {2, 0}, false);
  cuda_->releasePool(0, {2, 0});
}

// A tree of CUDA graphs sets its pool back to an earlier state before it captures one more graph.
TEST_F(CudaPoolTest, APoolGoesBackToAnEarlierState) {
  start();
  begin();
  c10::DataPtr output = allocate(kExtent);
  c10::DataPtr dead = allocate(1000);
  void* const address = output.get();
  void* const dead_address = dead.get();
  const auto state = cuda_->getCheckpointState(0, kGraph);
  // The tensors of the earlier state go, and one comes that the earlier state does not have.
  output.clear();
  dead.clear();
  c10::DataPtr stale = allocate(2 * kExtent);
  void* const stale_address = stale.release_context();
  cuda_->recordHistory(true, nullptr, 100, c10::CachingDeviceAllocator::RecordContext::NEVER, true,
                       {});
  auto delta = cuda_->setCheckpointPoolState(0, state);
  EXPECT_EQ(delta.ptrs_freed, std::vector<void*>{stale_address});
  ASSERT_EQ(delta.dataptrs_allocd.size(), 2u);
  EXPECT_TRUE(cuda_->checkPoolLiveAllocations(0, kGraph, {address, dead_address}));
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  std::vector<Entry::Action> actions;
  const auto snapshot = cuda_->snapshot(kGraph, true);
  for (const Entry& entry : snapshot.device_traces[0]) actions.push_back(entry.action_);
  const std::vector<Entry::Action> expected = {Entry::FREE_REQUESTED, Entry::FREE_COMPLETED,
                                               Entry::ALLOC, Entry::ALLOC};
  EXPECT_EQ(actions, expected);
  cuda_->recordHistory(false, nullptr, 0, c10::CachingDeviceAllocator::RecordContext::NEVER, true,
                       {});
  for (c10::DataPtr& pointer : delta.dataptrs_allocd) {
    EXPECT_EQ(pointer.get_deleter(), cuda_->raw_deleter());
    pointer.clear();
  }
  EXPECT_TRUE(cuda_->checkPoolLiveAllocations(0, kGraph, {}));
  EXPECT_EQ(all(cuda_->getDeviceStats(0).allocated_bytes), 0);
  end();
  cuda_->releasePool(0, kGraph);
}

TEST_F(CudaPoolTest, WhyAPoolCannotGoBackIsSaid) {
  start();
  begin();
  end();
  const auto state = cuda_->getCheckpointState(0, kGraph);
  const auto foreign = std::make_shared<cuda_api::AllocatorState>();
  const auto set = [&](const std::shared_ptr<cuda_api::AllocatorState>& to) {
    return text_of([&] { (void)cuda_->setCheckpointPoolState(0, to); });
  };
  EXPECT_NE(set(foreign).find("not made by tencache"), std::string::npos);
  EXPECT_NE(set(nullptr).find("not made by tencache"), std::string::npos);
  cuda_->releasePool(0, kGraph);
  EXPECT_NE(set(state).find("was released"), std::string::npos);
  const std::string text = text_of([&] { (void)cuda_->getCheckpointState(0, kGraph); });
  EXPECT_NE(text.find("was released"), std::string::npos);
}

// ---- Snapshots --------------------------------------------------------------------------------

Json as_json(const c10::cuda::CUDACachingAllocator::SnapshotInfo& snapshot) {
  Json segments = Json::array();
  for (const auto& segment : snapshot.segments) {
    Json blocks = Json::array();
    size_t address = segment.address;
    for (const auto& block : segment.blocks) {
      const char* const state = block.allocated ? "active_allocated"
                                : block.active  ? "active_pending_free"
                                                : "inactive";
      blocks.push_back({{"address", address},
                        {"size", block.size},
                        {"requested_size", block.requested_size},
                        {"state", state},
                        {"frames", Json::array()}});
      address += block.size;
    }
    segments.push_back(
        {{"device", segment.device},
         {"address", segment.address},
         {"total_size", segment.total_size},
         {"allocated_size", segment.allocated_size},
         {"active_size", segment.active_size},
         {"requested_size", segment.requested_size},
         {"stream", reinterpret_cast<size_t>(segment.stream)},
         {"segment_type", segment.is_large ? "large" : "small"},
         {"segment_pool_id",
          {segment.owner_private_pool_id.first, segment.owner_private_pool_id.second}},
         {"is_expandable", segment.is_expandable},
         {"frames", Json::array()},
         {"blocks", blocks}});
  }
  Json traces = Json::array();
  for (size_t device = 0; device < snapshot.device_traces.size(); ++device) {
    traces.push_back(Json::array());
  }
  return {{"segments", segments},
          {"device_traces", traces},
          {"external_annotations", Json::array()},
          {"allocator_settings", Json::object()}};
}

// The blocks are of all kinds: small and large, free, pending, private and cold.
TEST_F(CudaPoolTest, SnapshotAgreesWithStatistics) {
  spill_to_host(128 * kMiB);
  start();
  keep(1000);
  keep(3000);
  allocate(2000).clear();
  keep(kMiB + 5);
  begin();
  keep(kExtent);
  end();
  for (int index = 0; index < 16; ++index) op(keep(kExtent));
  CUstream other = make_stream();
  cuda_->recordStream(kept_.back(), as_torch(other));
  ASSERT_EQ(driver_->launch(
                other, {}, [] {}, std::chrono::milliseconds(200)),
            CUDA_SUCCESS);
  kept_.pop_back();
  const auto snapshot = cuda_->snapshot({0, 0}, true);
  const auto stats = cuda_->getDeviceStats(0);
  int64_t allocated_bytes = 0;
  int64_t active_bytes = 0;
  int64_t requested_bytes = 0;
  uint64_t total_bytes = 0;
  for (const auto& segment : snapshot.segments) {
    size_t sum = 0;
    for (const auto& block : segment.blocks) sum += block.size;
    EXPECT_EQ(sum, segment.total_size);
    allocated_bytes += static_cast<int64_t>(segment.allocated_size);
    active_bytes += static_cast<int64_t>(segment.active_size);
    requested_bytes += static_cast<int64_t>(segment.requested_size);
    total_bytes += segment.total_size;
  }
  EXPECT_EQ(allocated_bytes, all(stats.allocated_bytes));
  EXPECT_EQ(active_bytes, all(stats.active_bytes));
  EXPECT_EQ(active_bytes - allocated_bytes, static_cast<int64_t>(kExtent));
  EXPECT_EQ(requested_bytes, all(stats.requested_bytes));
  tencache_gpu_stats core;
  tencache_gpu_get_stats(gpus_[0], &core);
  EXPECT_GT(core.cold_bytes, 0u);
  EXPECT_GT(total_bytes, core.cold_bytes);
  if (const char* path = std::getenv("TENCACHE_SNAPSHOT_FILE")) {
    Json written = {{"snapshot", as_json(snapshot)},
                    {"allocated_bytes", allocated_bytes},
                    {"active_bytes", active_bytes},
                    {"total_bytes", total_bytes}};
    std::ofstream file(path);
    file << written.dump();
    ASSERT_TRUE(file.good());
  }
}

// ---- Refusals ---------------------------------------------------------------------------------

TEST_F(CudaPoolTest, WhatIsNotSupportedSaysSo) {
  start();
  cuda_->createOrIncrefPool(0, kGraph, nullptr);
  const auto self = std::shared_ptr<CUDAAllocator>(cuda_, [](CUDAAllocator*) {});
  cuda_->createOrIncrefPool(0, kGraph, self);
  const auto foreign =
      std::shared_ptr<CUDAAllocator>(c10::cuda::CUDACachingAllocator::get(), [](CUDAAllocator*) {});
  struct Refusal {
    const char* feature;
    const char* remedy;
    std::function<void()> call;
  };
  const VariableGuard registers_all("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "True");
  const std::vector<Refusal> refusals = {
    {"MemPool with an allocator", "Leave out",
     [&] { cuda_->createOrIncrefPool(0, kGraph, foreign); }},
    {"use_on_oom", "empty_cache", [&] { cuda_->setUseOnOOM(0, kGraph, true); }},
    {"no_split", "Leave out", [&] { cuda_->setNoSplit(0, kGraph); }},
    {"other processes", "tensor.cpu()", [&] { (void)cuda_->shareIpcHandle(nullptr); }},
    {"other processes", "host memory", [&] { (void)cuda_->getIpcDevPtr(""); }},
    {"caching off", "without tencache", [&] { cuda_->enable(false); }},
    {"all of the allocator's memory", "Unset TORCH_NCCL",
     [&] { cuda_->attachAllocatorTraceTracker({}); }},
#if TENCACHE_TORCH_SINCE(13)
    {"given address", "Allocate anywhere", [&] { (void)cuda_->allocateWithAddress(1, nullptr); }},
#endif
  };
  for (const Refusal& refusal : refusals) {
    const std::string text = text_of(refusal.call);
    EXPECT_EQ(text.find("tencache does not support "), 0u) << refusal.feature << ": " << text;
    EXPECT_NE(text.find(refusal.feature), std::string::npos) << text;
    EXPECT_NE(text.find(refusal.remedy), std::string::npos) << text;
  }
  // These calls ask for nothing that is unsupported.
  cuda_->enable(true);
  cuda_->recordHistory(false, nullptr, 0, c10::CachingDeviceAllocator::RecordContext::NEVER, true,
                       {});
#if TENCACHE_TORCH_SINCE(12)
  cuda_->attachOomRejectionObserver([](int64_t, size_t, size_t, size_t) {});
#endif
#if TENCACHE_TORCH_SINCE(14)
  EXPECT_TRUE(cuda_->supportsUserMetadata());
#endif
  cuda_->releasePool(0, kGraph);
  cuda_->releasePool(0, kGraph);
}

}  // namespace
}  // namespace tencache::shim
