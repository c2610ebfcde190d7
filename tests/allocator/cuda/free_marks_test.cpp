// SPDX-License-Identifier: Apache-2.0
//
// FreeMarks: a thread that wants freed memory back waits for the work queued before the free and
// for no later work. Many frees share a mark; a free without a mark gets one. A stream that
// captures a graph is not waited for. Threads that free and wait at once never miss a mark.
#include "memory/cuda/free_marks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "platform/cuda/gpu.h"
#include "support/cuda/simulated_streams_fixture.h"
#include "support/eventually.h"

namespace tencache {
namespace {

class FreeMarksTest : public SimulatedStreamsFixture {
 protected:
  FreeMarksTest() { start(); }
  ~FreeMarksTest() override {
    driver_->wait_until_idle();
    marks_.reset();
    numbers_.reset();
    events_of_marks_.reset();
    gpu_.reset();
  }
  void make(uint64_t bytes_per_mark) {
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(api(), 0);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    events_of_marks_.emplace(*gpu_);
    numbers_.emplace(*gpu_, *events_of_marks_);
    marks_.emplace(*numbers_);
    bytes_per_mark_ = bytes_per_mark;
    stream_ = stream();
    owner_ = numbers_->set_of(stream_);
  }
  void launch_on_stream(std::atomic<int>& count) {
    launch(stream_, [&count] { ++count; });
  }

  std::unique_ptr<Gpu> gpu_;
  std::optional<StreamMarks> events_of_marks_;
  std::optional<StreamNumbers> numbers_;
  std::optional<FreeMarks> marks_;
  uint64_t bytes_per_mark_ = 0;
  CUstream stream_ = nullptr;
  StreamSet owner_ = kNoStreams;
};

TEST_F(FreeMarksTest, WhatIsQueuedAfterTheFreeIsNotAwaited) {
  make(1);
  std::atomic<int> done{0};
  launch_on_stream(done);
  const uint64_t number = marks_->note_free(owner_, 10, bytes_per_mark_);
  driver_->hold(stream_);
  EXPECT_TRUE(marks_->wait(owner_, number));
  EXPECT_EQ(done, 1);
  EXPECT_GT(driver_->unfinished(stream_), 0u);
  EXPECT_TRUE(marks_->is_over(owner_, number));
}

TEST_F(FreeMarksTest, WhatIsQueuedBeforeTheFreeIs) {
  make(1);
  driver_->hold(stream_);
  const uint64_t number = marks_->note_free(owner_, 10, bytes_per_mark_);
  marks_->poll();
  EXPECT_FALSE(marks_->is_over(owner_, number));
  driver_->let_go();
  EXPECT_TRUE(marks_->wait(owner_, number));
  EXPECT_EQ(driver_->unfinished(stream_), 0u);
}

// Three frees together are enough bytes for a mark; it covers those before it and none after it.
TEST_F(FreeMarksTest, FreesShareAMark) {
  make(30);
  std::vector<uint64_t> numbers;
  for (int free = 0; free < 3; ++free)
    numbers.push_back(marks_->note_free(owner_, 10, bytes_per_mark_));
  driver_->hold(stream_);
  const uint64_t later = marks_->note_free(owner_, 10, bytes_per_mark_);
  EXPECT_TRUE(marks_->wait(owner_, numbers[0]));
  for (const uint64_t number : numbers) EXPECT_TRUE(marks_->is_over(owner_, number));
  EXPECT_FALSE(marks_->is_over(owner_, later));
}

// The thread that wants memory makes the mark, which covers the work queued since.
TEST_F(FreeMarksTest, WhereNobodyWantsMemoryNoMarkIsMade) {
  make(1);
  const uint64_t number = marks_->note_free(owner_, 10, FreeMarks::kNoMark);
  EXPECT_EQ(driver_->calls("cuEventRecord"), 0u);
  driver_->hold(stream_);
  marks_->poll();
  EXPECT_EQ(driver_->calls("cuEventRecord"), 1u);
  EXPECT_FALSE(marks_->is_over(owner_, number));
  driver_->let_go();
  EXPECT_TRUE(marks_->wait(owner_, number));
}

TEST_F(FreeMarksTest, WhatNoMarkCoversGetsOne) {
  make(1000);
  const uint64_t waited_for = marks_->note_free(owner_, 10, bytes_per_mark_);
  EXPECT_FALSE(marks_->is_over(owner_, waited_for));
  EXPECT_TRUE(marks_->wait(owner_, waited_for));
  const uint64_t polled = marks_->note_free(owner_, 10, bytes_per_mark_);
  driver_->wait_until_idle();
  EXPECT_TRUE(eventually([&] {
    marks_->poll();
    return marks_->is_over(owner_, polled);
  }));
}

TEST_F(FreeMarksTest, StreamsHaveMarksOfTheirOwn) {
  make(1);
  driver_->hold(stream_);
  const uint64_t number = marks_->note_free(owner_, 10, bytes_per_mark_);
  const StreamSet other = numbers_->set_of(stream());
  const uint64_t others = marks_->note_free(other, 10, bytes_per_mark_);
  EXPECT_GT(others, number);
  EXPECT_TRUE(marks_->wait(other, others));
  EXPECT_FALSE(marks_->is_over(owner_, number));
}

TEST_F(FreeMarksTest, ASetThatIsNotOneStreamIsOver) {
  make(1);
  const StreamSet two = owner_ | numbers_->set_of(stream());
  driver_->hold(stream_);
  EXPECT_TRUE(marks_->is_over(two, marks_->note_free(two, 10, bytes_per_mark_)));
}

TEST_F(FreeMarksTest, AStreamThatCapturesIsNotWaitedFor) {
  make(1);
  driver_->set_capturing(stream_, true);
  const uint64_t number = marks_->note_free(owner_, 10, bytes_per_mark_);
  marks_->poll();
  EXPECT_FALSE(marks_->wait(owner_, number));
  driver_->set_capturing(stream_, false);
  EXPECT_TRUE(marks_->wait(owner_, number));
}

TEST_F(FreeMarksTest, ThreadsThatFreeAndWaitMissNoMark) {
  make(25);
  std::atomic<int> done{0};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([this, &done] {
      const CurrentContext context(api());
      for (int round = 0; round < 100; ++round) {
        launch_on_stream(done);
        const uint64_t number = marks_->note_free(owner_, 10, bytes_per_mark_);
        if (round % 3 == 0) marks_->poll();
        if (round % 2 == 0) {
          EXPECT_TRUE(marks_->wait(owner_, number));
        }
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(marks_->wait(owner_, marks_->note_free(owner_, 10, bytes_per_mark_)));
  EXPECT_EQ(done, 300);
}

}  // namespace
}  // namespace tencache
