// SPDX-License-Identifier: Apache-2.0
//
// One suite over both channels at depth 1 and 16: the promises of tier/io_channel.h, against a
// byte-array model of the file, and the kernel's possible answers.
#include "tier/io_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "support/aligned_buffer.h"
#include "support/channel_kinds.h"
#include "support/child_process.h"
#include "support/random.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

class IoChannelTest : public ::testing::TestWithParam<ChannelKind> {
 protected:
  void SetUp() override {
    file_ = make_file(directory_.path());
    Result<std::unique_ptr<IoChannel>> made = make_channel(GetParam(), file_.get());
    if (!made.is_ok()) GTEST_SKIP() << made.status().message();
    channel_ = std::move(made).value();
  }

  TransferResult transfer(IoDirection direction, const std::vector<IoSegment>& segments,
                          PieceObserver* observer = nullptr) {
    return channel_->transfer(direction, segments, observer);
  }

  /// Writes the buffer to the start of the file, without the channel.
  void store(const AlignedBuffer& buffer) {
    for (size_t done = 0; done < buffer.bytes();) {
      const ssize_t moved = pwrite(file_.get(), buffer.data() + done, buffer.bytes() - done,
                                   static_cast<off_t>(done));
      ASSERT_GT(moved, 0);
      done += static_cast<size_t>(moved);
    }
  }

  AlignedBuffer load(size_t bytes) {
    AlignedBuffer buffer(bytes);
    size_t done = 0;
    while (done < bytes) {
      const ssize_t moved =
          pread(file_.get(), buffer.data() + done, bytes - done, static_cast<off_t>(done));
      EXPECT_GT(moved, 0);
      if (moved <= 0) break;
      done += static_cast<size_t>(moved);
    }
    return buffer;
  }

  TestDirectory directory_;
  UniqueFd file_;
  std::unique_ptr<IoChannel> channel_;
};

/// An observer that records its calls, and cancels before the piece with number `cancel_at`.
class RecordingObserver : public PieceObserver {
 public:
  struct Event {
    size_t segment;
    uint64_t offset;
    size_t bytes;
    friend bool operator==(const Event&, const Event&) = default;
  };

  explicit RecordingObserver(size_t cancel_at = SIZE_MAX) : cancel_at_(cancel_at) {}

  bool before_submit(size_t segment, uint64_t offset, char*, size_t bytes) override {
    EXPECT_EQ(std::this_thread::get_id(), thread_);
    if (submitted.size() == cancel_at_) return false;
    submitted.push_back({segment, offset, bytes});
    outstanding_max = std::max(outstanding_max, submitted.size() - completed.size());
    return true;
  }
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
    EXPECT_EQ(std::this_thread::get_id(), thread_);
    completed.push_back({segment, offset, bytes});
    EXPECT_LE(completed.size(), submitted.size());
  }

  std::vector<Event> submitted;
  std::vector<Event> completed;
  size_t outstanding_max = 0;

 private:
  size_t cancel_at_;
  std::thread::id thread_ = std::this_thread::get_id();
};

std::vector<RecordingObserver::Event> expected_pieces(const std::vector<IoSegment>& segments) {
  std::vector<RecordingObserver::Event> pieces;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (uint64_t done = 0; done < segments[i].bytes; done += kPieceBytes) {
      pieces.push_back(
          {i, segments[i].offset + done,
           static_cast<size_t>(std::min<uint64_t>(kPieceBytes, segments[i].bytes - done))});
    }
  }
  return pieces;
}

TEST_P(IoChannelTest, HasItsName) {
  EXPECT_STREQ(channel_->name(), GetParam().is_uring ? "io_uring" : "threads");
}

TEST_P(IoChannelTest, MovesNothing) {
  RecordingObserver observer;
  TransferResult result = transfer(IoDirection::kWrite, {}, &observer);
  EXPECT_TRUE(result.status.is_ok());
  result = transfer(IoDirection::kRead, {{nullptr, 0, 0}, {nullptr, 4096, 0}}, &observer);
  EXPECT_TRUE(result.status.is_ok());
  EXPECT_FALSE(result.cancelled);
  EXPECT_EQ(result.bytes, 0U);
  EXPECT_TRUE(observer.submitted.empty());
}

/// Segments that cut [0, limit) at random places, some left out, shuffled.
std::vector<IoSegment> random_segments(Random& random, char* memory, uint64_t limit) {
  std::vector<IoSegment> segments;
  uint64_t offset = 0;
  while (offset < limit) {
    uint64_t bytes = random.chance(0.5) ? random.between(0, 16) * kIoAlignment
                                        : random.between(0, 900) * kIoAlignment;
    bytes = std::min(bytes, limit - offset);
    if (random.chance(0.7)) segments.push_back({memory + offset, offset, bytes});
    offset += std::max<uint64_t>(bytes, kIoAlignment);
  }
  shuffle(segments, random);
  return segments;
}

TEST_P(IoChannelTest, RandomSegmentsEqualAByteArray) {
  constexpr size_t kFileBytes = 24 * kMiB;
  Random random(GetParam().depth);
  AlignedBuffer model(kFileBytes);
  AlignedBuffer memory(kFileBytes);
  random.fill(model.data(), kFileBytes);
  store(model);
  for (int round = 0; round < 12; ++round) {
    random.fill(memory.data(), kFileBytes);
    const bool writes = round % 2 == 0;
    const std::vector<IoSegment> segments = random_segments(random, memory.data(), kFileBytes);
    uint64_t bytes = 0;
    for (const IoSegment& segment : segments) {
      bytes += segment.bytes;
      if (writes) memcpy(model.data() + segment.offset, segment.memory, segment.bytes);
    }
    RecordingObserver observer;
    const TransferResult result =
        transfer(writes ? IoDirection::kWrite : IoDirection::kRead, segments, &observer);
    ASSERT_TRUE(result.status.is_ok()) << result.status.message();
    ASSERT_EQ(result.bytes, bytes);
    ASSERT_EQ(observer.submitted, expected_pieces(segments));
    ASSERT_EQ(observer.completed, observer.submitted);
    for (const IoSegment& segment : segments) {
      ASSERT_EQ(memcmp(segment.memory, model.data() + segment.offset, segment.bytes), 0);
    }
  }
  const AlignedBuffer stored = load(kFileBytes);
  EXPECT_EQ(memcmp(stored.data(), model.data(), kFileBytes), 0);
}

TEST_P(IoChannelTest, KeepsTheDepthInFlight) {
  AlignedBuffer memory(64 * kMiB);
  RecordingObserver observer;
  const TransferResult result =
      transfer(IoDirection::kWrite, {{memory.data(), 0, memory.bytes()}}, &observer);
  ASSERT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_GE(observer.outstanding_max, std::min<size_t>(GetParam().depth, 64));
  EXPECT_LE(observer.outstanding_max, size_t{GetParam().depth} * 2);
}

TEST_P(IoChannelTest, RunsAheadByNoMoreThanTheWindow) {
  const ChannelKind deep = {"deep", GetParam().is_uring, 64};
  Result<std::unique_ptr<IoChannel>> channel = make_channel(deep, file_.get());
  ASSERT_TRUE(channel.is_ok()) << channel.status().message();
  AlignedBuffer memory(80 * kPieceBytes);
  RecordingObserver observer;
  const std::vector<IoSegment> segments = {{memory.data(), 0, memory.bytes()}};
  ASSERT_TRUE(channel.value()->transfer(IoDirection::kWrite, segments, &observer).status.is_ok());
  EXPECT_EQ(observer.outstanding_max, kWindowPiecesMax);
}

/// An observer that compares each piece with the file's contents at the moment the piece is
/// reported.
class ComparingObserver : public PieceObserver {
 public:
  ComparingObserver(const char* memory, const char* model) : memory_(memory), model_(model) {}
  bool before_submit(size_t, uint64_t, char*, size_t) override { return true; }
  void after_complete(size_t, uint64_t offset, size_t bytes) override {
    if (memcmp(memory_ + offset, model_ + offset, bytes) != 0) ++different;
    ++reported;
  }

  size_t different = 0;
  size_t reported = 0;

 private:
  const char* memory_;
  const char* model_;
};

TEST_P(IoChannelTest, ReportedPiecesAreThere) {
  constexpr size_t kBytes = 40 * kMiB;
  Random random;
  AlignedBuffer model(kBytes);
  AlignedBuffer memory(kBytes);
  random.fill(model.data(), kBytes);
  store(model);
  ComparingObserver observer(memory.data(), model.data());
  ASSERT_TRUE(transfer(IoDirection::kRead, {{memory.data(), 0, kBytes}}, &observer).status.is_ok());
  EXPECT_EQ(observer.reported, kBytes / kPieceBytes);
  EXPECT_EQ(observer.different, 0U);
}

TEST_P(IoChannelTest, CancellationStopsBeforeThePiece) {
  constexpr size_t kPieces = 40;
  AlignedBuffer zeros(kPieces * kPieceBytes);
  store(zeros);
  AlignedBuffer memory(kPieces * kPieceBytes);
  memset(memory.data(), 0x77, memory.bytes());
  for (const size_t cancel_at : {size_t{0}, size_t{1}, size_t{5}, size_t{20}, kPieces - 1}) {
    store(zeros);
    RecordingObserver observer(cancel_at);
    const TransferResult result =
        transfer(IoDirection::kWrite, {{memory.data(), 0, memory.bytes()}}, &observer);
    EXPECT_TRUE(result.cancelled);
    EXPECT_TRUE(result.status.is_ok()) << result.status.message();
    EXPECT_EQ(result.bytes, cancel_at * kPieceBytes);
    EXPECT_EQ(observer.completed.size(), cancel_at);
    const AlignedBuffer stored = load(memory.bytes());
    const size_t boundary = cancel_at * kPieceBytes;
    EXPECT_EQ(memcmp(stored.data(), memory.data(), boundary), 0);
    EXPECT_EQ(memcmp(stored.data() + boundary, zeros.data(), stored.bytes() - boundary), 0);
  }
}

TEST_P(IoChannelTest, EndOfFileIsDataLoss) {
  AlignedBuffer stored(3 * kPieceBytes);
  store(stored);
  AlignedBuffer memory(8 * kPieceBytes);
  RecordingObserver observer;
  TransferResult result =
      transfer(IoDirection::kRead, {{memory.data(), 0, memory.bytes()}}, &observer);
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss);
  EXPECT_NE(result.status.message().find("cannot read 1.00 MiB at file offset "), std::string::npos)
      << result.status.message();
  EXPECT_LE(observer.completed.size(), 3U);

  ASSERT_EQ(ftruncate(file_.get(), 2 * kPieceBytes + 3 * kIoAlignment + 100), 0);
  result = transfer(IoDirection::kRead, {{memory.data(), 0, 3 * kPieceBytes}});
  EXPECT_EQ(result.status.code(), StatusCode::kDataLoss);
  EXPECT_NE(result.status.message().find(std::to_string(2 * kPieceBytes + 3 * kIoAlignment)),
            std::string::npos)
      << "names the first block that is not whole: " << result.status.message();
  EXPECT_EQ(result.bytes, 2 * kPieceBytes + 3 * kIoAlignment);

  result = transfer(IoDirection::kRead, {{memory.data(), 0, 2 * kPieceBytes}});
  EXPECT_TRUE(result.status.is_ok()) << "the channel goes on: " << result.status.message();
}

TEST_P(IoChannelTest, MemoryThatMayNotBeWrittenFailsTheRead) {
  AlignedBuffer stored(32 * kPieceBytes);
  Random().fill(stored.data(), stored.bytes());
  store(stored);
  AlignedBuffer memory(32 * kPieceBytes);
  ASSERT_EQ(mprotect(memory.data() + 10 * kPieceBytes, kPieceBytes, PROT_READ), 0);
  RecordingObserver observer;
  TransferResult result =
      transfer(IoDirection::kRead, {{memory.data(), 0, memory.bytes()}}, &observer);
  EXPECT_EQ(result.status.code(), StatusCode::kIoError);
  EXPECT_NE(result.status.message().find("Bad address"), std::string::npos)
      << result.status.message();
  EXPECT_LE(observer.completed.size(), 10U) << "nothing behind the failed piece is reported";
  // Nothing is in flight any more, so bytes written to the memory now stay.
  ASSERT_EQ(mprotect(memory.data(), memory.bytes(), PROT_READ | PROT_WRITE), 0);
  memset(memory.data(), 0x11, memory.bytes());
  usleep(20'000);
  EXPECT_EQ(std::count(memory.data(), memory.data() + memory.bytes(), 0x11),
            static_cast<std::ptrdiff_t>(memory.bytes()));
  result = transfer(IoDirection::kRead, {{memory.data(), 0, memory.bytes()}});
  ASSERT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_EQ(memcmp(memory.data(), stored.data(), stored.bytes()), 0);
}

TEST_P(IoChannelTest, AFileThatMayNotBeWrittenFailsTheWrite) {
  const std::string path = "/proc/self/fd/" + std::to_string(file_.get());
  const UniqueFd read_only(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(read_only.is_valid());
  Result<std::unique_ptr<IoChannel>> channel = make_channel(GetParam(), read_only.get());
  ASSERT_TRUE(channel.is_ok());
  AlignedBuffer memory(20 * kPieceBytes);
  const std::vector<IoSegment> segments = {{memory.data(), 0, memory.bytes()}};
  const TransferResult result = channel.value()->transfer(IoDirection::kWrite, segments, nullptr);
  EXPECT_EQ(result.status.code(), StatusCode::kIoError);
  // Any of the pieces under way may fail first.
  EXPECT_THAT(result.status.message(),
              ::testing::MatchesRegex("cannot write 1.00 MiB at file offset [0-9]+: Bad file.*"));
  EXPECT_EQ(result.bytes, 0U);
}

/// A guard that lowers the largest file size while it lives. The kernel then writes less than
/// requested, and then refuses.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &saved_);
    const rlimit limit = {bytes, saved_.rlim_max};
    TENCACHE_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &saved_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit saved_ = {};
  void (*handler_)(int);
};

TEST_P(IoChannelTest, ShortWritesAreContinuedUntilTheErrorShows) {
  constexpr size_t kLimit = 2 * kPieceBytes + 64 * kIoAlignment;
  AlignedBuffer memory(4 * kPieceBytes);
  Random().fill(memory.data(), memory.bytes());
  TransferResult result;
  {
    const FileSizeLimit limit(kLimit);
    result = transfer(IoDirection::kWrite, {{memory.data(), 0, 3 * kPieceBytes}});
  }
  EXPECT_EQ(result.status.code(), StatusCode::kIoError);
  EXPECT_NE(
      result.status.message().find("at file offset " + std::to_string(kLimit) + ": File too large"),
      std::string::npos)
      << "the piece was begun and its rest refused: " << result.status.message();
  EXPECT_EQ(result.bytes, kLimit);
  const AlignedBuffer stored = load(kLimit);
  EXPECT_EQ(memcmp(stored.data(), memory.data(), kLimit), 0);
}

TEST_P(IoChannelTest, SignalsDoNotDisturb) {
  constexpr size_t kBytes = 48 * kMiB;
  struct sigaction action = {};
  struct sigaction saved = {};
  action.sa_handler = [](int) {};  // without SA_RESTART: system calls end with EINTR
  ASSERT_EQ(sigaction(SIGALRM, &action, &saved), 0);
  const itimerval every = {{0, 300}, {0, 300}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &every, nullptr), 0);
  AlignedBuffer memory(kBytes);
  AlignedBuffer back(kBytes);
  Random().fill(memory.data(), kBytes);
  for (int round = 0; round < 4; ++round) {
    TransferResult result = transfer(IoDirection::kWrite, {{memory.data(), 0, kBytes}});
    EXPECT_TRUE(result.status.is_ok()) << result.status.message();
    result = transfer(IoDirection::kRead, {{back.data(), 0, kBytes}});
    EXPECT_TRUE(result.status.is_ok()) << result.status.message();
    EXPECT_EQ(memcmp(memory.data(), back.data(), kBytes), 0);
    memset(back.data(), 0, kBytes);
  }
  const itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &saved, nullptr);
}

TEST_P(IoChannelTest, ServesOneThreadAfterAnother) {
  AlignedBuffer memory(4 * kPieceBytes);
  for (int round = 0; round < 8; ++round) {
    memset(memory.data(), round, memory.bytes());
    std::thread([&] {
      EXPECT_TRUE(
          transfer(IoDirection::kWrite, {{memory.data(), 0, memory.bytes()}}).status.is_ok());
    }).join();
    const AlignedBuffer stored = load(memory.bytes());
    ASSERT_EQ(memcmp(stored.data(), memory.data(), memory.bytes()), 0);
  }
}

TEST_P(IoChannelTest, ChannelsOfOneFileRunSideBySide) {
  constexpr size_t kThreads = 4;
  constexpr size_t kBytes = 12 * kMiB;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      Result<std::unique_ptr<IoChannel>> channel = make_channel(GetParam(), file_.get());
      ASSERT_TRUE(channel.is_ok()) << channel.status().message();
      Random random(i);
      AlignedBuffer memory(kBytes);
      AlignedBuffer back(kBytes);
      const std::vector<IoSegment> out = {{memory.data(), i * kBytes, kBytes}};
      const std::vector<IoSegment> in = {{back.data(), i * kBytes, kBytes}};
      for (int round = 0; round < 3; ++round) {
        random.fill(memory.data(), kBytes);
        ASSERT_TRUE(channel.value()->transfer(IoDirection::kWrite, out, nullptr).status.is_ok());
        ASSERT_TRUE(channel.value()->transfer(IoDirection::kRead, in, nullptr).status.is_ok());
        ASSERT_EQ(memcmp(memory.data(), back.data(), kBytes), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(IoChannelTest, RefusesWhatIsNotAligned) {
  AlignedBuffer memory(2 * kPieceBytes);
  const IoSegment bad[] = {
      {memory.data() + 512, 0, 4096}, {memory.data(), 512, 4096}, {memory.data(), 0, 5000}};
  for (const IoSegment& segment : bad) {
    EXPECT_DEATH(transfer(IoDirection::kRead, {segment}), "segment of .* bytes at offset");
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, IoChannelTest, ::testing::ValuesIn(kChannelKinds),
                         name_of_channel_kind);

// ---- Refusals of the kernel or the container -------------------------------------------------

TEST(RefusedChannelTest, UringSaysWhy) {
  const TestDirectory directory;
  const std::pair<int, const char*> cases[] = {
      {EPERM, "seccomp"}, {ENOSYS, "built without"}, {ENOMEM, "memlock"}};
  for (const auto& [error_number, hint] : cases) {
    const int result = run_in_child([&, error = error_number, text = hint] {
      if (!deny_syscall(SYS_io_uring_setup, error)) _exit(kSkipped);
      const UniqueFd file = make_file(directory.path());
      Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 16);
      ASSERT_FALSE(channel.is_ok());
      EXPECT_EQ(channel.status().code(), StatusCode::kUnavailable);
      EXPECT_NE(channel.status().message().find(text), std::string::npos)
          << channel.status().message();
    });
    if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(result, 0) << error_number;
  }
}

/// Writes twice over a channel, in a child in which the system call `number` fails, and checks the
/// status there.
int write_while_refused(int number, int error_number, bool uring, StatusCode code,
                        const char* text) {
  const TestDirectory directory;
  return run_in_child([&] {
    const UniqueFd file = make_file(directory.path());
    Result<std::unique_ptr<IoChannel>> channel = make_channel({"", uring, 4}, file.get());
    if (!channel.is_ok() || !deny_syscall(number, error_number)) _exit(kSkipped);
    AlignedBuffer memory(8 * kPieceBytes);
    const std::vector<IoSegment> segments = {{memory.data(), 0, memory.bytes()}};
    for (int round = 0; round < 2; ++round) {  // a failed transfer must not spoil the next one
      const TransferResult result =
          channel.value()->transfer(IoDirection::kWrite, segments, nullptr);
      EXPECT_EQ(result.status.code(), code);
      EXPECT_NE(result.status.message().find(text), std::string::npos) << result.status.message();
      EXPECT_EQ(result.bytes, 0U);
    }
  });
}

TEST(RefusedChannelTest, ThreadsReportErrors) {
  const int result =
      write_while_refused(SYS_pwrite64, EIO, false, StatusCode::kIoError, "Input/output error");
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
  EXPECT_EQ(write_while_refused(SYS_pwrite64, ENOSPC, false, StatusCode::kNoSpace, "No space"), 0);
}

TEST(RefusedChannelTest, EndlessRepeatsEnd) {
  const int result =
      write_while_refused(SYS_pwrite64, EAGAIN, false, StatusCode::kIoError, "temporarily");
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
  EXPECT_EQ(write_while_refused(SYS_pwrite64, EINTR, false, StatusCode::kIoError, "Interrupted"),
            0);
}

TEST(RefusedChannelTest, WithoutAnyThreadTheCallerMovesThePieces) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    const UniqueFd file = make_file(directory.path());
    if (!deny_syscall(SYS_clone3, EAGAIN) || !deny_syscall(SYS_clone, EAGAIN)) _exit(kSkipped);
    const std::unique_ptr<IoChannel> channel = make_thread_channel(file.get(), 4);
    AlignedBuffer out(9 * kPieceBytes);
    AlignedBuffer in(out.bytes());
    Random().fill(out.data(), out.bytes());
    const std::vector<IoSegment> written = {{out.data(), 0, out.bytes()}};
    const std::vector<IoSegment> read = {{in.data(), 0, in.bytes()}};
    for (int round = 0; round < 2; ++round) {
      const TransferResult to_disk = channel->transfer(IoDirection::kWrite, written, nullptr);
      EXPECT_TRUE(to_disk.status.is_ok()) << to_disk.status.message();
      EXPECT_EQ(to_disk.bytes, out.bytes());
      const TransferResult back = channel->transfer(IoDirection::kRead, read, nullptr);
      EXPECT_TRUE(back.status.is_ok()) << back.status.message();
      EXPECT_EQ(memcmp(in.data(), out.data(), out.bytes()), 0);
    }
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST(RefusedChannelTest, UringReportsSubmissionsThatFail) {
  // The ring is mapped, so only the submission itself is refused. The next transfer opens a new
  // ring, without the entry that the failed submission left in the queue.
  const int result = write_while_refused(SYS_io_uring_enter, EACCES, true, StatusCode::kIoError,
                                         "Permission denied");
  if (result == kSkipped) GTEST_SKIP() << "no io_uring or no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST(RefusedChannelTest, UringWorksWithoutARegisteredFile) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall_when(SYS_io_uring_register, ENOMEM, 1, IORING_REGISTER_FILES))
      _exit(kSkipped);
    const UniqueFd file = make_file(directory.path());
    Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 4);
    if (!channel.is_ok()) _exit(kSkipped);
    AlignedBuffer memory(8 * kPieceBytes);
    const std::vector<IoSegment> segments = {{memory.data(), 0, memory.bytes()}};
    EXPECT_TRUE(channel.value()->transfer(IoDirection::kWrite, segments, nullptr).status.is_ok());
    EXPECT_TRUE(channel.value()->transfer(IoDirection::kRead, segments, nullptr).status.is_ok());
  });
  if (result == kSkipped) GTEST_SKIP() << "no io_uring or no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST(RefusedChannelTest, UringWithoutReadAndWriteIsUnavailable) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall_when(SYS_io_uring_register, EINVAL, 1, IORING_REGISTER_PROBE)) {
      _exit(kSkipped);
    }
    const UniqueFd file = make_file(directory.path());
    Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 4);
    ASSERT_FALSE(channel.is_ok());
    EXPECT_NE(channel.status().message().find("older than 5.6"), std::string::npos)
        << channel.status().message();
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace tencache
