// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory for the program over the simulated driver: exact sizes; reuse at once or after the
// noted streams, whatever the driver refuses; the budget and its errors; private pools; forked
// children.
#include "memory/cuda/pinned_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "support/child_process.h"
#include "support/cuda/pinned_fixture.h"

namespace tencache {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBlock = 16 * kKiB;

class PinnedPoolTest : public PinnedFixture {
 protected:
  // Allocates as many blocks as fill a chunk.
  std::vector<char*> fill_chunk() {
    std::vector<char*> blocks;
    for (uint64_t bytes = 0; bytes < kChunk; bytes += kBlock) blocks.push_back(allocate(kBlock));
    return blocks;
  }
};

TEST_F(PinnedPoolTest, BytesAskedAreBytesUsed) {
  start();
  // Rounded up to a power of two, the block would have 64 KiB.
  char* block = allocate(33 * kKiB);
  memset(block, 7, 33 * kKiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 4096, 0u);
  EXPECT_EQ(tier().chunk_bytes, 36 * kKiB);
  EXPECT_EQ(tier().asked_bytes, 33 * kKiB);
  EXPECT_EQ(figures().bytes.current, 33 * kKiB);
  free(block);
  EXPECT_EQ(figures().bytes.current, 0u);
  EXPECT_EQ(figures().bytes.peak, 33 * kKiB);
  EXPECT_EQ(figures().blocks.added, 1u);
}

// The simulated driver ends the process when it is asked about a destroyed stream.
TEST_F(PinnedPoolTest, AStreamMayBeDestroyedBeforeTheBlockIsFreed) {
  start();
  char* block = allocate(kBlock);
  const CUstream gone = make_stream();
  driver_->hold(gone);
  ASSERT_TRUE(note_use(block, gone));
  std::erase(streams_, gone);
  StreamNumbers::end_everywhere(gone);
  ASSERT_EQ(api().cuStreamDestroy(gone), CUDA_SUCCESS);
  free(block);
  pool().poll();
  EXPECT_EQ(figures().waiting_count, 1u);
  driver_->wait_until_idle();
  EXPECT_TRUE(pool().poll());
  EXPECT_EQ(figures().waiting_count, 0u);
}

TEST_F(PinnedPoolTest, EveryByteOfABlockIsPinned) {
  start();
  char* block = allocate(10000);
  for (const uint64_t offset : {0, 1, 5000, 9999}) EXPECT_TRUE(is_pinned(block + offset));
  char outside = 0;
  EXPECT_FALSE(is_pinned(&outside));
}

TEST_F(PinnedPoolTest, WhatIsFreedIsUsedAgainWithoutTheDriver) {
  start();
  char* first = allocate(kBlock);
  free(first);
  const uint64_t calls = driver_->calls("cuCtxGetCurrent");
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(allocate(kBlock), first);
    free(first);
  }
  EXPECT_EQ(driver_->calls("cuCtxGetCurrent"), calls) << "every call of ours begins with it";
  EXPECT_EQ(driver_->calls("cuMemHostRegister"), 1u);
}

TEST_F(PinnedPoolTest, ABlockWaitsForTheStreamsThatWereNoted) {
  start();
  CUstream one = make_stream();
  CUstream other = make_stream();
  char* block = allocate(kChunk);
  driver_->hold(one);
  driver_->hold(other);
  EXPECT_TRUE(note_use(block, one));
  EXPECT_TRUE(note_use(block + kChunk - 1, other)) << "any address inside";
  free(block);
  EXPECT_EQ(figures().waiting_bytes, kChunk);
  EXPECT_EQ(figures().bytes.current, kChunk) << "not free yet";
  char* second = allocate(kChunk);
  EXPECT_NE(second, block);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(kChunk), block);
  EXPECT_EQ(figures().waiting_count, 0u);
  EXPECT_EQ(tier().chunk_bytes, 2 * kChunk);
}

// Work that the stream is given after the free does not concern the block.
TEST_F(PinnedPoolTest, TheMarkIsMadeWhenTheBlockIsFreed) {
  start();
  CUstream stream = make_stream();
  char* block = allocate(kChunk);
  EXPECT_TRUE(note_use(block, stream));
  free(block);
  driver_->wait_until_idle();
  driver_->hold(stream);
  EXPECT_EQ(allocate(kChunk), block);
}

TEST_F(PinnedPoolTest, ForeignAddressesAreNoBlocks) {
  start();
  CUstream stream = make_stream();
  char* block = allocate(100);
  char outside = 0;
  EXPECT_FALSE(note_use(&outside, stream));
  EXPECT_FALSE(note_use(block + 100, stream)) << "behind its end";
  EXPECT_FALSE(note_use(block - 1, stream));
  EXPECT_TRUE(note_use(block + 99, stream));
  free(block);
  EXPECT_FALSE(note_use(block, stream)) << "freed";
  EXPECT_DEATH(pool().free(&outside), "no pinned memory in use begins there");
}

TEST_F(PinnedPoolTest, StreamsOfEveryGpuAreWaitedFor) {
  start({.device_count = 2});
  CUstream first = make_stream();
  CUcontext second_context = nullptr;
  ASSERT_EQ(api().cuDevicePrimaryCtxRetain(&second_context, 1), CUDA_SUCCESS);
  ASSERT_EQ(api().cuCtxSetCurrent(second_context), CUDA_SUCCESS);
  CUstream second = make_stream();
  char* block = allocate(kChunk);
  EXPECT_TRUE(note_use(block, first, 0));
  EXPECT_TRUE(note_use(block, second, 1));
  driver_->hold(second);
  free(block);
  EXPECT_NE(allocate(kChunk), block);
  driver_->wait_until_idle();
  EXPECT_EQ(allocate(kChunk), block);
  const Result<bool> none = memory_->note_use(block, 2, first);
  ASSERT_FALSE(none.is_ok());
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(api().cuDevicePrimaryCtxRelease(1), CUDA_SUCCESS);
}

TEST_F(PinnedPoolTest, MarksThatTheDriverRefusesAreMadeLater) {
  start();
  CUstream stream = make_stream();
  for (const char* name : {"cuStreamIsCapturing", "cuEventRecord", "cuEventQuery"}) {
    char* block = allocate(kChunk);
    EXPECT_TRUE(note_use(block, stream));
    const bool is_query = strcmp(name, "cuEventQuery") == 0;
    if (!is_query) driver_->fail(name, 1, CUDA_ERROR_UNKNOWN);
    free(block);
    driver_->wait_until_idle();
    if (is_query) driver_->fail(name, 1, CUDA_ERROR_UNKNOWN);
    if (is_query) {
      EXPECT_FALSE(pool().poll()) << name;
    }
    EXPECT_EQ(figures().waiting_count, 1u) << name;
    // Two rounds are needed if the first makes the mark.
    for (int round = 0; round < 100 && figures().waiting_count > 0; ++round) {
      pool().poll();
      driver_->wait_until_idle();
    }
    EXPECT_EQ(figures().waiting_count, 0u) << name;
    EXPECT_EQ(allocate(kChunk), block) << name;
    free(block);
  }
}

TEST_F(PinnedPoolTest, AStreamThatCapturesAGraphIsNotMarked) {
  start({}, kChunk);
  CUstream stream = make_stream();
  char* block = allocate(kChunk);
  EXPECT_TRUE(note_use(block, stream));
  driver_->set_capturing(stream, true);
  free(block);
  const Result<void*> refused = pool().allocate(kBlock);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("64.0 KiB are freed but used by streams"));
  driver_->set_capturing(stream, false);
  EXPECT_EQ(allocate(kChunk), block);
}

TEST_F(PinnedPoolTest, TheBudgetIsHardAndTheErrorSaysSo) {
  start();
  for (int index = 0; index < 4; ++index) allocate(kChunk);
  const Result<void*> refused = pool().allocate(8192);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  const std::string& text = refused.status().message();
  EXPECT_THAT(text, HasSubstr("8.00 KiB were asked for, and the program has 256 KiB"));
  EXPECT_THAT(text, HasSubstr("its budget of 256 KiB"));
  EXPECT_THAT(text, HasSubstr("Raise the budget"));
  EXPECT_LE(tier().chunk_bytes, kBudget);
  free(allocated_.back());
  EXPECT_NE(allocate(8192), nullptr);
}

// At the budget, and only there, a thread waits until streams are done with freed blocks.
TEST_F(PinnedPoolTest, TheBudgetIsWorthWaitingForStreams) {
  start();
  CUstream stream = make_stream();
  std::vector<char*> blocks;
  for (int index = 0; index < 4; ++index) blocks.push_back(allocate(kChunk));
  driver_->hold(stream);
  EXPECT_TRUE(note_use(blocks[2], stream));
  const uint64_t waits = driver_->calls("cuEventSynchronize");
  free(blocks[2]);
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), waits);
  std::jthread when_waited_for([&] {
    while (driver_->calls("cuEventSynchronize") == waits) std::this_thread::yield();
    driver_->let_go();
  });
  EXPECT_EQ(allocate(kChunk), blocks[2]);
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), waits + 1);
  EXPECT_EQ(tier().chunk_bytes, kBudget);
}

TEST_F(PinnedPoolTest, WhatNeverFitsWaitsForNobody) {
  start();
  CUstream stream = make_stream();
  char* block = allocate(kChunk);
  driver_->hold(stream);
  EXPECT_TRUE(note_use(block, stream));
  free(block);
  EXPECT_EQ(pool().allocate(kBudget + 1).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(driver_->calls("cuEventSynchronize"), 0u);
}

// While mapped memory has room, no stream is asked, but the number of waiting blocks is bounded.
TEST_F(PinnedPoolTest, WhatGathersIsLookedAt) {
  start({}, 64 * kChunk);
  CUstream stream = make_stream();
  for (int index = 0; index < 70; ++index) {
    char* block = allocate(4096);
    EXPECT_TRUE(note_use(block, stream));
    driver_->wait_until_idle();
    free(block);
    driver_->wait_until_idle();
  }
  EXPECT_LT(figures().waiting_count, 64u);
}

// A poll stops at each stream's first "not yet".
TEST_F(PinnedPoolTest, APollAsksEachStreamOnce) {
  start();
  CUstream stream = make_stream();
  driver_->hold(stream);
  for (char* block : fill_chunk()) {
    EXPECT_TRUE(note_use(block, stream));
    free(block);
  }
  const uint64_t queries = driver_->calls("cuEventQuery");
  EXPECT_FALSE(pool().poll());
  EXPECT_EQ(driver_->calls("cuEventQuery"), queries + 1);
  driver_->wait_until_idle();
  EXPECT_TRUE(pool().poll());
  EXPECT_EQ(figures().waiting_count, 0u);
}

// Where the driver refuses to pin, there is memory all the same. That memory reports itself as
// pageable, and copies from and to it are right.
TEST_F(PinnedPoolTest, WhatCannotBePinnedIsPageable) {
  testing::internal::CaptureStderr();
  start({.registered_bytes_max = kChunk});
  char* pinned = allocate(kChunk);
  char* pageable = allocate(kChunk);
  char* third = allocate(kChunk);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(is_pinned(pinned));
  EXPECT_FALSE(is_pinned(pageable));
  EXPECT_FALSE(is_pinned(third));
  EXPECT_EQ(tier().pinned_bytes, kChunk);
  EXPECT_THAT(said, HasSubstr("Cannot pin 64.0 KiB"));
  EXPECT_THAT(said, HasSubstr("ulimit -l"));
  EXPECT_EQ(said.find("Cannot pin"), said.rfind("Cannot pin")) << "once: " << said;
  CUstream stream = make_stream();
  DeviceBuffer device(api(), 2 * kMiB);
  memset(pageable, 5, kChunk);
  memset(third, 6, kChunk);
  EXPECT_EQ(api().cuMemcpyHtoDAsync(device.address(), pageable, kChunk, stream), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemcpyDtoHAsync(third, device.address(), kChunk, stream), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(memcmp(pageable, third, kChunk), 0);
}

// No stream was noted for the block, so no copy of a graph uses it.
TEST_F(PinnedPoolTest, WhatNoStreamUsedServesItsPrivatePoolAgain) {
  start();
  const uint64_t graph = pool().make_private_pool();
  char* first = allocate(kChunk, graph);
  free(first);
  EXPECT_NE(allocate(kChunk), first) << "but nobody else";
  EXPECT_EQ(allocate(kChunk, graph), first);
  EXPECT_EQ(figures().kept_bytes, 0u);
  free(first);
  pool().drop_private_pool(graph);
  EXPECT_EQ(allocate(kChunk), first);
}

TEST_F(PinnedPoolTest, MemoryInWhichNothingLiesGoesBackWhenThatIsAskedFor) {
  start();
  char* first = allocate(kChunk);
  char* second = allocate(kChunk);
  free(first);
  EXPECT_EQ(tier().chunk_bytes, 2 * kChunk);
  pool().trim();
  EXPECT_EQ(tier().chunk_bytes, kChunk);
  EXPECT_EQ(tier().mapped_chunks.removed, 1u);
  EXPECT_TRUE(memory_->tier().is_valid());
  allocate(kChunk);
  EXPECT_EQ(tier().chunk_bytes, 2 * kChunk);
  free(second);
}

TEST_F(PinnedPoolTest, APrivatePoolKeepsWhatIsFreedInIt) {
  start();
  const uint64_t graph = pool().make_private_pool();
  EXPECT_NE(graph, 0u);
  char* of_graph = allocate(kChunk, graph);
  char* of_nobody = allocate(kChunk);
  EXPECT_TRUE(memory_->note_use(of_graph, 0, make_stream()).value());
  free(of_nobody);
  free(of_graph);
  EXPECT_EQ(figures().kept_bytes, kChunk);
  EXPECT_EQ(figures().bytes.current, 0u);
  EXPECT_EQ(allocate(kChunk), of_nobody);
  EXPECT_NE(allocate(kChunk, graph), of_graph) << "its graph may use it at each replay";
  char* late = allocate(kChunk, graph);
  pool().drop_private_pool(graph);
  EXPECT_EQ(figures().kept_bytes, 0u);
  EXPECT_EQ(allocate(kChunk), of_graph);
  free(late);
  EXPECT_EQ(allocate(kChunk), late) << "freed after its pool was dropped";
  EXPECT_DEATH(pool().drop_private_pool(graph), "there is no private pool 1");
}

TEST_F(PinnedPoolTest, WalksShowEveryBlock) {
  start();
  CUstream stream = make_stream();
  const uint64_t graph = pool().make_private_pool();
  char* in_use = allocate(100);
  char* waiting = allocate(200);
  char* kept = allocate(300, graph);
  driver_->hold(stream);
  EXPECT_TRUE(note_use(waiting, stream));
  free(waiting);
  free(kept);
  const std::vector<PinnedView> blocks = pool().blocks();
  ASSERT_EQ(blocks.size(), 3u);
  const auto expect = [&](size_t index, const char* memory, uint64_t bytes, uint64_t pool,
                          BlockState state) {
    EXPECT_EQ(blocks[index].memory, memory);
    EXPECT_EQ(blocks[index].bytes, bytes);
    EXPECT_EQ(blocks[index].private_pool, pool);
    EXPECT_EQ(blocks[index].state, state);
  };
  expect(0, in_use, 100, 0, BlockState::kActive);
  expect(1, waiting, 200, 0, BlockState::kWaiting);
  expect(2, kept, 300, graph, BlockState::kFree);
}

TEST_F(PinnedPoolTest, PinningIsTimed) {
  start();
  driver_->set_latency("cuMemHostRegister", std::chrono::milliseconds(2));
  allocate(kChunk);
  allocate(33 * kKiB);
  const PinTimes times = memory_->pinner().times();
  EXPECT_EQ(tier().mapped_chunks.added, 2u);
  EXPECT_EQ(tier().mapped_bytes.added, kChunk + 36 * kKiB);
  EXPECT_EQ(times.count_by_size[16], 2u) << "both above 2^15 bytes";
  EXPECT_GE(times.shortest_ns, 2'000'000u);
  EXPECT_GE(times.longest_ns, times.shortest_ns);
  EXPECT_GE(times.total_ns, times.longest_ns + times.shortest_ns);
  memory_->pinner().reset_totals();
  EXPECT_EQ(memory_->pinner().times().total_ns, 0u);
  EXPECT_EQ(memory_->pinner().times().longest_ns, times.longest_ns);
  memory_->pinner().reset_peaks();
  EXPECT_EQ(memory_->pinner().times().longest_ns, 0u);
  EXPECT_EQ(memory_->pinner().times().shortest_ns, 0u);
}

// A child does not map the memory, whatever it does with inherited pointers. It does not wait for a
// lock that another thread held at the fork.
TEST_F(PinnedPoolTest, AForkedChildHasNoneOfIt) {
  start();
  CUstream stream = make_stream();
  char* block = allocate(kBlock);
  EXPECT_EQ(run_in_child([&] {
              const Result<void*> refused = pool().allocate(kBlock);
              ASSERT_FALSE(refused.is_ok());
              EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
              pool().free(block);
              EXPECT_FALSE(note_use(block, stream));
              EXPECT_FALSE(pool().poll());
            }),
            0);
}

// Memory that is in use at the first request may be free at a later one.
TEST(PinnedBudgetTest, IsAllMemoryWhateverIsInUse) {
  MachineMemory memory;
  memory.total_bytes = 40 * kGiB;
  memory.available_bytes = 200 * kMiB;
  EXPECT_EQ(all_memory(memory), 40 * kGiB);
  memory.cgroup_limit_bytes = 8 * kGiB;
  EXPECT_EQ(all_memory(memory), 8 * kGiB);
  memory.cgroup_limit_bytes = 80 * kGiB;
  EXPECT_EQ(all_memory(memory), 40 * kGiB);
}

TEST_F(PinnedPoolTest, WithoutABudgetWhatExceedsTheMachineIsRefusedAndItSaysSo) {
  start({}, 0);
  const uint64_t all_bytes = all_memory(probe_memory());
  EXPECT_GT(memory_->tier().budget_bytes() + kIoAlignment, all_bytes);
  const Result<void*> refused = pool().allocate(all_bytes + kGiB);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("all memory of the machine or its container: allocate less"));
  EXPECT_NE(allocate(kBlock), nullptr);
}

}  // namespace
}  // namespace tencache
