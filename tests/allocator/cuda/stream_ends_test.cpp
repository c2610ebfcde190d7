// SPDX-License-Identifier: Apache-2.0
//
// StreamNumbers where the program destroys streams and the end is told: a last mark covers the
// stream's work, nobody gives its handle to the driver, and a new stream of that handle waits for
// the old one. The simulated driver ends the process at a call that names a destroyed stream.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "platform/cuda/stream_numbers.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/eventually.h"

namespace tencache {
namespace {

// A handle that is never given to the driver.
CUstream handle(size_t number) { return reinterpret_cast<CUstream>((number + 1) * 0x40); }

class StreamEndsTest : public ::testing::Test {
 protected:
  explicit StreamEndsTest(const SimulatedDriverConfig& config = {}) : driver_(config) {
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_.api(), 0);
    EXPECT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    context_.emplace(driver_.api());
    marks_.emplace(*gpu_);
    numbers_.emplace(*gpu_, *marks_);
  }
  ~StreamEndsTest() override {
    driver_.wait_until_idle();
    numbers_.reset();
    for (const CUstream stream : streams_) driver_.api().cuStreamDestroy(stream);
    marks_.reset();
    context_.reset();
    gpu_.reset();
    EXPECT_EQ(driver_.leaks(), "");
  }
  CUstream make_stream() {
    CUstream stream = nullptr;
    EXPECT_EQ(driver_.api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    return streams_.emplace_back(stream);
  }
  void destroy(CUstream stream) {
    std::erase(streams_, stream);
    StreamNumbers::end_everywhere(stream);
    EXPECT_EQ(driver_.api().cuStreamDestroy(stream), CUDA_SUCCESS);
  }
  void launch(CUstream stream) {
    EXPECT_EQ(driver_.launch(stream, {}, [] {}), CUDA_SUCCESS);
  }
  std::vector<StreamMark> marks_of(StreamSet set) {
    std::vector<StreamMark> marks;
    const Status marked = numbers_->mark_all(set, &marks);
    EXPECT_TRUE(marked.is_ok()) << marked.message();
    return marks;
  }
  static bool are_reached(const std::vector<StreamMark>& marks) {
    return std::ranges::all_of(marks, [](const StreamMark& mark) { return mark.poll(); });
  }

  SimulatedDriver driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<StreamNumbers> numbers_;
  std::vector<CUstream> streams_;
};

class ReusedHandlesTest : public StreamEndsTest {
 protected:
  ReusedHandlesTest() : StreamEndsTest({.reuses_stream_handles = true}) {}

  /// Makes a stream that has the handle of one that was destroyed and is held.
  CUstream make_successor(StreamSet* set) {
    const CUstream old = make_stream();
    *set = numbers_->set_of(old);
    driver_.hold(old);
    destroy(old);
    const CUstream young = make_stream();
    EXPECT_EQ(young, old);
    return young;
  }
};

TEST_F(StreamEndsTest, TheLastMarkCoversTheWorkOfADestroyedStream) {
  const CUstream gone = make_stream();
  const StreamSet set = numbers_->set_of(gone);
  driver_.hold(gone);
  launch(gone);
  destroy(gone);
  EXPECT_EQ(numbers_->find_set_of(gone), kNoStreams);
  const uint64_t recorded = driver_.calls("cuEventRecord");
  for (int round = 0; round < 2; ++round) {
    const std::vector<StreamMark> marks = marks_of(set);
    ASSERT_EQ(marks.size(), 1u);
    EXPECT_FALSE(are_reached(marks));
  }
  EXPECT_EQ(driver_.calls("cuEventRecord"), recorded);
  EXPECT_EQ(numbers_->hold_back(set, marks_of(set)).code(), StatusCode::kUnavailable);
  CUevent event = nullptr;
  ASSERT_EQ(driver_.api().cuEventCreate(&event, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  EXPECT_FALSE(numbers_->record(event, set));
  driver_.api().cuEventDestroy(event);
  driver_.wait_until_idle();
  EXPECT_TRUE(marks_of(set).empty()) << "what is over needs no mark";
  const uint64_t queries = driver_.calls("cuEventQuery");
  EXPECT_TRUE(marks_of(set).empty());
  EXPECT_EQ(driver_.calls("cuEventQuery"), queries) << "nor a question";
}

TEST_F(StreamEndsTest, OthersOfTheSetAreMarkedAsBefore) {
  const CUstream gone = make_stream();
  const CUstream other = make_stream();
  const StreamSet set = numbers_->set_of(gone) | numbers_->set_of(other);
  driver_.hold(other);
  destroy(gone);
  const std::vector<StreamMark> marks = marks_of(set);
  EXPECT_FALSE(are_reached(marks));
  driver_.wait_until_idle();
  EXPECT_TRUE(are_reached(marks));
  EXPECT_EQ(marks_of(set).size(), 1u);
}

TEST_F(StreamEndsTest, OneOfManyThatShareABitMayEnd) {
  for (size_t number = 0; number < 63; ++number) (void)numbers_->set_of(handle(number));
  const CUstream gone = make_stream();
  const CUstream other = make_stream();
  for (const CUstream stream : {gone, other}) {
    EXPECT_EQ(numbers_->set_of(stream), StreamNumbers::kShared);
  }
  driver_.hold(gone);
  destroy(gone);
  const std::vector<StreamMark> marks = marks_of(StreamNumbers::kShared);
  EXPECT_EQ(marks.size(), 2u);
  EXPECT_FALSE(are_reached(marks));
  driver_.wait_until_idle();
  EXPECT_EQ(marks_of(StreamNumbers::kShared).size(), 1u);
}

TEST_F(StreamEndsTest, EveryObjectIsToldAndStreamsWithoutANumberCostNoCall) {
  std::optional<StreamNumbers> others(std::in_place, *gpu_, *marks_);
  const CUstream gone = make_stream();
  const StreamSet set = numbers_->set_of(gone);
  const StreamSet set_of_others = others->set_of(gone);
  driver_.hold(gone);
  destroy(gone);
  EXPECT_EQ(marks_of(set).size(), 1u);
  std::vector<StreamMark> marks;
  ASSERT_TRUE(others->mark_all(set_of_others, &marks).is_ok());
  EXPECT_EQ(marks.size(), 1u);
  marks.clear();
  others.reset();
  const uint64_t recorded = driver_.calls("cuEventRecord");
  destroy(make_stream());
  for (const CUstream none : {CUstream(nullptr), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    StreamNumbers::end_everywhere(none);
  }
  EXPECT_EQ(driver_.calls("cuEventRecord"), recorded);
}

TEST_F(StreamEndsTest, ARefusedMarkIsAskedForAgain) {
  for (const char* name : {"cuStreamIsCapturing", "cuEventRecord"}) {
    const CUstream gone = make_stream();
    const StreamSet set = numbers_->set_of(gone);
    driver_.hold(gone);
    driver_.fail(name, 1, CUDA_ERROR_UNKNOWN);
    destroy(gone);
    EXPECT_EQ(marks_of(set).size(), 1u) << name;
    driver_.wait_until_idle();
  }
}

TEST_F(StreamEndsTest, AStreamMayEndWhileItCaptures) {
  const CUstream gone = make_stream();
  const StreamSet set = numbers_->set_of(gone);
  driver_.set_capturing(gone, true);
  const uint64_t recorded = driver_.calls("cuEventRecord");
  destroy(gone);
  EXPECT_EQ(driver_.calls("cuEventRecord"), recorded);
  EXPECT_TRUE(marks_of(set).empty());
}

// end() waits for the thread that has begun to mark; any later one gets the last mark.
TEST_F(StreamEndsTest, NoThreadMarksAStreamThatIsGone) {
  std::atomic<StreamSet> known = kNoStreams;
  std::atomic<bool> is_done = false;
  driver_.set_latency("cuEventRecord", std::chrono::microseconds(200));
  std::vector<std::thread> markers;
  for (int count = 0; count < 3; ++count) {
    markers.emplace_back([&] {
      const CurrentContext context(driver_.api());
      while (!is_done) {
        std::vector<StreamMark> marks;
        EXPECT_TRUE(numbers_->mark_all(known, &marks).is_ok());
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    const CUstream passing = make_stream();
    known |= numbers_->set_of(passing);
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    destroy(passing);
  }
  is_done = true;
  for (std::thread& marker : markers) marker.join();
}

TEST_F(ReusedHandlesTest, ANewStreamOfTheHandleFollowsTheOldOne) {
  StreamSet set = kNoStreams;
  const CUstream young = make_successor(&set);
  EXPECT_EQ(numbers_->find_set_of(young), kNoStreams) << "no op has used it";
  EXPECT_EQ(numbers_->set_of(young), set);
  EXPECT_EQ(numbers_->find_set_of(young), set);
  launch(young);
  EXPECT_TRUE(eventually([&] { return driver_.is_stuck(); })) << "it waits for the old one";
  const std::vector<StreamMark> marks = marks_of(set);
  EXPECT_EQ(marks.size(), 1u) << "that of the new one covers both";
  EXPECT_FALSE(are_reached(marks));
  driver_.wait_until_idle();
  EXPECT_TRUE(are_reached(marks));
  const uint64_t waits = driver_.calls("cuStreamWaitEvent");
  EXPECT_EQ(numbers_->set_of(young), set);
  EXPECT_EQ(driver_.calls("cuStreamWaitEvent"), waits) << "once is enough";
}

TEST_F(ReusedHandlesTest, ANewStreamThatCapturesIsWaitedForOnTheHost) {
  StreamSet set = kNoStreams;
  const CUstream young = make_successor(&set);
  driver_.set_capturing(young, true);
  std::thread caller([&] { EXPECT_EQ(numbers_->set_of(young), set); });
  EXPECT_TRUE(eventually([&] { return driver_.calls("cuEventSynchronize") > 0; }));
  driver_.let_go();
  caller.join();
  EXPECT_EQ(driver_.calls("cuStreamWaitEvent"), 0u);
  driver_.set_capturing(young, false);
}

TEST_F(ReusedHandlesTest, ALargerTableKnowsWhichStreamsHaveEnded) {
  StreamSet set = kNoStreams;
  const CUstream young = make_successor(&set);
  for (size_t number = 0; number < 1000; ++number) (void)numbers_->set_of(handle(number));
  EXPECT_EQ(numbers_->find_set_of(young), kNoStreams);
  EXPECT_EQ(numbers_->set_of(young), set);
  EXPECT_EQ(driver_.calls("cuStreamWaitEvent"), 1u);
}

TEST_F(ReusedHandlesTest, AHandleMayEndAgainAndAgain) {
  const CUstream first = make_stream();
  const StreamSet set = numbers_->set_of(first);
  driver_.hold(first);
  destroy(first);
  for (int round = 0; round < 3; ++round) {
    const CUstream next = make_stream();
    ASSERT_EQ(next, first);
    EXPECT_EQ(numbers_->set_of(next), set);
    launch(next);
    destroy(next);
    const std::vector<StreamMark> marks = marks_of(set);
    EXPECT_EQ(marks.size(), 1u);
    EXPECT_FALSE(are_reached(marks)) << "the first one is held";
  }
  destroy(make_stream());  // of the same handle, without any op
  EXPECT_FALSE(are_reached(marks_of(set)));
  driver_.wait_until_idle();
  EXPECT_TRUE(marks_of(set).empty());
}

}  // namespace
}  // namespace tencache
