// SPDX-License-Identifier: Apache-2.0
//
// Rings that wrap around, snapshots while their thread appends, the registry of names.
#include "learn/recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace tencache {
namespace {

/// An event whose every field holds its number, so that a torn event is noticed.
Event numbered(uint64_t number) {
  return {number, number * 3, number * 5, static_cast<uint32_t>(number * 7),
          static_cast<EventKind>(number % 7)};
}

void expect_run(const std::vector<Event>& events, uint64_t first) {
  for (size_t index = 0; index < events.size(); ++index) {
    const Event expected = numbered(first + index);
    const Event& event = events[index];
    ASSERT_EQ(event.at, expected.at) << index;
    ASSERT_EQ(event.extent_id, expected.extent_id) << index;
    ASSERT_EQ(event.bytes, expected.bytes) << index;
    ASSERT_EQ(event.op, expected.op) << index;
    ASSERT_EQ(event.kind, expected.kind) << index;
  }
}

TEST(RecorderTest, KeepsAllEventsUntilTheRingIsFull) {
  Recorder recorder;
  EventRing* ring = recorder.acquire_ring();
  EXPECT_TRUE(recorder.snapshot()[0].events.empty());
  for (uint64_t number = 0; number < 100; ++number) ring->append(numbered(number));
  const std::vector<ThreadEvents> threads = recorder.snapshot();
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads[0].thread_index, 0u);
  EXPECT_EQ(threads[0].lost_count, 0u);
  ASSERT_EQ(threads[0].events.size(), 100u);
  expect_run(threads[0].events, 0);
}

TEST(RecorderTest, KeepsTheNewestWhenTheRingWrapsAround) {
  Recorder recorder;
  EventRing* ring = recorder.acquire_ring();
  const uint64_t count = 2 * kRingEvents + 1234;
  for (uint64_t number = 0; number < count; ++number) ring->append(numbered(number));
  const ThreadEvents thread = recorder.snapshot()[0];
  // The place of the next event may be half written at any time, so a snapshot has one event less
  // than the ring holds.
  ASSERT_EQ(thread.events.size(), kRingEvents - 1);
  EXPECT_EQ(thread.lost_count, count - kRingEvents + 1);
  expect_run(thread.events, thread.lost_count);
}

// A program may name the tensors of every step.
TEST(RecorderTest, NamesOfFreedExtentsAreForgottenInTime) {
  Recorder recorder;
  EXPECT_FALSE(recorder.has_names());
  recorder.name_extent(1, "weights");
  EXPECT_TRUE(recorder.has_names());
  const uint64_t last_id = kRingEvents + 100;
  for (uint64_t id = 2; id <= last_id; ++id) {
    recorder.name_extent(id, "activation");
    recorder.end_name(id);
  }
  recorder.end_name(last_id + 1);  // it has none
  const auto names = recorder.extent_names();
  EXPECT_EQ(names.size(), kRingEvents + 1);
  EXPECT_EQ(names.at(1), "weights") << "it is in use";
  EXPECT_TRUE(names.contains(last_id));
  EXPECT_FALSE(names.contains(2));
}

TEST(RecorderTest, SnapshotsWhileTheThreadAppendsAreWhole) {
  Recorder recorder;
  EventRing* ring = recorder.acquire_ring();
  std::atomic<bool> is_over{false};
  std::jthread writer([&] {
    for (uint64_t number = 0; !is_over.load(std::memory_order_relaxed); ++number) {
      ring->append(numbered(number));
    }
  });
  uint64_t seen_end = 0;
  int snapshots = 0;
  while (snapshots < 50 || seen_end < 3 * kRingEvents) {
    const uint64_t appended_before = ring->count();
    const ThreadEvents thread = recorder.snapshot()[0];
    const uint64_t appended_after = ring->count();
    expect_run(thread.events, thread.lost_count);
    if (HasFatalFailure()) break;
    const uint64_t end = thread.lost_count + thread.events.size();
    EXPECT_GE(end, appended_before);
    EXPECT_LE(end, appended_after);
    EXPECT_GE(end, seen_end);
    seen_end = end;
    ++snapshots;
  }
  is_over.store(true);
}

TEST(RecorderTest, ReturnedRingIsReusedAndKeepsItsEvents) {
  Recorder recorder;
  EventRing* first = recorder.acquire_ring();
  EventRing* second = recorder.acquire_ring();
  EXPECT_NE(first, second);
  first->append(numbered(0));
  recorder.release_ring(first);
  EventRing* third = recorder.acquire_ring();
  EXPECT_EQ(third, first);
  third->append(numbered(1));
  const std::vector<ThreadEvents> threads = recorder.snapshot();
  ASSERT_EQ(threads.size(), 2u);
  ASSERT_EQ(threads[0].events.size(), 2u);
  expect_run(threads[0].events, 0);
  EXPECT_EQ(threads[1].thread_index, 1u);
}

TEST(RecorderTest, OpsOfAllThreadsAreCounted) {
  Recorder recorder;
  EXPECT_EQ(recorder.op_count(), 0u);
  EventRing* first = recorder.acquire_ring();
  EventRing* second = recorder.acquire_ring();
  first->count_op();
  second->count_op();
  recorder.release_ring(first);
  EXPECT_EQ(recorder.op_count(), 2u) << "a thread that has ended counts, too";
  recorder.acquire_ring()->count_op();
  EXPECT_EQ(recorder.op_count(), 3u);
}

TEST(RecorderTest, NamesHaveOneNumberEach) {
  Recorder recorder;
  const uint32_t mm = recorder.register_op("aten::mm");
  const uint32_t add = recorder.register_op("aten::add");
  EXPECT_EQ(mm, 1u);
  EXPECT_EQ(add, 2u);
  EXPECT_EQ(recorder.register_op("aten::mm"), mm);
  EXPECT_EQ(recorder.op_name(mm), "aten::mm");
  EXPECT_EQ(recorder.op_name(0), "");
  EXPECT_EQ(recorder.op_name(3), "");
}

TEST(RecorderTest, ThreadsAgreeOnNumbers) {
  Recorder recorder;
  std::vector<std::vector<uint32_t>> numbers(4);
  {
    std::vector<std::jthread> threads;
    for (std::vector<uint32_t>& mine : numbers) {
      threads.emplace_back([&recorder, &mine] {
        for (int op = 0; op < 200; ++op) {
          mine.push_back(recorder.register_op("op" + std::to_string(op)));
        }
      });
    }
  }
  for (const std::vector<uint32_t>& others : numbers) EXPECT_EQ(others, numbers[0]);
  for (size_t op = 0; op < 200; ++op) {
    EXPECT_EQ(recorder.op_name(numbers[0][op]), "op" + std::to_string(op));
  }
}

TEST(RecorderTest, KindsHaveDistinctNames) {
  std::vector<std::string_view> names;
  for (uint8_t kind = 0; kind < 8; ++kind) {
    names.push_back(event_kind_name(static_cast<EventKind>(kind)));
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{"op_begin", "op_end", "read", "write", "allocate",
                                                  "free", "step", "wait"}));
}

}  // namespace
}  // namespace tencache
