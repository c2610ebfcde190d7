// SPDX-License-Identifier: Apache-2.0
//
// DuplexMeter: which links it takes for half duplex, and which speeds it tells.
#include "engine/move/duplex_meter.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 32 * kMiB;
constexpr IoDirection kRead = IoDirection::kRead;
constexpr IoDirection kWrite = IoDirection::kWrite;

class DuplexMeterTest : public testing::Test {
 protected:
  // Makes a transfer that takes `ns` and begins when the one before has ended.
  void transfer_alone(IoDirection direction, uint64_t ns) {
    const DuplexMeter::Begun begun = meter_.begin(direction, now_ns_);
    now_ns_ += ns;
    meter_.end(direction, begun, kBytes, now_ns_);
  }
  // Makes a read and a write that begin at the same time. The border of an eighth lets one end
  // before the other.
  void transfer_both(uint64_t read_ns, uint64_t write_ns) {
    const DuplexMeter::Begun read = meter_.begin(kRead, now_ns_);
    const DuplexMeter::Begun write = meter_.begin(kWrite, now_ns_);
    const uint64_t begin_ns = now_ns_;
    const bool is_read_first = read_ns < write_ns;
    now_ns_ = begin_ns + (is_read_first ? read_ns : write_ns);
    meter_.end(is_read_first ? kRead : kWrite, is_read_first ? read : write, kBytes, now_ns_);
    now_ns_ = begin_ns + (is_read_first ? write_ns : read_ns);
    meter_.end(is_read_first ? kWrite : kRead, is_read_first ? write : read, kBytes, now_ns_);
  }

  DuplexMeter meter_;
  uint64_t now_ns_ = 1'000'000;
};

TEST_F(DuplexMeterTest, DirectionsThatShareOneSpeedAreHalfDuplex) {
  transfer_alone(kRead, 1000);
  transfer_alone(kWrite, 2000);
  EXPECT_FALSE(meter_.is_half_duplex()) << "nobody has seen both at once";
  transfer_both(2500, 2700);
  EXPECT_TRUE(meter_.is_half_duplex());
  EXPECT_NEAR(meter_.bytes_per_s_alone(kRead, 0), kBytes * 1e6, 1);
  EXPECT_NEAR(meter_.bytes_per_s_alone(kWrite, 0), kBytes * 0.5e6, 1);
}

TEST_F(DuplexMeterTest, DirectionsWithTheirOwnSpeedsAreNot) {
  transfer_alone(kRead, 2000);
  transfer_alone(kWrite, 2000);
  transfer_both(2500, 2300);
  EXPECT_FALSE(meter_.is_half_duplex());
}

TEST_F(DuplexMeterTest, WhatOverlapsInPartTellsNothing) {
  transfer_alone(kRead, 1000);
  transfer_alone(kWrite, 1000);
  transfer_both(4000, 2000);  // the read is alone half of the time
  EXPECT_FALSE(meter_.is_half_duplex()) << "no read has been seen beside writes";
  EXPECT_NEAR(meter_.bytes_per_s_alone(kRead, 0), kBytes * 1e6, 1);
}

TEST_F(DuplexMeterTest, ADirectionIsBusyUntilItsLastTransferEnds) {
  transfer_alone(kRead, 1000);
  transfer_alone(kWrite, 1000);
  const DuplexMeter::Begun first = meter_.begin(kWrite, now_ns_);
  const DuplexMeter::Begun second = meter_.begin(kWrite, now_ns_);
  const DuplexMeter::Begun read = meter_.begin(kRead, now_ns_);
  meter_.end(kWrite, first, kBytes, now_ns_ + 100);
  meter_.end(kRead, read, kBytes, now_ns_ + 4000);
  meter_.end(kWrite, second, kBytes, now_ns_ + 4000);
  EXPECT_TRUE(meter_.is_half_duplex());
}

TEST_F(DuplexMeterTest, WhatFailsTellsNothing) {
  const DuplexMeter::Begun begun = meter_.begin(kRead, now_ns_);
  meter_.end(kRead, begun, 0, now_ns_ + 1'000'000'000);
  EXPECT_EQ(meter_.bytes_per_s_alone(kRead, -1), -1);
  transfer_alone(kRead, 1000);
  EXPECT_NEAR(meter_.bytes_per_s_alone(kRead, 0), kBytes * 1e6, 1);
}

}  // namespace
}  // namespace tencache
