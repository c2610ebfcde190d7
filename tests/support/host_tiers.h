// SPDX-License-Identifier: Apache-2.0
//
// Helpers of the host tier's suites: tiers and blocks whose making must succeed, and memory that is
// only addresses.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "support/random.h"
#include "tier/host_tier.h"

namespace tencache {

inline std::unique_ptr<HostTier> make_tier(HostTierConfig config) {
  Result<std::unique_ptr<HostTier>> tier = HostTier::create(std::move(config));
  EXPECT_TRUE(tier.is_ok()) << tier.status().message();
  return tier.is_ok() ? std::move(tier).value() : nullptr;
}

inline HostBlock must_allocate(HostTier& tier, uint64_t bytes) {
  Result<HostBlock> block = tier.allocate(bytes);
  EXPECT_TRUE(block.is_ok()) << block.status().message();
  return block.is_ok() ? block.value() : HostBlock();
}

/// A chunk without memory, for tests of placement alone: touching it crashes.
inline Result<HostMemory> map_addresses(const HostMemoryRequest& request) {
  void* memory =
      mmap(nullptr, request.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return status_from_errno(errno, "cannot map addresses");
  return HostMemory(static_cast<char*>(memory), request.bytes, HostPlacement());
}

}  // namespace tencache
