// SPDX-License-Identifier: Apache-2.0
//
// StreamNumbers: every stream keeps its bit, and those beyond the 63rd share the last one; a set is
// marked as a whole or not at all; a stream that captures a graph is left alone; every refused call
// is a Status that leaves nothing behind. Threads that number the same streams agree.
#include "platform/cuda/stream_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/random.h"

namespace tencache {
namespace {

using std::chrono::milliseconds;

// A handle that is never given to the driver.
CUstream handle(size_t number) { return reinterpret_cast<CUstream>((number + 1) * 0x40); }

class StreamNumbersTest : public ::testing::Test {
 protected:
  StreamNumbersTest() {
    // A death test runs in a fresh process, because the threads of streams do not survive a fork.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_.api(), 0);
    EXPECT_TRUE(gpu.is_ok()) << gpu.status().message();
    gpu_ = std::move(gpu).value();
    context_.emplace(driver_.api());
    marks_.emplace(*gpu_);
    numbers_.emplace(*gpu_, *marks_);
  }
  ~StreamNumbersTest() override {
    driver_.wait_until_idle();
    for (const CUstream stream : streams_) driver_.api().cuStreamDestroy(stream);
    numbers_.reset();
    marks_.reset();
    context_.reset();
    gpu_.reset();
    EXPECT_EQ(driver_.leaks(), "");
  }
  CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(driver_.api().cuStreamCreateWithPriority(&stream, flags, 0), CUDA_SUCCESS);
    return streams_.emplace_back(stream);
  }
  static bool are_reached(const std::vector<StreamMark>& marks) {
    return std::all_of(marks.begin(), marks.end(), [](const StreamMark& mark) {
      const Result<bool> reached = mark.is_reached();
      EXPECT_TRUE(reached.is_ok()) << reached.status().message();
      return reached.is_ok() && reached.value();
    });
  }

  SimulatedDriver driver_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CurrentContext> context_;
  std::optional<StreamMarks> marks_;
  std::optional<StreamNumbers> numbers_;
  std::vector<CUstream> streams_;
};

TEST_F(StreamNumbersTest, TheFirst63HaveABitOfTheirOwnAndTheOthersShareOne) {
  StreamSet seen = 0;
  for (size_t number = 0; number < 63; ++number) {
    const StreamSet set = numbers_->set_of(handle(number));
    EXPECT_EQ(set & seen, 0u);
    EXPECT_TRUE(StreamNumbers::is_one_stream(set));
    seen |= set;
  }
  EXPECT_EQ(seen, ~StreamNumbers::kShared);
  // These are enough for the table to grow several times.
  for (size_t number = 63; number < 1000; ++number) {
    ASSERT_EQ(numbers_->set_of(handle(number)), StreamNumbers::kShared) << number;
  }
  EXPECT_FALSE(StreamNumbers::is_one_stream(StreamNumbers::kShared));
  EXPECT_FALSE(StreamNumbers::is_one_stream(0));
  EXPECT_FALSE(StreamNumbers::is_one_stream(3));
  for (size_t number = 0; number < 1000; ++number) {
    const StreamSet expected = number < 63 ? StreamSet{1} << number : StreamNumbers::kShared;
    ASSERT_EQ(numbers_->set_of(handle(number)), expected) << number;
  }
}

TEST_F(StreamNumbersTest, TheNullStreamIsOneOfThem) {
  const StreamSet other = numbers_->set_of(handle(0));
  const StreamSet null = numbers_->set_of(nullptr);
  EXPECT_NE(null, other);
  EXPECT_EQ(numbers_->set_of(CU_STREAM_LEGACY), null);
  EXPECT_EQ(numbers_->set_of(nullptr), null);
  std::vector<StreamMark> marks;
  ASSERT_TRUE(numbers_->mark_all(null, &marks).is_ok());
  EXPECT_EQ(marks.size(), 1u);
  EXPECT_DEATH(numbers_->set_of(CU_STREAM_PER_THREAD), "another stream on each thread");
}

TEST_F(StreamNumbersTest, ExactlyTheStreamsOfTheSetAreMarked) {
  const CUstream busy = make_stream();
  const CUstream idle = make_stream();
  const StreamSet busy_set = numbers_->set_of(busy);
  const StreamSet idle_set = numbers_->set_of(idle);
  driver_.hold(busy);
  std::vector<StreamMark> none;
  ASSERT_TRUE(numbers_->mark_all(0, &none).is_ok());
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(driver_.calls("cuEventRecord"), 0u);
  std::vector<StreamMark> of_idle;
  ASSERT_TRUE(numbers_->mark_all(idle_set, &of_idle).is_ok());
  ASSERT_EQ(of_idle.size(), 1u);
  ASSERT_TRUE(of_idle[0].wait().is_ok()) << "although the other one is busy";
  std::vector<StreamMark> of_both;
  ASSERT_TRUE(numbers_->mark_all(idle_set | busy_set, &of_both).is_ok());
  EXPECT_EQ(of_both.size(), 2u);
  EXPECT_FALSE(are_reached(of_both));
  ASSERT_TRUE(numbers_->mark_all(idle_set, &of_both).is_ok());
  EXPECT_EQ(of_both.size(), 3u) << "marks are appended";
  driver_.let_go();
  for (const StreamMark& mark : of_both) ASSERT_TRUE(mark.wait().is_ok());
  EXPECT_TRUE(are_reached(of_both));
}

TEST_F(StreamNumbersTest, TheSharedBitStandsForAllThatShareIt) {
  for (size_t number = 0; number < 63; ++number) (void)numbers_->set_of(handle(number));
  std::vector<CUstream> sharing;
  for (int number = 0; number < 3; ++number) {
    sharing.push_back(make_stream());
    EXPECT_EQ(numbers_->set_of(sharing.back()), StreamNumbers::kShared);
  }
  driver_.hold(sharing[1]);
  std::vector<StreamMark> marks;
  ASSERT_TRUE(numbers_->mark_all(StreamNumbers::kShared, &marks).is_ok());
  EXPECT_EQ(marks.size(), 3u);
  EXPECT_FALSE(are_reached(marks));
  driver_.wait_until_idle();
  EXPECT_TRUE(are_reached(marks));
  EXPECT_DEATH((void)numbers_->hold_back(StreamNumbers::kShared, marks), "not one stream");
}

TEST_F(StreamNumbersTest, AStreamIsHeldBack) {
  std::atomic<bool> is_let_go = false;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  driver_.hold(first);
  std::vector<StreamMark> marks;
  ASSERT_TRUE(numbers_->mark_all(numbers_->set_of(first), &marks).is_ok());
  ASSERT_TRUE(numbers_->hold_back(numbers_->set_of(second), marks).is_ok());
  bool was_let_go = false;
  ASSERT_EQ(driver_.launch(second, {}, [&] { was_let_go = is_let_go; }), CUDA_SUCCESS);
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(driver_.unfinished(second), 2u) << "the wait and the kernel";
  is_let_go = true;
  driver_.wait_until_idle();
  EXPECT_TRUE(was_let_go);
}

TEST_F(StreamNumbersTest, AStreamThatCapturesIsLeftAlone) {
  const CUstream capturing = make_stream();
  const CUstream other = make_stream();
  // The other stream comes first in a set, so that it would be marked before the refusal.
  const StreamSet other_set = numbers_->set_of(other);
  const StreamSet capturing_set = numbers_->set_of(capturing);
  std::vector<StreamMark> marks;
  ASSERT_TRUE(numbers_->mark_all(other_set, &marks).is_ok());
  driver_.set_capturing(capturing, true);
  const uint64_t recorded = driver_.calls("cuEventRecord");
  EXPECT_EQ(numbers_->mark_all(other_set | capturing_set, &marks).code(), StatusCode::kUnavailable);
  EXPECT_EQ(numbers_->hold_back(capturing_set, marks).code(), StatusCode::kUnavailable);
  EXPECT_EQ(marks.size(), 1u);
  EXPECT_EQ(driver_.calls("cuEventRecord"), recorded);
  EXPECT_EQ(driver_.calls("cuStreamWaitEvent"), 0u);
  EXPECT_TRUE(numbers_->mark_all(other_set, &marks).is_ok()) << "it does not capture";
  driver_.set_capturing(capturing, false);
  EXPECT_TRUE(numbers_->mark_all(other_set | capturing_set, &marks).is_ok());
  EXPECT_EQ(marks.size(), 4u);
  EXPECT_TRUE(numbers_->hold_back(capturing_set, marks).is_ok());
}

TEST_F(StreamNumbersTest, TheNullStreamSaysThatAnotherOneCaptures) {
  std::vector<StreamMark> marks;
  const StreamSet null = numbers_->set_of(nullptr);
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  driver_.set_capturing(blocking, true);
  EXPECT_EQ(numbers_->mark_all(null, &marks).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(marks.empty());
  driver_.set_capturing(blocking, false);
  EXPECT_TRUE(numbers_->mark_all(null, &marks).is_ok());
}

TEST_F(StreamNumbersTest, EveryRefusedCallIsAStatusAndMarksNothing) {
  const StreamSet first = numbers_->set_of(make_stream());
  const StreamSet second = numbers_->set_of(make_stream());
  std::vector<StreamMark> marks;
  const auto expect_refused = [&](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kIoError);
    EXPECT_NE(status.message().find("CUDA_ERROR_UNKNOWN"), std::string::npos) << status.message();
  };
  for (const char* name : {"cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode",
                           "cuStreamIsCapturing", "cuEventCreate", "cuEventRecord"}) {
    for (const uint64_t nth : {1, 2}) {
      SCOPED_TRACE(std::string(name) + ", call " + std::to_string(nth));
      marks_.emplace(*gpu_);  // without an event to reuse
      driver_.fail(name, nth, CUDA_ERROR_UNKNOWN);
      expect_refused(numbers_->mark_all(first | second, &marks));
      EXPECT_TRUE(marks.empty());
    }
  }
  ASSERT_TRUE(numbers_->mark_all(first, &marks).is_ok());
  for (const char* name : {"cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode",
                           "cuStreamIsCapturing", "cuStreamWaitEvent"}) {
    SCOPED_TRACE(name);
    driver_.fail(name, 1, CUDA_ERROR_UNKNOWN);
    expect_refused(numbers_->hold_back(second, marks));
  }
  EXPECT_TRUE(numbers_->hold_back(second, marks).is_ok());
  context_.reset();
  driver_.fail("cuCtxSetCurrent", 1, CUDA_ERROR_UNKNOWN);
  expect_refused(numbers_->mark_all(first, &marks));
  EXPECT_TRUE(numbers_->mark_all(first, &marks).is_ok());
  EXPECT_EQ(marks.size(), 2u);
  context_.emplace(driver_.api());
}

TEST_F(StreamNumbersTest, ThreadsThatNumberTheSameStreamsAgree) {
  constexpr size_t kThreads = 4;
  constexpr size_t kStreams = 600;
  std::vector<std::vector<StreamSet>> found(kThreads, std::vector<StreamSet>(kStreams));
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread, &found] {
      Random random(thread);
      for (size_t step = 0; step < 20 * kStreams; ++step) {
        const size_t number = random.between(0, kStreams - 1);
        const StreamSet set = numbers_->set_of(handle(number));
        ASSERT_TRUE(found[thread][number] == 0 || found[thread][number] == set);
        found[thread][number] = set;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::multiset<StreamSet> sets;
  for (size_t number = 0; number < kStreams; ++number) {
    const StreamSet set = numbers_->set_of(handle(number));
    sets.insert(set);
    for (size_t thread = 0; thread < kThreads; ++thread) {
      EXPECT_TRUE(found[thread][number] == 0 || found[thread][number] == set);
    }
  }
  EXPECT_EQ(sets.count(StreamNumbers::kShared), kStreams - 63);
  for (int bit = 0; bit < 63; ++bit) EXPECT_EQ(sets.count(StreamSet{1} << bit), 1u);
}

}  // namespace
}  // namespace tencache
