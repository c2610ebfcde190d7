// SPDX-License-Identifier: Apache-2.0
//
// EventTimer over the simulated driver: a span is as long as the device's work between its moments.
// A stream that captures a graph, is gone or is refused a call is not timed and not harmed. Memory
// is bounded and events are reused. The last test has a whole engine: in the learned period, ops
// that are only queued have the device's times, however fast the host is.
#include "engine/gate/event_timer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "support/cuda/simulated_streams_fixture.h"
#include "support/cuda/test_cuda_engine.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

class EventTimerTest : public SimulatedStreamsFixture {
 protected:
  EventTimerTest() {
    start();
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(api(), 0);
    EXPECT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    marks_.emplace(*gpu_);
    numbers_.emplace(*gpu_, *marks_);
    timer_.emplace(*gpu_, *numbers_);
    stream_ = stream();
  }
  ~EventTimerTest() override {
    driver_->wait_until_idle();
    timer_.reset();
    numbers_.reset();
    marks_.reset();
    gpu_.reset();
  }
  OpTimer::Span* begin(CUstream stream, uint32_t op = 1) {
    return timer_->begin({numbers_->set_of(stream), op, ++begun_});
  }
  // Times a whole span with one kernel in it. Returns false when the span was refused.
  bool time(CUstream stream, uint32_t op, milliseconds duration) {
    OpTimer::Span* span = begin(stream, op);
    if (span == nullptr) return false;
    launch(stream, duration, [] {});
    const bool has_ended = timer_->end(*span);
    if (has_ended) {
      timer_->finish(span);
    } else {
      timer_->drop(span);
    }
    return has_ended;
  }

  std::unique_ptr<Gpu> gpu_;
  std::optional<StreamMarks> marks_;
  std::optional<StreamNumbers> numbers_;
  std::optional<EventTimer> timer_;
  CUstream stream_ = nullptr;
  uint64_t begun_ = 0;
};

// Work queued behind a held stream is timed by the device alone, however slow the host is.
TEST_F(EventTimerTest, SpansAreAsLongAsTheirWork) {
  driver_->hold(stream_);
  EXPECT_TRUE(time(stream_, 1, milliseconds(30)));
  OpTimer::Span* span = begin(stream_, 2);
  ASSERT_NE(span, nullptr);
  launch(stream_, milliseconds(10), [] {});
  EXPECT_TRUE(timer_->end(*span));
  launch(stream_, milliseconds(20), [] {});
  EXPECT_TRUE(timer_->end(*span)) << "it goes on to here";
  launch(stream_, milliseconds(15), [] {});
  timer_->finish(span);
  EXPECT_TRUE(timer_->take_finished().empty()) << "nothing has run yet, and nobody waits for it";
  driver_->wait_until_idle();
  const std::vector<OpTime> times = timer_->take_finished();
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].op, 1u);
  EXPECT_EQ(times[0].begun_at, 1u);
  EXPECT_NEAR(static_cast<double>(times[0].ns), 30e6, 3e6);
  EXPECT_EQ(times[1].op, 2u);
  EXPECT_NEAR(static_cast<double>(times[1].ns), 30e6, 3e6);
  EXPECT_TRUE(timer_->take_finished().empty()) << "each is told once";
}

// A stream that is far behind does not delay the times of others.
TEST_F(EventTimerTest, StreamsAreToldApart) {
  const CUstream other = stream();
  driver_->hold(stream_);
  EXPECT_TRUE(time(stream_, 1, milliseconds(1)));
  EXPECT_TRUE(time(other, 2, milliseconds(1)));
  EXPECT_EQ(api().cuStreamSynchronize(other), CUDA_SUCCESS);
  std::vector<OpTime> times = timer_->take_finished();
  ASSERT_EQ(times.size(), 1u);
  EXPECT_EQ(times[0].op, 2u);
  driver_->wait_until_idle();
  times = timer_->take_finished();
  ASSERT_EQ(times.size(), 1u);
  EXPECT_EQ(times[0].op, 1u);
}

TEST_F(EventTimerTest, EventsAreUsedAgainAndBounded) {
  driver_->hold(stream_);
  for (size_t index = 0; index < EventTimer::kSpansMax; ++index) {
    ASSERT_TRUE(time(stream_, 1, milliseconds(0)));
  }
  EXPECT_FALSE(time(stream_, 1, milliseconds(0))) << "all are under way";
  driver_->wait_until_idle();
  EXPECT_EQ(timer_->take_finished().size(), EventTimer::kSpansMax);
  const uint64_t created = driver_->calls("cuEventCreate");
  EXPECT_EQ(created, 2 * EventTimer::kSpansMax);
  EXPECT_TRUE(time(stream_, 1, milliseconds(0)));
  OpTimer::Span* dropped = begin(stream_);
  ASSERT_NE(dropped, nullptr);
  timer_->drop(dropped);
  EXPECT_EQ(driver_->calls("cuEventCreate"), created);
}

// Events of a span would become the graph's, and a query of them would invalidate the capture.
TEST_F(EventTimerTest, AStreamThatCapturesIsLeftAlone) {
  OpTimer::Span* span = begin(stream_);
  ASSERT_NE(span, nullptr);
  driver_->set_capturing(stream_, true);
  const uint64_t recorded = driver_->calls("cuEventRecord");
  EXPECT_EQ(begin(stream_), nullptr);
  EXPECT_FALSE(timer_->end(*span));
  timer_->drop(span);
  EXPECT_EQ(driver_->calls("cuEventRecord"), recorded);
  driver_->set_capturing(stream_, false);
  EXPECT_TRUE(time(stream_, 1, milliseconds(0)));
}

TEST_F(EventTimerTest, EveryRefusedCallIsAnOpThatIsNotTimed) {
  for (const char* name : {"cuCtxGetCurrent", "cuEventCreate", "cuEventRecord",
                           "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"}) {
    driver_->fail(name, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(begin(stream_), nullptr) << name;
  }
  driver_->fail("cuEventCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<OpTimer::Span*> spans;
  for (OpTimer::Span* span = begin(stream_); span != nullptr; span = begin(stream_)) {
    spans.push_back(span);
  }
  EXPECT_LT(spans.size(), 8u) << "those made before, until the next that is refused";
  for (OpTimer::Span* span : spans) timer_->drop(span);
  EXPECT_TRUE(time(stream_, 1, milliseconds(0)));
  driver_->wait_until_idle();
  driver_->fail("cuEventElapsedTime", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(timer_->take_finished().empty());
  EXPECT_TRUE(time(stream_, 1, milliseconds(0)));
  driver_->wait_until_idle();
  EXPECT_EQ(timer_->take_finished().size(), 1u);
}

TEST_F(EventTimerTest, AStreamThatIsGoneIsNotTimed) {
  CUstream gone = nullptr;
  ASSERT_EQ(api().cuStreamCreateWithPriority(&gone, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  EXPECT_TRUE(time(gone, 1, milliseconds(1)));
  OpTimer::Span* span = begin(gone);
  ASSERT_NE(span, nullptr);
  StreamNumbers::end_everywhere(gone);
  ASSERT_EQ(api().cuStreamDestroy(gone), CUDA_SUCCESS);
  EXPECT_FALSE(timer_->end(*span));
  timer_->drop(span);
  driver_->wait_until_idle();
  EXPECT_EQ(timer_->take_finished().size(), 1u) << "its work has ended all the same";
  EXPECT_EQ(timer_->begin({StreamNumbers::kShared, 1, 1}), nullptr);
  EXPECT_EQ(timer_->begin({kNoStreams, 1, 1}), nullptr);
}

// A whole engine with a period of kernels whose durations the host, which only queues them, cannot
// know. Every tensor has a size of its own, so that no op can stand for another.
class OpTimesTest : public ::testing::Test {
 protected:
  static constexpr size_t kTensors = 4;
  static constexpr uint64_t bytes(size_t index) { return (4 + 4 * index) * kMiB; }

  OpTimesTest() {
    engine_.emplace([this](CudaEngineConfig& config) {
      config.arm_at = 0.01;
      config.hooks.on_learned_plan = [this](const LearnedPlan& learned) {
        std::vector<uint64_t> compute_ns;
        for (const TraceOp& op : learned.period->trace.ops) compute_ns.push_back(op.compute_ns);
        MutexLock lock(mutex_);
        compute_ns_ = std::move(compute_ns);
      };
    });
    stream_ = engine_->make_stream();
    for (size_t index = 0; index < kTensors; ++index) {
      tensors_.push_back(engine_->allocate(bytes(index), stream_));
      engine_->write(stream_, tensors_.back(), bytes(index), index);
    }
  }
  ~OpTimesTest() override {
    for (char* tensor : tensors_) engine_->free(tensor);
  }

  std::vector<uint64_t> planned_ns() {
    MutexLock lock(mutex_);
    return compute_ns_;
  }

  Mutex mutex_;
  std::vector<uint64_t> compute_ns_ TENCACHE_GUARDED_BY(mutex_);  // of the last plan
  std::optional<TestCudaEngine> engine_;
  CUstream stream_ = nullptr;
  std::vector<char*> tensors_;
};

// Whether each op has the duration of its kernel. By the host's clock all but the last would have a
// millisecond.
bool are_times_of_the_device(const std::vector<uint64_t>& compute_ns) {
  for (size_t index = 0; index < compute_ns.size(); ++index) {
    const double expected_ns = 1e6 * static_cast<double>(2 + 3 * index);
    if (static_cast<double>(compute_ns[index]) < 0.99 * expected_ns) return false;
  }
  return !compute_ns.empty();
}

// A thread may spend only so much of its time on timing, and a plan that is made before all ops
// have been timed uses means for the others. So this takes several plans.
TEST_F(OpTimesTest, APeriodHasTheTimesOfTheDevice) {
  for (int step = 0; step < 500 && !are_times_of_the_device(planned_ns()); ++step) {
    for (size_t index = 0; index < kTensors; ++index) {
      engine_->op(stream_, {{tensors_[index], bytes(index), index, index == 0}},
                  milliseconds(2 + 3 * index));
      std::this_thread::sleep_for(milliseconds(1));  // less than any of the kernels takes
    }
    (*engine_)->gate().on_step();
    engine_->wait_until_idle();
  }
  const std::vector<uint64_t> compute_ns = planned_ns();
  ASSERT_EQ(compute_ns.size(), kTensors);
  EXPECT_TRUE(are_times_of_the_device(compute_ns)) << ::testing::PrintToString(compute_ns);
  EXPECT_GT((*engine_).driver().calls("cuEventElapsedTime"), 0u);
}

}  // namespace
}  // namespace tencache
