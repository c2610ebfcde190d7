// SPDX-License-Identifier: Apache-2.0
//
// What a transfer makes of the kernel's answers: which errors are repeated, and how often.
// io_channel_test.cpp has the rest, over real channels.
#include "tier/piece_sequence.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "support/aligned_buffer.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 3 * kPieceBytes;

class PieceSequenceTest : public ::testing::Test {
 protected:
  PieceSequence make(IoDirection direction) {
    return {direction, {&segment_, 1}, 4, nullptr, nullptr};
  }
  static int64_t all_of(const Piece& piece) { return static_cast<int64_t>(piece.rest_bytes()); }

  AlignedBuffer buffer_{kBytes};
  const IoSegment segment_ = {buffer_.data(), 0, kBytes};
};

TEST_F(PieceSequenceTest, AWriteThatFailsIsRepeatedAFewTimes) {
  for (const int error_number : {EIO, ENOSPC, EDQUOT, ETIMEDOUT}) {
    PieceSequence sequence = make(IoDirection::kWrite);
    Piece* piece = sequence.next();
    int repeats = 0;
    while (sequence.settle(*piece, -error_number)) ++repeats;
    EXPECT_GE(repeats, 2) << error_number;
    EXPECT_LE(repeats, 10) << error_number;
    EXPECT_EQ(sequence.in_flight(), 0U);
    EXPECT_EQ(sequence.next(), nullptr);
    EXPECT_FALSE(sequence.take_result().status.is_ok());
  }
}

TEST_F(PieceSequenceTest, AWriteThatSucceedsInTheEndIsNoFailure) {
  PieceSequence sequence = make(IoDirection::kWrite);
  while (Piece* piece = sequence.next()) {
    EXPECT_TRUE(sequence.settle(*piece, -EIO));
    EXPECT_TRUE(sequence.settle(*piece, kIoAlignment)) << "the rest is still to do";
    EXPECT_TRUE(sequence.settle(*piece, -ENOSPC));
    EXPECT_FALSE(sequence.settle(*piece, all_of(*piece)));
    EXPECT_TRUE(sequence.report_one());
  }
  const TransferResult result = sequence.take_result();
  EXPECT_TRUE(result.status.is_ok());
  EXPECT_EQ(result.bytes, kBytes);
}

TEST_F(PieceSequenceTest, AReadThatFailsIsLeftToTheCaller) {
  PieceSequence sequence = make(IoDirection::kRead);
  EXPECT_FALSE(sequence.settle(*sequence.next(), -EIO));
  EXPECT_FALSE(sequence.take_result().status.is_ok());
}

TEST_F(PieceSequenceTest, NothingIsRepeatedAfterAFailure) {
  PieceSequence sequence = make(IoDirection::kWrite);
  Piece* first = sequence.next();
  Piece* second = sequence.next();
  while (sequence.settle(*first, -EIO)) {
  }
  EXPECT_FALSE(sequence.settle(*second, -EIO));
  EXPECT_FALSE(sequence.is_active());
}

}  // namespace
}  // namespace tencache
