// SPDX-License-Identifier: Apache-2.0
//
// Writes from a channel's own buffers (tier/bounce_ring.h): the same bytes over both channels, and
// io_uring's use of registered buffers where the kernel allows them and where it does not.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "support/aligned_buffer.h"
#include "support/channel_kinds.h"
#include "support/child_process.h"
#include "support/eventually.h"
#include "support/random.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

/// Reads the first bytes of the file, without the channel.
AlignedBuffer load(const UniqueFd& file, size_t bytes) {
  AlignedBuffer buffer(bytes);
  EXPECT_EQ(pread(file.get(), buffer.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return buffer;
}

/// An observer that brings the bytes of segments without memory from a model of the file, and
/// checks that no buffer is handed out again before its piece is complete.
class BringingObserver : public PieceObserver {
 public:
  explicit BringingObserver(const AlignedBuffer& model) : model_(model) {}
  bool before_submit(size_t, uint64_t offset, char* memory, size_t bytes) override {
    EXPECT_TRUE(under_way_.insert(memory).second) << "a buffer that is being written";
    order_.push_back(memory);
    buffers.insert(memory);
    memcpy(memory, model_.data() + offset, bytes);
    return true;
  }
  void after_complete(size_t, uint64_t, size_t) override { under_way_.erase(order_[completed_++]); }

  std::set<char*> buffers;  // all that were handed out

 private:
  const AlignedBuffer& model_;
  std::set<char*> under_way_;
  std::vector<char*> order_;
  size_t completed_ = 0;
};

class ChannelBuffersTest : public ::testing::TestWithParam<ChannelKind> {
 protected:
  void SetUp() override {
    file_ = make_file(directory_.path());
    Result<std::unique_ptr<IoChannel>> made = make_channel(GetParam(), file_.get());
    if (!made.is_ok()) GTEST_SKIP() << made.status().message();
    channel_ = std::move(made).value();
  }

  TestDirectory directory_;
  UniqueFd file_;
  std::unique_ptr<IoChannel> channel_;
};

TEST_P(ChannelBuffersTest, WritesFromItsOwnBuffers) {
  constexpr size_t kBytes = 44 * kPieceBytes;
  Random random(GetParam().depth);
  AlignedBuffer model(kBytes);
  std::set<char*> buffers;
  // From the second round on, io_uring has registered the channel's buffers.
  for (int round = 0; round < 3; ++round) {
    random.fill(model.data(), kBytes);
    std::vector<IoSegment> segments = {{nullptr, 0, 40 * kPieceBytes},
                                       {model.data() + 40 * kPieceBytes, 40 * kPieceBytes, 0},
                                       {nullptr, 40 * kPieceBytes, 3 * kIoAlignment}};
    for (uint64_t at = 40 * kPieceBytes + 3 * kIoAlignment; at < kBytes;) {
      const uint64_t bytes = std::min<uint64_t>(random.between(1, 700) * kIoAlignment, kBytes - at);
      segments.push_back({nullptr, at, bytes});
      at += bytes;
    }
    BringingObserver observer(model);
    const TransferResult result = channel_->transfer(IoDirection::kWrite, segments, &observer);
    ASSERT_TRUE(result.status.is_ok()) << result.status.message();
    EXPECT_EQ(result.bytes, kBytes);
    buffers.insert(observer.buffers.begin(), observer.buffers.end());
    const AlignedBuffer stored = load(file_, kBytes);
    ASSERT_EQ(memcmp(stored.data(), model.data(), kBytes), 0) << "round " << round;
  }
  EXPECT_EQ(buffers.size(), std::min<size_t>(size_t{GetParam().depth} * 2, kWindowPiecesMax));
}

TEST_P(ChannelBuffersTest, AForkedChildDoesNotGetTheBuffers) {
  AlignedBuffer model(40 * kPieceBytes);
  const std::vector<IoSegment> segments = {{nullptr, 0, model.bytes()}};
  for (int round = 0; round < 2; ++round) {
    Random(static_cast<uint64_t>(round)).fill(model.data(), model.bytes());
    BringingObserver observer(model);
    ASSERT_TRUE(channel_->transfer(IoDirection::kWrite, segments, &observer).status.is_ok());
    const AlignedBuffer stored = load(file_, model.bytes());
    ASSERT_EQ(memcmp(stored.data(), model.data(), model.bytes()), 0);
    const int outcome = run_in_child([&] {
      unsigned char is_there = 0;
      for (char* buffer : observer.buffers) {
        EXPECT_EQ(mincore(buffer, kIoAlignment, &is_there), -1);
        EXPECT_EQ(errno, ENOMEM);
      }
    });
    EXPECT_EQ(outcome, 0);
  }
}

TEST_P(ChannelBuffersTest, SegmentsWithoutMemoryNeedSomebodyWhoBringsTheBytes) {
  const std::vector<IoSegment> segments = {{nullptr, 0, 4096}};
  AlignedBuffer model(4096);
  BringingObserver observer(model);
  EXPECT_DEATH(channel_->transfer(IoDirection::kWrite, segments, nullptr),
               "an observer that brings");
  EXPECT_DEATH(channel_->transfer(IoDirection::kRead, segments, &observer),
               "an observer that brings");
}

INSTANTIATE_TEST_SUITE_P(Channels, ChannelBuffersTest, ::testing::ValuesIn(kChannelKinds),
                         name_of_channel_kind);

// ---- Registered buffers ----------------------------------------------------------------------

/// The bytes that the kernel holds pinned for this process.
uint64_t pinned_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmPin:") {
  }
  uint64_t kilobytes = 0;
  status >> kilobytes;
  return kilobytes * kKiB;
}

/// Writes the model three times over a channel at depth 16 from its own buffers, and compares.
void write_from_own_buffers(IoChannel& channel, const UniqueFd& file) {
  AlignedBuffer model(40 * kPieceBytes);
  const std::vector<IoSegment> segments = {{nullptr, 0, model.bytes()}};
  for (uint64_t round = 0; round < 3; ++round) {
    Random(round).fill(model.data(), model.bytes());
    BringingObserver observer(model);
    const TransferResult result = channel.transfer(IoDirection::kWrite, segments, &observer);
    EXPECT_TRUE(result.status.is_ok()) << result.status.message();
    const AlignedBuffer stored = load(file, model.bytes());
    EXPECT_EQ(memcmp(stored.data(), model.data(), model.bytes()), 0) << "round " << round;
  }
}

TEST(RegisteredBuffersTest, ThePagesOfTheRingStayPinnedOnceAllAreUsed) {
  const TestDirectory directory;
  const UniqueFd file = make_file(directory.path());
  const Status allowed = try_registered_buffers(file.get(), 16);
  if (!allowed.is_ok()) GTEST_SKIP() << allowed.message();
  const int result = run_in_child([&] {  // the probe unpins a little later
    Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 16);
    ASSERT_TRUE(channel.is_ok()) << channel.status().message();
    AlignedBuffer model(20 * kPieceBytes);
    for (int round = 0; round < 3; ++round) {
      BringingObserver observer(model);
      const std::vector<IoSegment> segments = {{nullptr, 0, model.bytes()}};
      const TransferResult few =
          channel.value()->transfer(IoDirection::kWrite, segments, &observer);
      EXPECT_TRUE(few.status.is_ok()) << few.status.message();
      EXPECT_EQ(pinned_bytes(), 0U) << "not all of the ring is there yet";
    }
    write_from_own_buffers(*channel.value(), file);
    EXPECT_EQ(pinned_bytes(), kWindowPiecesMax * kPieceBytes);
    write_from_own_buffers(*channel.value(), file);
    EXPECT_EQ(pinned_bytes(), kWindowPiecesMax * kPieceBytes);

    channel = make_uring_channel(file.get(), 16, /*registers_buffers=*/false);
    ASSERT_TRUE(channel.is_ok()) << channel.status().message();
    EXPECT_TRUE(eventually([] { return pinned_bytes() == 0; })) << "given back with the channel";
    write_from_own_buffers(*channel.value(), file);
    EXPECT_EQ(pinned_bytes(), 0U);
  });
  EXPECT_EQ(result, 0);
}

/// Drops CAP_IPC_LOCK and lowers the limit below the ring's size. Returns false when that is not
/// possible.
bool lower_the_memlock_limit() {
  const rlimit limit = {1 * kMiB, 1 * kMiB};
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return false;
  for (__u32* set : {&sets[0].effective, &sets[0].permitted, &sets[0].inheritable}) {
    *set &= ~(1U << CAP_IPC_LOCK);
  }
  return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && syscall(SYS_capset, &header, sets) == 0;
}

TEST(RegisteredBuffersTest, ASmallMemlockLimitLeavesPlainWrites) {
  const TestDirectory directory;
  const UniqueFd file = make_file(directory.path());
  const int result = run_in_child([&] {
    if (!lower_the_memlock_limit()) _exit(kSkipped);
    Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 16);
    if (!channel.is_ok()) _exit(kSkipped);
    const Status refused = try_registered_buffers(file.get(), 16);
    EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), ::testing::AllOf(::testing::HasSubstr("32.0 MiB"),
                                                    ::testing::HasSubstr("ulimit -l")));
    write_from_own_buffers(*channel.value(), file);
    EXPECT_EQ(pinned_bytes(), 0U);
  });
  if (result == kSkipped) GTEST_SKIP() << "no io_uring, or the limit cannot be lowered";
  EXPECT_EQ(result, 0);
}

TEST(RegisteredBuffersTest, ARefusedRegistrationLeavesPlainWrites) {
  const TestDirectory directory;
  const UniqueFd file = make_file(directory.path());
  for (const int error_number : {EPERM, EOPNOTSUPP, ENOMEM, EINVAL}) {
    const int result = run_in_child([&] {
      Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 16);
      if (!channel.is_ok()) _exit(kSkipped);
      // The opcode that registers buffers is 0, which no mask can select, so the filter refuses all
      // opcodes.
      if (!deny_syscall(SYS_io_uring_register, error_number)) _exit(kSkipped);
      write_from_own_buffers(*channel.value(), file);
      EXPECT_EQ(pinned_bytes(), 0U);
    });
    if (result == kSkipped) GTEST_SKIP() << "no io_uring or no seccomp filters here";
    EXPECT_EQ(result, 0) << error_number;
  }
}

}  // namespace
}  // namespace tencache
