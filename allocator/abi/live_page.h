// SPDX-License-Identifier: Apache-2.0
//
// LivePage: the counters of a running process, for other processes to read (`tencache top`). The
// page is a memfd of this layout; python/tencache/_live.py reads it. A changed layout gets a new
// version.
//
// Note [Live page]: the page has no name in any file system. Whoever may look into the process (the
// kernel decides: the process's own user and root) finds the page among the process's descriptors
// (/proc/PID/fd, "memfd:tencache-live"), also from outside of a container. Nothing is left of the
// page when the process is gone, however it ends. A forked child inherits the descriptor and not
// the mapping; `start_ticks` tells whose page it is. The page is sealed against other sizes, so a
// reader never faults. The process writes the page, reads nothing of it but `sequence`, and never
// uses the descriptor again. The page holds counters and no text, no name and no address.
//
// Readers compare `sequence` before and after: it is odd while a sample is being written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tencache {

inline constexpr char kLivePageName[] = "tencache-live";
inline constexpr uint64_t kLivePageMagic = 0x6568'6361'636e'6574;  // "tencache"
inline constexpr uint64_t kLivePageVersion = 1;
inline constexpr size_t kLiveEnginesMax = 16;

/// The figures of one engine: bytes, nanoseconds, counts.
struct LiveEngine {
  uint64_t ordinal = 0;  // of the GPU; all ones on the cpu backend
  uint64_t device_budget = 0;
  uint64_t device_used = 0;
  uint64_t live = 0;
  uint64_t cached = 0;
  uint64_t host_budget = 0;
  uint64_t host_used = 0;
  uint64_t disk_budget = 0;
  uint64_t disk_used = 0;
  uint64_t evicted = 0;
  uint64_t fetched = 0;
  uint64_t clean_dropped = 0;
  uint64_t disk_written = 0;
  uint64_t disk_read = 0;
  uint64_t early_fetches = 0;
  uint64_t late_fetches = 0;
  uint64_t wasted_fetches = 0;
  uint64_t stall_ns = 0;
  uint64_t thread_wait_ns = 0;
  uint64_t over_budget_events = 0;
  uint64_t ops = 0;
  uint64_t steps = 0;
};

struct LivePage {
  uint64_t magic = kLivePageMagic;
  uint64_t version = kLivePageVersion;
  uint64_t sequence = 0;
  uint64_t start_ticks = 0;  // of the process, as in /proc/PID/stat
  uint64_t rank_plus_1 = 0;  // 0: the launcher gave none
  uint64_t started_ns = 0;   // when tencache started, by CLOCK_MONOTONIC
  uint64_t sampled_ns = 0;   // when this sample was taken
  uint64_t is_armed = 0;
  uint64_t engine_count = 0;
  LiveEngine engines[kLiveEnginesMax];
};

}  // namespace tencache
