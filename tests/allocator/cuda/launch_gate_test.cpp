// SPDX-License-Identifier: Apache-2.0
//
// The gate that unannounced launches pass (abi/launch_gate.h), over the simulated driver: a kernel
// that touches memory which is not resident fails the context, and so the test.
// tests/guard/guard_test.cpp shows how launches are seen.
#include "abi/launch_gate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "abi/engines.h"
#include "abi/tencache_guard.h"
#include "base/units.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/eventually.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kExtent = 2 * kMiB;
constexpr AccessMode kAnything = AccessMode::kReadWrite;

class LaunchGateTest : public ::testing::Test {
 protected:
  LaunchGateTest() {
    const Status added = gpus_.add({.ordinal = 0, .engine = &*engine_});
    EXPECT_TRUE(added.is_ok()) << added.message();
    stream_ = engine_.make_stream();
  }
  ~LaunchGateTest() override { gpus_.remove(&*engine_); }

  char* allocate(uint64_t bytes = kExtent) { return engine_.allocate(bytes, stream_); }
  /// A stream that ops use.
  CUstream known_stream() {
    CUstream stream = engine_.make_stream();
    engine_.op(stream, {});
    return stream;
  }
  /// A tensor that ops have written and that is in host memory now.
  char* cold(uint64_t seed, uint64_t bytes = kExtent) {
    char* address = allocate(bytes);
    engine_.write(stream_, address, bytes, seed);
    engine_.wait_until_idle();
    EXPECT_TRUE(engine_.evict(address));
    return address;
  }
  /// Launches a kernel with no op of its own; returns whether the launch counted as an op.
  bool launch(CUstream stream, const std::vector<KernelUse>& uses,
              std::chrono::nanoseconds duration = {}) {
    std::vector<Access> accesses;
    std::vector<DeviceRange> touches;
    for (const KernelUse& use : uses) {
      accesses.push_back({use.address, kAnything});
      touches.push_back({reinterpret_cast<CUdeviceptr>(use.address), use.bytes, use.writes});
    }
    const uint64_t unannounced = launches_.unannounced();
    const uint32_t opened = launches_.open("launch::test", stream, accesses);
    const CUresult launched = engine_.driver().launch(
        stream, std::move(touches),
        [this, uses] {
          for (const KernelUse& use : uses) {
            if (use.writes) {
              stamp(use.address, use.bytes, use.seed);
            } else if (!has_stamp(use.address, use.bytes, use.seed)) {
              wrong_bytes_ = true;
            }
          }
        },
        duration);
    EXPECT_EQ(launched, CUDA_SUCCESS);
    if (opened != 0) launches_.close(opened);
    return launches_.unannounced() > unannounced;
  }
  Extent& extent(const void* address) { return *engine_.extent(address); }
  void finish() {
    engine_.wait_until_idle();
    EXPECT_FALSE(wrong_bytes_.load());
    EXPECT_EQ(engine_.check_books(), "");
  }

  TestCudaEngine engine_{[](CudaEngineConfig& config) { config.arm_at = 0; }};
  Engines gpus_;
  LaunchGate launches_{gpus_};
  CUstream stream_ = nullptr;
  std::atomic<bool> wrong_bytes_{false};
};

TEST_F(LaunchGateTest, WhatIsColdComesBackBeforeItsKernelRuns) {
  char* a = cold(1);
  char* b = cold(2);
  EXPECT_TRUE(launch(stream_, {{a, kExtent, 1, false}, {b, kExtent, 2, false}}));
  EXPECT_EQ(launches_.unannounced(), 1u);
  finish();
  engine_.free(a);
  engine_.free(b);
}

TEST_F(LaunchGateTest, WhatAKernelWroteLeavesWithIt) {
  char* a = cold(1);
  EXPECT_TRUE(launch(stream_, {{a, kExtent, 7, true}}));
  engine_.wait_until_idle();
  ASSERT_TRUE(engine_.evict(a));
  engine_.check(stream_, a, kExtent, 7);
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, NothingLeavesUnderAKernelThatIsQueued) {
  char* a = allocate();
  engine_.write(stream_, a, kExtent, 1);
  engine_.wait_until_idle();
  CUstream other = known_stream();
  engine_.driver().hold(other);
  EXPECT_TRUE(launch(other, {{a, kExtent, 1, false}}));
  std::thread evicting([&] { engine_.evict(a); });
  std::this_thread::sleep_for(milliseconds(20));  // the frame must stay all this time
  EXPECT_NE(extent(a).state(), ExtentState::kCold);
  engine_.driver().let_go();
  evicting.join();
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, KernelsOfAnOpThatHasAnnouncedThemAreNoOps) {
  char* a = cold(1);
  const std::vector<Access> accesses = {{a, AccessMode::kRead}};
  engine_->open_op(0, accesses, stream_);
  const uint64_t ops = engine_.stats().ops.load();
  char* inner = allocate();
  EXPECT_FALSE(launch(stream_, {{a, kExtent, 1, false}, {inner, kExtent, 3, true}}));
  EXPECT_EQ(engine_.stats().ops.load(), ops);
  EXPECT_EQ(launches_.unannounced(), 0u);
  EXPECT_FALSE(extent(a).has(kFlagDirty)) << "the op has said that it only reads";
  engine_->gate().close();
  finish();
  engine_.free(a);
  engine_.free(inner);
}

TEST_F(LaunchGateTest, AKernelMayTakeWhatIsAnnouncedInAnyOrder) {
  char* const a = cold(1);
  char* const b = cold(2);
  char* const unnamed = cold(3);
  const KernelUse use_a = {a, kExtent, 1, false};
  const KernelUse use_b = {b, kExtent, 2, false};
  {
    const std::vector<Access> accesses = {{a, AccessMode::kRead}, {b, AccessMode::kRead}};
    engine_->open_op(0, accesses, stream_);
    EXPECT_FALSE(launch(stream_, {use_a, use_b, use_a, use_a, use_b}));
    EXPECT_FALSE(launch(stream_, {use_b, use_a}));
    EXPECT_TRUE(launch(stream_, {use_a, use_b, {unnamed, kExtent, 3, false}}));
    engine_->gate().close();
  }
  // The next op has not announced what came next in the one before.
  const std::vector<Access> accesses = {{b, AccessMode::kRead}};
  engine_->open_op(0, accesses, stream_);
  EXPECT_FALSE(launch(stream_, {use_b, use_b}));
  EXPECT_TRUE(launch(stream_, {use_b, use_a}));
  engine_->gate().close();
  finish();
  for (char* address : {a, b, unnamed}) engine_.free(address);
}

TEST_F(LaunchGateTest, AnOpThatAnotherThreadHasOpenAnnouncesNothingHere) {
  char* a = cold(1);
  const std::vector<Access> accesses = {{a, AccessMode::kRead}};
  engine_->open_op(0, accesses, stream_);
  bool was_op = false;
  std::thread([&] {
    const CurrentContext context(engine_.api());
    was_op = launch(stream_, {{a, kExtent, 1, false}});
  }).join();
  EXPECT_TRUE(was_op);
  engine_->gate().close();
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, AKernelOfALongListFindsWhatIsAnnounced) {
  std::vector<char*> list;
  std::vector<Access> accesses;
  for (int index = 0; index < 24; ++index) {
    list.push_back(allocate());
    accesses.push_back({list.back(), AccessMode::kWrite});
  }
  for (int index = 0; index < 16; ++index) accesses.push_back(accesses[0]);  // too many to search
  char* other = allocate();
  engine_.write(stream_, other, kExtent, 1);
  engine_->open_op(0, accesses, stream_);
  for (char* address : list) EXPECT_FALSE(launch(stream_, {{address, kExtent, 1, true}}));
  EXPECT_TRUE(launch(stream_, {{list[3], kExtent, 1, true}, {other, kExtent, 1, false}}));
  // Pins come and go while the op is open.
  for (char* address : {list[0], other}) {
    const std::vector<Access> inner = {{address, AccessMode::kRead}};
    engine_->open_op(0, inner, stream_);
    EXPECT_FALSE(launch(stream_, {{address, kExtent, 1, false}}));
    engine_->gate().close();
  }
  EXPECT_TRUE(launch(stream_, {{other, kExtent, 1, false}}));
  engine_->gate().close();
  EXPECT_TRUE(launch(stream_, {{list[3], kExtent, 1, false}})) << "the op is closed";
  finish();
  for (char* address : list) engine_.free(address);
  engine_.free(other);
}

TEST_F(LaunchGateTest, WhatNoOpHasNamedCostsNoOpAndItsStreamIsKnownLater) {
  char* workspace = allocate();
  CUstream other = known_stream();
  engine_.driver().hold(other);
  EXPECT_FALSE(launch(other, {{workspace, kExtent, 4, true}}));
  // From now on the workspace may leave, but not before the other stream is done with it.
  engine_.op(stream_, {});
  const std::vector<Access> accesses = {{workspace, AccessMode::kRead}};
  engine_->open_op(0, accesses, stream_);
  engine_->gate().close();
  std::thread evicting([&] { engine_.evict(workspace); });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_NE(extent(workspace).state(), ExtentState::kCold);
  engine_.driver().let_go();
  evicting.join();
  engine_.check(stream_, workspace, kExtent, 4);
  finish();
  engine_.free(workspace);
}

TEST_F(LaunchGateTest, WhatIsNamedWhileItsLaunchIsQueuedStays) {
  char* a = allocate();
  const std::vector<Access> accesses = {{a, kAnything}};
  const uint32_t opened = launches_.open("launch::test", stream_, accesses);
  EXPECT_EQ(launches_.unannounced(), 0u);
  engine_.write(engine_.make_stream(), a, kExtent, 1);
  engine_.wait_until_idle();
  EXPECT_FALSE(engine_.evict(a)) << "the launch is not queued yet";
  ASSERT_NE(opened, 0u);
  launches_.close(opened);
  EXPECT_TRUE(engine_.evict(a));
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, AddressesOfOldAndOfOthersAreNobodys) {
  char* freed = allocate();
  engine_.write(stream_, freed, kExtent, 1);
  char* gone = cold(2, 2 * kExtent);
  engine_.free(freed);
  engine_.free(gone);
  int local = 0;
  for (const void* address : {static_cast<const void*>(freed), static_cast<const void*>(gone),
                              static_cast<const void*>(&local)}) {
    const std::vector<Access> accesses = {{address, kAnything}};
    const uint32_t opened = launches_.open("launch::test", stream_, accesses);
    if (opened != 0) launches_.close(opened);
  }
  EXPECT_EQ(launches_.unannounced(), 0u);
  EXPECT_EQ(engine_.state(freed), ExtentState::kCached);
  EXPECT_EQ(Extent::pins_of(extent(freed).load()), 0u);
  finish();
}

TEST_F(LaunchGateTest, StreamsWithoutANumberAreWaitedForAndKeepWhatTheyUse) {
  char* a = cold(1);
  const std::vector<Access> accesses = {{a, kAnything}};
  const uint32_t opened = launches_.open("launch::test", TENCACHE_STREAM_PER_THREAD, accesses);
  ASSERT_NE(opened, 0u);
  // The bytes are there, whichever stream asks for them.
  EXPECT_TRUE(engine_.driver().is_idle());
  EXPECT_TRUE(has_stamp(a, kExtent, 1));
  launches_.close(opened);
  EXPECT_TRUE(extent(a).has(kFlagKeepResident));
  EXPECT_FALSE(engine_.evict(a));
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, OpsOnThePerThreadStreamAreWaitedForAndKeepWhatTheyUse) {
  gpus_.set_current_stream([](int) { return TENCACHE_STREAM_PER_THREAD; });
  char* a = cold(1);
  const std::vector<Access> accesses = {{a, kAnything}};
  EXPECT_EQ(gpus_.hold(accesses, false), nullptr);
  gpus_.open(gpus_.register_op("test::op"), accesses);
  EXPECT_TRUE(engine_.driver().is_idle());
  EXPECT_TRUE(has_stamp(a, kExtent, 1));
  gpus_.close();
  EXPECT_TRUE(extent(a).has(kFlagKeepResident));
  EXPECT_FALSE(engine_.evict(a));
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, AStreamThatNoOpUsesMayBeDestroyed) {
  char* a = cold(1);
  const StreamSet users = extent(a).used_by;
  CUstream passing = nullptr;
  ASSERT_EQ(engine_.api().cuStreamCreateWithPriority(&passing, CU_STREAM_NON_BLOCKING, 0),
            CUDA_SUCCESS);
  EXPECT_TRUE(launch(passing, {{a, kExtent, 1, false}}));
  char* unnamed = allocate();
  EXPECT_FALSE(launch(passing, {{unnamed, kExtent, 2, true}}));
  engine_.wait_until_idle();
  ASSERT_EQ(engine_.api().cuStreamDestroy(passing), CUDA_SUCCESS);
  engine_->mover()->settle(true);  // until then the copy stream counts as a user
  EXPECT_EQ(extent(a).used_by & ~users, kNoStreams);
  EXPECT_TRUE(extent(a).has(kFlagKeepResident));
  EXPECT_TRUE(extent(unnamed).has(kFlagKeepResident));
  engine_.free(a);
  engine_.free(unnamed);
  // The freed memory is reused for another size.
  char* larger = allocate(TestCudaEngine::kBudgetBytes - kExtent);
  finish();
  engine_.free(larger);
}

TEST_F(LaunchGateTest, AnotherStreamWaitsForWhatItsOpHasOnTheWay) {
  char* a = cold(1);
  CUstream other = known_stream();
  engine_.driver().hold_copies();
  const std::vector<Access> accesses = {{a, AccessMode::kRead}};
  engine_->open_op(0, accesses, stream_);
  EXPECT_EQ(extent(a).state(), ExtentState::kArriving);
  EXPECT_FALSE(launch(other, {{a, kExtent, 1, false}}));
  std::this_thread::sleep_for(milliseconds(20));  // time in which it would run
  EXPECT_EQ(engine_.driver().unfinished(other), 2u) << "the wait and the kernel";
  engine_.driver().let_go();
  engine_->gate().close();
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, AStreamOfAnotherGpuHasNoNumberEither) {
  char* a = cold(1);
  const std::vector<Access> accesses = {{a, kAnything}};
  CUcontext current = nullptr;
  ASSERT_EQ(engine_.api().cuCtxGetCurrent(&current), CUDA_SUCCESS);
  ASSERT_EQ(engine_.api().cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  const uint32_t opened = launches_.open("launch::test", stream_, accesses);
  ASSERT_EQ(engine_.api().cuCtxSetCurrent(current), CUDA_SUCCESS);
  ASSERT_NE(opened, 0u);
  EXPECT_TRUE(has_stamp(a, kExtent, 1));
  launches_.close(opened);
  EXPECT_TRUE(extent(a).has(kFlagKeepResident));
  finish();
  engine_.free(a);
}

// The op's library launches on a stream of its own, and does not make the op's stream wait for it.
TEST_F(LaunchGateTest, AStreamThatOnlyAnOpsKernelUsesIsAwaited) {
  char* a = allocate();
  engine_.write(stream_, a, kExtent, 1);
  engine_.wait_until_idle();
  CUstream own = engine_.make_stream();
  engine_.driver().hold(own);
  engine_->open_op(0, std::vector<Access>{{a, AccessMode::kRead}}, stream_);
  EXPECT_FALSE(launch(own, {{a, kExtent, 1, false}}));
  engine_->gate().close();
  std::jthread eviction([&] { (void)engine_.evict(a); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_NE(engine_.state(a), ExtentState::kCold) << "its kernel has not run yet";
  engine_.driver().let_go();
  eviction.join();
  finish();
  engine_.free(a);
}

// Another context than the GPU's may be current: a copy between GPUs runs with the source's.
TEST_F(LaunchGateTest, WhatAnOpHasAnnouncedMayLeaveWhateverTheStream) {
  char* a = cold(1);
  const std::vector<Access> accesses = {{a, AccessMode::kRead}};
  engine_->open_op(0, accesses, stream_);
  for (void* stream : {static_cast<void*>(stream_), TENCACHE_STREAM_PER_THREAD}) {
    CUcontext current = nullptr;
    ASSERT_EQ(engine_.api().cuCtxGetCurrent(&current), CUDA_SUCCESS);
    ASSERT_EQ(engine_.api().cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(launches_.open("launch::test", stream, accesses), 0u);
    ASSERT_EQ(engine_.api().cuCtxSetCurrent(current), CUDA_SUCCESS);
    EXPECT_TRUE(has_stamp(a, kExtent, 1)) << "awaited on the host";
  }
  engine_->gate().close();
  engine_.wait_until_idle();
  EXPECT_TRUE(engine_.evict(a));
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, WhatNoOpHasNamedStaysForItsReplaysToo) {
  char* a = allocate();
  engine_.driver().set_capturing(stream_, true);
  const std::vector<Access> accesses = {{a, kAnything}};
  const uint32_t opened = launches_.open("launch::test", stream_, accesses);
  launches_.close(opened);
  engine_.driver().set_capturing(stream_, false);
  EXPECT_EQ(launches_.unannounced(), 0u);
  EXPECT_EQ(engine_.stats().graph_extents.load(), 1u);
  engine_.write(stream_, a, kExtent, 1);
  engine_.wait_until_idle();
  EXPECT_FALSE(engine_.evict(a));
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, WhatIsLaunchedIntoAGraphStaysForItsReplays) {
  char* a = cold(1);
  engine_.driver().set_capturing(stream_, true);
  const std::vector<Access> accesses = {{a, kAnything}};
  const uint32_t opened = launches_.open("launch::test", stream_, accesses);
  ASSERT_NE(opened, 0u);
  launches_.close(opened);
  engine_.driver().set_capturing(stream_, false);
  EXPECT_EQ(engine_.stats().graph_extents.load(), 1u);
  EXPECT_TRUE(extent(a).has(kFlagKeepResident));
  finish();
  engine_.free(a);
}

TEST_F(LaunchGateTest, LaunchesAreLearnedAsOpsAre) {
  char* a = cold(1);
  EXPECT_TRUE(launch(stream_, {{a, kExtent, 1, false}}));
  const uint32_t op = gpus_.register_op("launch::test");
  EXPECT_EQ(engine_->recorder().op_name(op), "launch::test");
  bool is_recorded = false;
  for (const ThreadEvents& thread : engine_->recorder().snapshot()) {
    for (const Event& event : thread.events) {
      is_recorded |= event.op == op && event.kind == EventKind::kWrite;
    }
  }
  EXPECT_TRUE(is_recorded);
  finish();
  engine_.free(a);
}

TEST(LaunchGateUnarmedTest, NothingIsAskedOfAProgramThatFits) {
  TestCudaEngine engine([](CudaEngineConfig& config) { config.arm_at = 1.0; });
  Engines gpus;
  ASSERT_TRUE(gpus.add({.ordinal = 0, .engine = &*engine}).is_ok());
  LaunchGate launches(gpus);
  CUstream stream = engine.make_stream();
  char* a = engine.allocate(kExtent, stream);
  engine.write(stream, a, kExtent, 1);
  const std::vector<Access> accesses = {{a, kAnything}};
  EXPECT_EQ(launches.open("launch::test", stream, accesses), 0u);
  launches.on_unreadable();
  launches.on_unreadable();
  EXPECT_EQ(launches.unreadable(), 2u);
  engine.free(a);
  gpus.remove(&*engine);
}

}  // namespace
}  // namespace tencache
