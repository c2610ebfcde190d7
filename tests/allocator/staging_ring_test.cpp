// SPDX-License-Identifier: Apache-2.0
//
// Buffers between pageable memory and a device: which thread gets which, which thread waits, and a
// copy in overlapping pieces, with a thread in the device's place.
#include "tier/staging_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "support/child_process.h"
#include "support/fake_pinner.h"
#include "support/random.h"

namespace tencache {
namespace {

std::unique_ptr<StagingRing> make_ring(const StagingRingConfig& config) {
  Result<std::unique_ptr<StagingRing>> ring = StagingRing::create(config);
  EXPECT_TRUE(ring.is_ok()) << ring.status().message();
  return ring.is_ok() ? std::move(ring).value() : nullptr;
}

TEST(StagingRingTest, LendsEachBufferOnce) {
  FakePinner pinner;
  const auto ring = make_ring({.buffer_bytes = 5000, .buffer_count = 3, .pinner = &pinner});
  EXPECT_EQ(ring->buffer_bytes(), 8192U);
  EXPECT_TRUE(ring->is_pinned());
  EXPECT_EQ(pinner.pinned_bytes(), 3 * 8192U);
  std::vector<StagingBuffer> buffers;
  for (int i = 0; i < 3; ++i) {
    buffers.push_back(ring->acquire());
    EXPECT_EQ(buffers.back().bytes, 8192U);
    EXPECT_TRUE(pinner.is_pinned(buffers.back().memory, 8192));
    memset(buffers.back().memory, i, 8192);
  }
  EXPECT_FALSE(ring->try_acquire().has_value());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(buffers[static_cast<size_t>(i)].memory[0], i);
    EXPECT_EQ(buffers[static_cast<size_t>(i)].memory[8191], i);
  }
  ring->release(buffers[1]);
  const std::optional<StagingBuffer> again = ring->try_acquire();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->memory, buffers[1].memory);
  for (const StagingBuffer& buffer : buffers) ring->release(buffer);
}

TEST(StagingRingTest, WaitsForABuffer) {
  const auto ring = make_ring({.buffer_bytes = 4096, .buffer_count = 1});
  const StagingBuffer held = ring->acquire();
  std::atomic<bool> has_buffer{false};
  std::thread waiting([&] {
    const StagingBuffer buffer = ring->acquire();
    has_buffer = true;
    ring->release(buffer);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_buffer);
  ring->release(held);
  waiting.join();
  EXPECT_TRUE(has_buffer);
}

TEST(StagingRingTest, SaysThatItIsNotPinned) {
  FakePinner pinner;
  pinner.refuse_after(0);
  testing::internal::CaptureStderr();
  const auto ring = make_ring({.buffer_bytes = 4096, .pinner = &pinner});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(ring->is_pinned());
  EXPECT_EQ(ring->pin_refusal(), "Cannot pin memory: the test refuses.");
  EXPECT_NE(log.find(ring->pin_refusal()), std::string::npos) << log;
  ring->release(ring->acquire());

  const auto without_device = make_ring({.buffer_bytes = 4096});
  EXPECT_FALSE(without_device->is_pinned());
  EXPECT_NE(without_device->pin_refusal(), "");
}

TEST(StagingRingTest, NoMemoryIsAnError) {
  const Result<std::unique_ptr<StagingRing>> ring =
      StagingRing::create({.buffer_bytes = uint64_t{1} << 60, .buffer_count = 2});
  ASSERT_FALSE(ring.is_ok());
  EXPECT_EQ(ring.status().code(), StatusCode::kOutOfMemory) << ring.status().message();
}

// One thread fills the buffers; another is the device and empties them in order.
TEST(StagingRingTest, ACopyInPiecesArrives) {
  constexpr uint64_t kBytes = 1 << 20;
  constexpr uint64_t kPiece = 16 << 10;
  const auto ring = make_ring({.buffer_bytes = kPiece});
  std::vector<char> source(kBytes);
  std::vector<char> target(kBytes);
  Random random;
  random.fill(source.data(), kBytes);

  Mutex mutex;
  CondVar changed;
  std::deque<StagingBuffer> on_the_way;
  std::thread device([&] {
    for (uint64_t offset = 0; offset < kBytes; offset += kPiece) {
      StagingBuffer buffer;
      {
        MutexLock lock(mutex);
        while (on_the_way.empty()) changed.wait(mutex);
        buffer = on_the_way.front();
        on_the_way.pop_front();
      }
      memcpy(target.data() + offset, buffer.memory, kPiece);
      ring->release(buffer);
    }
  });
  for (uint64_t offset = 0; offset < kBytes; offset += kPiece) {
    const StagingBuffer buffer = ring->acquire();
    memcpy(buffer.memory, source.data() + offset, kPiece);
    MutexLock lock(mutex);
    on_the_way.push_back(buffer);
    changed.notify_one();
  }
  device.join();
  EXPECT_EQ(memcmp(source.data(), target.data(), kBytes), 0);
}

TEST(StagingRingTest, AForkedChildUnpinsNothing) {
  FakePinner pinner;
  auto ring = make_ring({.buffer_bytes = 4096, .pinner = &pinner});
  const int outcome = run_in_child([&] {
    ring.reset();
    EXPECT_EQ(pinner.pinned_bytes(), 2 * 4096U);
  });
  EXPECT_EQ(outcome, 0);
}

TEST(StagingRingDeathTest, RefusesWhatItDidNotLend) {
  const auto ring = make_ring({.buffer_bytes = 4096});
  StagingBuffer buffer = ring->acquire();
  ring->release(buffer);
  EXPECT_DEATH(ring->release(buffer), "released twice");
  buffer.memory += 1;
  EXPECT_DEATH(ring->release(buffer), "not a buffer of this ring");
  buffer.memory -= 4097;
  EXPECT_DEATH(ring->release(buffer), "not a buffer of this ring");
}

}  // namespace
}  // namespace tencache
