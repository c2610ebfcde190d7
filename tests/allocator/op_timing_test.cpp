// SPDX-License-Identifier: Apache-2.0
//
// OpTiming, through the gate: a tick's time begins after everything it waits for, ends where the
// next tick of the stream begins, and leaves out waits for memory in between. Nothing is noted in a
// stream that may be gone. The timer is a fake that records its calls.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/gate/gate.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 64 * kKiB;
constexpr StreamSet kStream = 2;
constexpr StreamSet kOtherStream = 4;

class FakeTimer final : public OpTimer {
 public:
  Span* begin(const Span& of) override {
    note("begin", of.op);
    return refuses ? nullptr : new Span(of);
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

class OpTimingTest : public ::testing::Test {
 protected:
  OpTimingTest() {
    Parts parts = gate_parts(engine_, recorder_, stats_);
    parts.op_timer = &timer_;
    gate_.emplace(parts);
    tensor_ = engine_.allocate(kBytes);
  }
  ~OpTimingTest() override {
    open(99);  // ends the last timed op
    timer_.refuses = true;
    close();
  }
  // Opens an op. Every op of these tests is of a kind of its own, and so is timed.
  void open(uint32_t op, StreamSet streams = kStream) {
    gate_->open(op, std::vector<Access>{{tensor_, AccessMode::kRead}}, streams);
  }
  void open_without_extents(uint32_t op) { gate_->open(op, {}, kStream); }
  void close() { gate_->close(); }
  void wait_for_room(StreamSet stream = kStream) {
    gate_->begin_wait_for_room(stream);
    gate_->end_wait_for_room();
  }

  TestEngine engine_;
  Recorder recorder_;
  Stats stats_;
  FakeTimer timer_;
  std::optional<Gate> gate_;
  char* tensor_ = nullptr;
};

TEST_F(OpTimingTest, FromAnOpToTheNextTick) {
  open(1);
  EXPECT_EQ(timer_.take(), "begin1 ");
  close();
  EXPECT_EQ(timer_.take(), "end1 ");
  // An op that names no extent is no tick, and its work belongs to the tick before it.
  open_without_extents(2);
  close();
  EXPECT_EQ(timer_.take(), "");
  open(3);
  EXPECT_EQ(timer_.take(), "end1 finish1 begin3 ");
  close();
}

TEST_F(OpTimingTest, AnOuterOpEndsWhereAnInnerTickBegins) {
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

// The first stream may be destroyed before a tick begins in the other one.
TEST_F(OpTimingTest, AnotherStreamsTickNotesNothingInTheFirst) {
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

// A forward thread waits while autograd's thread queues the backward pass in the same stream. Work
// queued there before the first backward tick belongs to the forward thread's last tick.
TEST_F(OpTimingTest, TheNextTickMayBeAnotherThreads) {
  open(1);
  close();
  EXPECT_EQ(timer_.take(), "begin1 end1 ");
  std::thread([this] {
    open(2);
    EXPECT_EQ(timer_.take(), "end1 finish1 begin2 ");
    close();
    open(3);
    close();
    EXPECT_EQ(timer_.take(), "end2 end2 finish2 begin3 end3 ");
  }).join();
  open(4);
  EXPECT_EQ(timer_.take(), "end3 finish3 begin4 ") << "the thread has gone, its last tick has not";
  close();
}

TEST_F(OpTimingTest, AnotherThreadsTickWithinAnOpLeavesItWithoutATime) {
  open(1);
  std::thread([this] {
    open(2);
    close();
  }).join();
  timer_.take();
  close();
  EXPECT_EQ(timer_.take(), "drop1 ");
  open(3);
  EXPECT_EQ(timer_.take(), "end2 finish2 begin3 ");
  close();
}

// A side stream is idle between its ticks. No tick's time may include that.
TEST_F(OpTimingTest, AnotherThreadsTickInAnotherStreamLeavesTheEndWhereItIs) {
  open(1);
  close();
  std::thread([this] {
    open(2, kOtherStream);
    close();
  }).join();
  EXPECT_EQ(timer_.take(), "begin1 end1 finish1 begin2 end2 ");
  open(3);
  EXPECT_EQ(timer_.take(), "finish2 begin3 ");
  close();
}

TEST_F(OpTimingTest, OneSpanLiesLooseAtATime) {
  open(1);
  std::thread([this] {
    open(2, kOtherStream);
    close();
  }).join();
  EXPECT_EQ(timer_.take(), "begin1 begin2 end2 ");
  close();
  EXPECT_EQ(timer_.take(), "end1 finish2 ");
}

// An op that allocates its output may wait for room, while the device runs dry.
TEST_F(OpTimingTest, AWaitCutsASpanInTwo) {
  open(1);
  wait_for_room();
  EXPECT_EQ(timer_.take(), "begin1 end1 finish1 begin1 ");
  close();
  EXPECT_EQ(timer_.take(), "end1 ");
  // Ops without extents wait too, and work they queue afterwards belongs to the tick before them.
  wait_for_room();
  EXPECT_EQ(timer_.take(), "end1 finish1 begin1 end1 ");
  open(2);
  EXPECT_EQ(timer_.take(), "end1 finish1 begin2 ");
  close();
}

TEST_F(OpTimingTest, AWaitOfAnotherThreadCutsWhatLiesLoose) {
  open(1);
  close();
  timer_.take();
  std::thread([this] { wait_for_room(); }).join();
  EXPECT_EQ(timer_.take(), "end1 finish1 begin1 end1 ");
}

TEST_F(OpTimingTest, AWaitInAnotherStreamLeavesTheEndWhereItIs) {
  open(1);
  close();
  timer_.take();
  wait_for_room(kOtherStream);
  EXPECT_EQ(timer_.take(), "finish1 ");
}

TEST_F(OpTimingTest, FetchesAreAwaitedBeforeItBegins) {
  open(1);
  close();
  ASSERT_TRUE(engine_.evict(tensor_));
  timer_.take();
  open(2);
  EXPECT_TRUE(engine_.is_resident(tensor_));
  EXPECT_EQ(timer_.take(), "end1 finish1 begin2 ") << "the wait between the last two is neither's";
  close();
}

TEST_F(OpTimingTest, ARefusedCallIsAnOpWithoutATime) {
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
  EXPECT_EQ(timer_.take(), "begin3 end3 drop3 ");
  close();
  timer_.refuses = false;
  open(4);
  close();
  timer_.refuses = true;
  open(5);
  EXPECT_EQ(timer_.take(), "begin4 end4 end4 drop4 begin5 ");
  close();
}

TEST_F(OpTimingTest, AThreadThatEndsGivesItsOpenSpanBack) {
  std::thread([this] { open(1); }).join();
  EXPECT_EQ(timer_.take(), "begin1 drop1 ");
}

}  // namespace
}  // namespace tencache
