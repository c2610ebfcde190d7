// SPDX-License-Identifier: Apache-2.0
//
// Helpers of the disk tier's suites: tiers and slots whose making must succeed, a slot's bytes as
// one segment, and messages that must name their cause. Threads: any.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "support/aligned_buffer.h"
#include "tier/disk_tier.h"

namespace tencache {

inline DiskTierConfig config_in(const std::string& directory, uint64_t quota_bytes = kGiB) {
  DiskTierConfig config;
  config.directory = directory;
  config.quota_bytes = quota_bytes;
  return config;
}

inline std::unique_ptr<DiskTier> open_tier(const DiskTierConfig& config) {
  Result<std::unique_ptr<DiskTier>> tier = DiskTier::open(config);
  TENCACHE_CHECK(tier.is_ok(), "%s", tier.status().message().c_str());
  return std::move(tier).value();
}

inline Slot take(DiskTier& tier, uint64_t bytes) {
  Result<Slot> slot = tier.allocate(bytes);
  EXPECT_TRUE(slot.is_ok()) << slot.status().message();
  return slot.is_ok() ? slot.value() : Slot{};
}

inline std::vector<IoSegment> segment_of(const AlignedBuffer& buffer, const Slot& slot) {
  return {{buffer.data(), slot.offset, slot.bytes}};
}

inline void expect_message(const Status& status, StatusCode code, std::vector<std::string> parts) {
  EXPECT_EQ(status.code(), code) << status.message();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "\"" << part << "\" is not in: " << status.message();
  }
}

}  // namespace tencache
