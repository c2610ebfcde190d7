// SPDX-License-Identifier: Apache-2.0
//
// Transfers whose observer adds segments while others are in flight, over every channel and through
// the disk tier.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/units.h"
#include "support/aligned_buffer.h"
#include "support/cached_pages.h"
#include "support/channel_kinds.h"
#include "support/random.h"
#include "support/test_directory.h"
#include "tier/disk_tier.h"
#include "tier/io_channel.h"

namespace tencache {
namespace {

/// An observer that adds segments from a list, and says now and then that there is none.
class AddingObserver final : public PieceObserver {
 public:
  AddingObserver(std::vector<IoSegment> segments, Random& random, double refusals)
      : segments_(std::move(segments)), random_(random), refusals_(refusals) {}

  bool before_submit(size_t segment, uint64_t, char*, size_t bytes) override {
    in_flight_bytes_ += bytes;
    EXPECT_LE(segment, added_);
    return true;
  }
  void after_complete(size_t segment, uint64_t, size_t bytes) override {
    in_flight_bytes_ -= bytes;
    EXPECT_GE(segment, last_complete_) << "told in order";
    last_complete_ = segment;
  }
  bool next_segment(IoSegment* segment) override {
    EXPECT_GT(in_flight_bytes_, 0u) << "asked for more when nothing is in flight";
    if (added_ == segments_.size() || random_.chance(refusals_)) return false;
    *segment = segments_[added_++];
    return true;
  }

  size_t added() const { return added_; }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }

 private:
  const std::vector<IoSegment> segments_;
  Random& random_;
  const double refusals_;
  size_t added_ = 0;
  size_t last_complete_ = 0;
  uint64_t in_flight_bytes_ = 0;
};

class AddedSegmentsTest : public ::testing::TestWithParam<ChannelKind> {
 protected:
  static constexpr size_t kFileBytes = 24 * kMiB;

  AddedSegmentsTest() : random_(GetParam().depth), stored_(kFileBytes), memory_(kFileBytes) {}

  void SetUp() override {
    file_ = make_file(directory_.path());
    Result<std::unique_ptr<IoChannel>> made = make_channel(GetParam(), file_.get());
    if (!made.is_ok()) GTEST_SKIP() << made.status().message();
    channel_ = std::move(made).value();
    random_.fill(stored_.data(), kFileBytes);
    const std::vector<IoSegment> all = {{stored_.data(), 0, kFileBytes}};
    ASSERT_TRUE(channel_->transfer(IoDirection::kWrite, all, nullptr).status.is_ok());
  }

  /// The whole file, cut at random places and shuffled.
  std::vector<IoSegment> cut() {
    std::vector<IoSegment> segments;
    for (uint64_t offset = 0; offset < kFileBytes;) {
      const uint64_t bytes =
          std::min(random_.between(1, 900) * kIoAlignment, uint64_t{kFileBytes} - offset);
      segments.push_back({memory_.data() + offset, offset, bytes});
      offset += bytes;
    }
    shuffle(segments, random_);
    return segments;
  }
  bool is_right(const IoSegment& segment) const {
    return memcmp(segment.memory, stored_.data() + segment.offset, segment.bytes) == 0;
  }

  TestDirectory directory_;
  UniqueFd file_;
  std::unique_ptr<IoChannel> channel_;
  Random random_;
  AlignedBuffer stored_;
  AlignedBuffer memory_;
};

TEST_P(AddedSegmentsTest, GoInTheSameTransfer) {
  std::vector<IoSegment> segments = cut();
  const std::vector<IoSegment> first = {segments.back()};
  segments.pop_back();
  AddingObserver observer(segments, random_, 0);
  const TransferResult result = channel_->transfer(IoDirection::kRead, first, &observer);
  ASSERT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_EQ(result.bytes, kFileBytes);
  EXPECT_EQ(observer.added(), segments.size());
  EXPECT_EQ(memcmp(memory_.data(), stored_.data(), kFileBytes), 0);
}

TEST_P(AddedSegmentsTest, TheTransferEndsWhenThereIsNone) {
  for (int round = 0; round < 12; ++round) {
    random_.fill(memory_.data(), kFileBytes);
    std::vector<IoSegment> segments = cut();
    const std::vector<IoSegment> first = {segments.back()};
    segments.pop_back();
    AddingObserver observer(segments, random_, 0.5);
    const TransferResult result = channel_->transfer(IoDirection::kRead, first, &observer);
    ASSERT_TRUE(result.status.is_ok()) << result.status.message();
    ASSERT_EQ(observer.in_flight_bytes(), 0u);
    uint64_t bytes = first[0].bytes;
    for (size_t index = 0; index < observer.added(); ++index) {
      bytes += segments[index].bytes;
      ASSERT_TRUE(is_right(segments[index])) << index;
    }
    ASSERT_EQ(result.bytes, bytes);
    ASSERT_TRUE(is_right(first[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, AddedSegmentsTest, ::testing::ValuesIn(kChannelKinds),
                         name_of_channel_kind);

class AddedToATierTest : public ::testing::Test {
 protected:
  void open(Choice direct_io) {
    DiskTierConfig config;
    config.directory = directory_.path();
    config.quota_bytes = kGiB;
    config.direct_io = direct_io;
    Result<std::unique_ptr<DiskTier>> tier = DiskTier::open(config);
    TENCACHE_CHECK(tier.is_ok(), "%s", tier.status().message().c_str());
    tier_ = std::move(tier).value();
  }

  Slot store(const AlignedBuffer& buffer) {
    const Result<Slot> slot = tier_->allocate(buffer.bytes());
    TENCACHE_CHECK(slot.is_ok(), "%s", slot.status().message().c_str());
    const std::vector<IoSegment> all = {{buffer.data(), slot.value().offset, buffer.bytes()}};
    EXPECT_TRUE(tier_->write(all, nullptr).status.is_ok());
    return slot.value();
  }

  TestDirectory directory_;
  std::unique_ptr<DiskTier> tier_;
  Random random_;
};

TEST_F(AddedToATierTest, BufferedReadsLeaveNoPageCache) {
  open(Choice::kOff);
  AlignedBuffer small(kMiB);
  AlignedBuffer large(16 * kMiB);
  random_.fill(large.data(), large.bytes());
  const Slot first = store(small);
  const Slot second = store(large);
  AlignedBuffer read_back(large.bytes());
  AddingObserver observer({{read_back.data(), second.offset, second.bytes}}, random_, 0);
  const std::vector<IoSegment> given = {{small.data(), first.offset, first.bytes}};
  const TransferResult result = tier_->read(given, &observer);
  ASSERT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_EQ(result.bytes, small.bytes() + large.bytes());
  EXPECT_EQ(memcmp(read_back.data(), large.data(), large.bytes()), 0);
  // Read-ahead may bring a few pages back after the advice.
  EXPECT_LE(cached_pages(*tier_, second), second.bytes / 4096 / 16);
}

TEST_F(AddedToATierTest, OutsideTheFileTheyAbort) {
  // The process that dies opens the tier, because a process forked later may not use it.
  const auto read_outside = [this] {
    open(Choice::kAuto);
    AlignedBuffer buffer(kMiB);
    const Slot slot = store(buffer);
    AddingObserver observer({{buffer.data(), tier_->file_bytes(), kMiB}}, random_, 0);
    const std::vector<IoSegment> given = {{buffer.data(), slot.offset, slot.bytes}};
    (void)tier_->read(given, &observer);
  };
  EXPECT_DEATH(read_outside(), "in a spill file of");
}

}  // namespace
}  // namespace tencache
