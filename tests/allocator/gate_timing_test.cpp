// SPDX-License-Identifier: Apache-2.0
//
// Between which moments the gate has an op timed: after all that the op waits for, to the begin of
// the thread's next tick, without what the thread waited for memory in between; and that nothing is
// noted in a stream that may be gone. The timer is a fake that writes down what it is told.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/gate.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 64 * kKiB;
constexpr StreamSet kStream = 2;
constexpr StreamSet kOtherStream = 4;

class FakeTimer final : public OpTimer {
 public:
  Span* begin(uint32_t op, uint64_t begin_ticks, StreamSet streams) override {
    note("begin", op);
    return refuses ? nullptr : new Span{streams, op, begin_ticks};
  }
  bool begin_again(Span& span) override {
    note("again", span.op);
    return !refuses;
  }
  bool end(Span& span) override {
    note("end", span.op);
    return !refuses;
  }
  void finish(Span* span) override {
    note("finish", span->op);
    delete span;
  }
  void drop(Span* span) override {
    note("drop", span->op);
    delete span;
  }
  std::vector<OpTime> take_finished() override { return {}; }

  void note(const char* what, uint32_t op) { said += what + std::to_string(op) + ' '; }
  std::string take() { return std::exchange(said, ""); }

  std::string said;
  bool refuses = false;
};

class GateTimingTest : public ::testing::Test {
 protected:
  GateTimingTest() {
    Gate::Config config;
    config.timer = &timer_;
    gate_.emplace(engine_->heap(), engine_->migrations(), nullptr, recorder_, stats_, config);
    tensor_ = engine_.allocate(kBytes);
  }
  ~GateTimingTest() override {
    open(99);  // what is timed last ends
    timer_.refuses = true;
    close();
  }
  // Every op of these tests is of a kind of its own, and so is timed.
  void open(uint32_t op, StreamSet streams = kStream) {
    gate_->open(op, std::vector<Access>{{tensor_, AccessMode::kRead}}, streams);
  }
  void open_without_extents(uint32_t op) { gate_->open(op, {}, kStream); }
  void close() { gate_->close(); }
  void wait_for_room() {
    gate_->begin_wait_for_room();
    gate_->end_wait_for_room(1000);
  }

  TestEngine engine_;
  Recorder recorder_;
  Stats stats_;
  FakeTimer timer_;
  std::optional<Gate> gate_;
  char* tensor_ = nullptr;
};

TEST_F(GateTimingTest, FromAnOpToTheNextTick) {
  open(1);
  EXPECT_EQ(timer_.take(), "begin1 ");
  close();
  EXPECT_EQ(timer_.take(), "end1 ");
  // What names no extent is no tick, and its work counts to the tick before it.
  open_without_extents(2);
  close();
  EXPECT_EQ(timer_.take(), "");
  open(3);
  EXPECT_EQ(timer_.take(), "end1 finish1 begin3 ");
  close();
}

TEST_F(GateTimingTest, AnOuterOpEndsWhereAnInnerTickBegins) {
  open(1);
  open_without_extents(2);
  open(3);
  EXPECT_EQ(timer_.take(), "begin1 end1 finish1 begin3 ");
  close();
  EXPECT_EQ(timer_.take(), "end3 ");
  close();
  close();
  EXPECT_EQ(timer_.take(), "") << "the inner one has closed, and goes on to the next tick";
  open(4);
  EXPECT_EQ(timer_.take(), "end3 finish3 begin4 ");
  close();
}

// The first stream may be destroyed by then.
TEST_F(GateTimingTest, AnotherStreamsTickNotesNothingInTheFirst) {
  open(1);
  close();
  timer_.take();
  open(2, kOtherStream);
  EXPECT_EQ(timer_.take(), "finish1 begin2 ");
  open(3, kStream);
  EXPECT_EQ(timer_.take(), "drop2 begin3 ") << "it is open, so nobody knows where it ends";
  close();
  close();
}

// A forward thread waits while autograd's thread queues the backward pass in the same stream.
TEST_F(GateTimingTest, WhatAnotherThreadQueuesMeanwhileIsItsOwn) {
  open(1);
  close();
  EXPECT_EQ(timer_.take(), "begin1 end1 ");
  std::thread([this] {
    open(2);
    close();
    open(3);
    close();
    EXPECT_EQ(timer_.take(), "begin2 end2 end2 finish2 begin3 end3 ");
  }).join();
  timer_.take();  // the thread's last span goes with it
  open(4);
  EXPECT_EQ(timer_.take(), "finish1 begin4 ") << "as it was when its op closed";
  close();
  open(5);
  EXPECT_EQ(timer_.take(), "end4 end4 finish4 begin5 ") << "the stream is this thread's again";
  close();
}

TEST_F(GateTimingTest, AnotherThreadsTickWithinAnOpLeavesItWithoutATime) {
  open(1);
  std::thread([this] {
    open(2);
    close();
  }).join();
  timer_.take();
  close();
  EXPECT_EQ(timer_.take(), "drop1 ");
  open(3);
  EXPECT_EQ(timer_.take(), "begin3 ");
  close();
}

TEST_F(GateTimingTest, AnotherThreadsTickInAnotherStreamChangesNothing) {
  open(1);
  close();
  std::thread([this] {
    open(2, kOtherStream);
    close();
  }).join();
  timer_.take();
  open(3);
  EXPECT_EQ(timer_.take(), "end1 finish1 begin3 ");
  close();
}

// An op that allocates what it is about to fill may wait for room, and the device runs dry.
TEST_F(GateTimingTest, WaitingForRoomIsNotComputing) {
  open(1);
  wait_for_room();
  EXPECT_EQ(timer_.take(), "begin1 again1 ");
  close();
  EXPECT_EQ(timer_.take(), "end1 ");
  wait_for_room();
  EXPECT_EQ(timer_.take(), "finish1 ") << "as it was when its op closed";
  open(2);
  EXPECT_EQ(timer_.take(), "begin2 ");
  close();
}

TEST_F(GateTimingTest, FetchesAreAwaitedBeforeItBegins) {
  open(1);
  close();
  ASSERT_TRUE(engine_.evict(tensor_));
  timer_.take();
  open(2);
  EXPECT_TRUE(engine_.is_resident(tensor_));
  EXPECT_EQ(timer_.take(), "end1 finish1 begin2 ") << "the wait between the last two is neither's";
  close();
}

TEST_F(GateTimingTest, ARefusedCallIsAnOpWithoutATime) {
  timer_.refuses = true;
  open(1);
  close();
  EXPECT_EQ(timer_.take(), "begin1 ");
  timer_.refuses = false;
  open(2);
  timer_.refuses = true;
  close();
  EXPECT_EQ(timer_.take(), "begin2 end2 drop2 ");
  timer_.refuses = false;
  open(3);
  timer_.refuses = true;
  wait_for_room();
  EXPECT_EQ(timer_.take(), "begin3 again3 drop3 ");
  close();
  timer_.refuses = false;
  open(4);
  close();
  timer_.refuses = true;
  open(5);
  EXPECT_EQ(timer_.take(), "begin4 end4 end4 drop4 begin5 ");
  close();
}

TEST_F(GateTimingTest, AThreadThatEndsGivesItsSpanBack) {
  std::thread([this] {
    open(1);
    close();
  }).join();
  EXPECT_EQ(timer_.take(), "begin1 end1 drop1 ");
}

}  // namespace
}  // namespace tencache
