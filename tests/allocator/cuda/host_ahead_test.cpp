// SPDX-License-Identifier: Apache-2.0
//
// What is done ahead of need for host memory above a disk: what is needed next is read, what is
// needed last is copied, some room stays free; other threads are not held up, and faults cost no
// bit.
#include "engine/move/cuda/host_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <unordered_map>

#include "support/cuda/spill_fixture.h"
#include "support/eventually.h"

namespace tencache {
namespace {

using HostAheadTest = SpillFixture;

// A tensor is in host memory again before it is fetched.
TEST_F(HostAheadTest, NeededNextIsReadAhead) {
  start([](CudaEngineConfig& config) { config.host_headroom = 0.5; });
  allocate(8);
  evict(8);
  need_in_order();
  for (uint64_t index = 0; index < tensors_.size(); ++index) {
    // Nothing asks for the tensor; the fetch of the previous one makes the thread look again.
    ASSERT_TRUE(eventually([&] { return has_block(index); })) << index;
    EXPECT_EQ(engine_->prefetch({tensors_[index]}), 1u);
    settle();
    EXPECT_EQ(engine_->state(tensors_[index]), ExtentState::kResident);
  }
  follow(nullptr);
  EXPECT_EQ(engine_->device().host()->stats().peak_beyond_bytes, 0u);
  check_all();
}

// Tensors are written to disk before room is short, those needed last first, and no more than the
// plan says.
TEST_F(HostAheadTest, NeededLastIsCopiedAhead) {
  start([](CudaEngineConfig& config) { config.host_headroom = 0.25; });
  allocate(6);
  evict(3);
  EXPECT_EQ(written_bytes(), 0u);
  need_in_order(2 * kBytes);
  ASSERT_TRUE(eventually([&] { return written_bytes() >= 2 * kBytes; }));
  for (const uint64_t index : {0u, 1u, 2u}) EXPECT_TRUE(has_block(index)) << index;
  for (const uint64_t index : {3u, 4u, 5u}) ASSERT_TRUE(engine_->evict(tensors_[index]));
  follow(nullptr);
  EXPECT_TRUE(is_on_disk_alone(2) || is_on_disk_alone(1)) << "its block went without a write";
  check_all();
  EXPECT_EQ(engine_->check_books(), "");
}

// Copies for which the disk has no room do not take the place of earlier ones.
TEST_F(HostAheadTest, CopiesAheadEndWhereTheDiskIsFull) {
  start([](CudaEngineConfig& config) {
    config.host_headroom = 0.25;
    config.disk->quota_bytes = 2 * kBytes;
  });
  allocate(3);
  evict(3);
  std::atomic<uint64_t> looks{0};
  const auto needed = [this, &looks] {
    std::unordered_map<const Extent*, uint64_t> uses;
    for (uint64_t index = 0; index < tensors_.size(); ++index) uses[extent(index)] = index;
    looks.fetch_add(1);
    return uses;
  };
  follow(needed, 3 * kBytes);
  ASSERT_TRUE(eventually([&] { return written_bytes() >= 2 * kBytes; }));
  for (int round = 0; round < 5; ++round) {
    const uint64_t before = looks;
    follow(needed, 3 * kBytes);
    ASSERT_TRUE(eventually([&] { return looks > before; }));
  }
  follow(nullptr);
  EXPECT_EQ(written_bytes(), 2 * kBytes);
  check_all();
}

TEST_F(HostAheadTest, FailedCopyAheadCostsNothing) {
  start([](CudaEngineConfig& config) { config.host_headroom = 0.25; });
  allocate(3);
  evict(3);
  faults_->add({.direction = IoDirection::kWrite, .count = 3, .error_number = EIO});
  need_in_order(3 * kBytes);
  ASSERT_TRUE(eventually([&] { return faults_->injected() >= 1; }));
  follow(nullptr);
  check_all();
}

// A thread that needs room meanwhile does not wait for the read.
TEST_F(HostAheadTest, OthersDemoteWhileOneIsReadAhead) {
  start([](CudaEngineConfig& config) { config.host_headroom = 0.5; });
  allocate(11);
  evict(8);
  std::atomic<bool> is_let_go{false};
  faults_->add({.direction = IoDirection::kRead, .count = 1, .kind = FaultKind::kCall, .call = [&] {
                  while (!is_let_go) std::this_thread::yield();
                }});
  need_in_order();
  EXPECT_TRUE(eventually([&] { return faults_->pieces(IoDirection::kRead) >= 1; }));
  std::atomic<int> left{0};
  std::jthread evictor([&] {
    for (const uint64_t index : {8u, 9u, 10u}) left += engine_->evict(tensors_[index]) ? 1 : 0;
  });
  EXPECT_TRUE(eventually([&] { return left == 3; }));
  EXPECT_EQ(faults_->pieces(IoDirection::kRead), 1u);
  is_let_go = true;
  evictor.join();
  follow(nullptr);
  check_all();
}

// A cold extent that the thread sees may be freed and allocated anew before the thread claims it.
// This is for ThreadSanitizer above all.
TEST_F(HostAheadTest, ReadAheadWhileTensorsComeAndGo) {
  start([](CudaEngineConfig& config) { config.host_headroom = 0.5; });
  allocate(8);
  evict(8);
  std::unordered_map<const Extent*, uint64_t> uses;
  for (uint64_t index = 0; index < tensors_.size(); ++index) uses[extent(index)] = index;
  for (uint64_t round = 0; round < 20; ++round) {
    const uint64_t index = round % tensors_.size();
    follow([uses] { return uses; });
    engine_->free(tensors_[index]);
    tensors_[index] = engine_->allocate(kBytes, stream_);
    write(index);
    ASSERT_TRUE(engine_->evict(tensors_[index]));
  }
  check_all();
}

// After a read ahead that failed, the op that needs the bytes reads them.
TEST_F(HostAheadTest, FailedReadAheadIsGivenUp) {
  start([](CudaEngineConfig& config) { config.host_headroom = 0.5; });
  allocate(8);
  evict(8);
  faults_->add({.direction = IoDirection::kRead, .count = 3, .error_number = EIO});
  need_in_order();
  EXPECT_TRUE(eventually([&] { return faults_->injected() >= 3; }));
  follow(nullptr);
  check_all();
  EXPECT_EQ(engine_->check_books(), "");
}

TEST_F(HostAheadTest, ThreadKeepsHostMemoryFree) {
  start([](CudaEngineConfig& config) { config.host_headroom = 0.5; });
  allocate(8);
  for (uint64_t index = 0; index < 8; ++index) {
    ASSERT_TRUE(engine_->evict(tensors_[index]));
    // Without the thread all of host memory would be in use.
    EXPECT_TRUE(eventually([&] {
      return engine_->device().host()->stats().asked_bytes <= (kHostTensors - 1) * kBytes;
    })) << index;
  }
  EXPECT_EQ(engine_->check_books(), "");
  check_all();
}

}  // namespace
}  // namespace tencache
