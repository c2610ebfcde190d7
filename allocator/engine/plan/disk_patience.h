// SPDX-License-Identifier: Apache-2.0
//
// DiskPatience: decides whether threads that find no room go on waiting for a disk that takes
// nothing now. The disk may be full for a moment, at its quota, or behind a path that resets.
// Passes are tried again, after longer and longer pauses, until one frees room or the wait is over.
// After a wait in vain nobody waits again before the disk has taken something: each thread gets one
// try, and the error at once.
//
// Where host memory lies between device and disk, a pass that found nothing to evict begins no
// wait: the disk is not to blame.
//
// Threads: the evictor's worker alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "engine/move/move_ledger.h"
#include "tier/disk_tier.h"

namespace tencache {

struct DiskPatienceConfig {
  uint64_t wait_ns = 0;
  uint64_t (*clock)() = &now_ns;
  /// Pauses grow up to this, so that a full disk is left alone.
  std::chrono::nanoseconds longest_pause = std::chrono::milliseconds(500);
};

class DiskPatience {
 public:
  /// `disk` may be null. `is_below_host` says that what leaves the device goes to host memory
  /// first.
  DiskPatience(const DiskTier* disk, bool is_below_host, const DiskPatienceConfig& config)
      : disk_(disk), is_below_host_(is_below_host), config_(config) {}

  /// Records the result of a pass, and whether there was anything that it could try to evict.
  /// Returns whether to retry a pass that freed nothing.
  bool goes_on_after(const EvictionResult& pass, bool had_victims, bool is_demanded);
  /// How long to pause before the next try.
  std::chrono::nanoseconds next_pause();
  /// Why a pass freed nothing, for the thread that gets the error.
  Status reason_of(const EvictionResult& pass) const;

 private:
  const DiskTier* const disk_;
  const bool is_below_host_;
  const DiskPatienceConfig config_;
  std::optional<uint64_t> begin_ns_;  // while threads wait for the disk
  bool has_given_up_ = false;
  bool has_just_given_up_ = false;  // after the last pass
  bool has_warned_ = false;
  std::chrono::nanoseconds pause_{0};
};

}  // namespace tencache
