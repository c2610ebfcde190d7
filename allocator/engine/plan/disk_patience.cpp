// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/disk_patience.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"

namespace tencache {
namespace {

// The first pause is short enough for a thread that waits.
constexpr std::chrono::nanoseconds kFirstPause = std::chrono::milliseconds(5);

}  // namespace

bool DiskPatience::goes_on_after(const EvictionResult& pass, bool had_victims, bool is_demanded) {
  has_just_given_up_ = false;
  if (disk_ == nullptr || !disk_->is_failing()) {
    if (begin_ns_) TENCACHE_LOG_INFO("the disk takes tensors again");
    begin_ns_.reset();
    has_given_up_ = false;
    return false;
  }
  if (!is_demanded || pass.bytes > 0) {
    begin_ns_.reset();
    return false;
  }
  if (has_given_up_) return false;
  if (is_below_host_ && !begin_ns_ && !had_victims) return false;
  // Directly above the disk, a pass that could try nothing is no reason to go over the budget:
  // another thread may be trying the same extents.
  const uint64_t now = config_.clock();
  if (!begin_ns_) {
    begin_ns_ = now;
    pause_ = std::min(kFirstPause, config_.longest_pause);
  }
  if (now - *begin_ns_ >= config_.wait_ns) {
    begin_ns_.reset();
    has_given_up_ = true;
    has_just_given_up_ = true;
    return false;
  }
  if (!std::exchange(has_warned_, true)) {
    TENCACHE_LOG_WARNING(
        "the program waits for room until the disk takes tensors again, for %s at most "
        "(--disk-wait): %s",
        format_seconds(config_.wait_ns).c_str(), disk_->failure().clause().c_str());
  }
  return true;
}

std::chrono::nanoseconds DiskPatience::next_pause() {
  const std::chrono::nanoseconds pause = pause_;
  pause_ = std::min(2 * pause_, config_.longest_pause);
  return pause;
}

// On a GPU, a pass fails because host memory is full, and host memory is full because of the disk.
Status DiskPatience::reason_of(const EvictionResult& pass) const {
  const bool is_disks_fault = has_just_given_up_ || (has_given_up_ && !pass.failure.is_ok());
  if (!is_disks_fault) return pass.failure;
  Status failure = disk_->failure();
  if (failure.is_ok()) return pass.failure;  // the disk has just taken something
  if (config_.wait_ns == 0) return failure;
  return {failure.code(), failure.clause() + " (and it was no better " +
                              format_seconds(config_.wait_ns) + " later, --disk-wait)"};
}

}  // namespace tencache
