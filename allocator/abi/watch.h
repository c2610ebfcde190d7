// SPDX-License-Identifier: Apache-2.0
//
// Watch: samples the counters of all engines a few times a second. It publishes each sample
// (abi/live_page.h) and keeps a history: bytes on each tier, traffic and stall over the life of the
// process, in a fixed number of samples. When that is reached, every second sample goes, and from
// then on only every second one is kept. So the history of a week takes no more room than that of
// some minutes.
//
// A sample reads some dozens of counters and takes some tens of microseconds. On cuda it asks the
// driver which waits the device has ended.
//
// Threads: `tencache-watch` samples; any thread asks for the history. mutex_ is a leaf; it guards
// the history, and one thread at a time writes the page. A forked child has no history: the
// parent's lock may have been held at the fork, and then stays held for ever in the child.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "abi/engines.h"
#include "abi/live_page.h"
#include "base/mutex.h"

namespace tencache {

inline constexpr std::chrono::milliseconds kWatchInterval{200};
inline constexpr size_t kHistorySamplesMax = 1024;

/// What is kept of a sample, added up over the engines.
struct HistorySample {
  uint64_t at_ns = 0;  // since tencache started
  uint64_t device = 0;
  uint64_t live = 0;
  uint64_t host = 0;
  uint64_t disk = 0;
  uint64_t evicted = 0;
  uint64_t fetched = 0;
  uint64_t disk_written = 0;
  uint64_t disk_read = 0;
  uint64_t stall_ns = 0;
  uint64_t steps = 0;
};

class Watch {
 public:
  /// The engines outlive the watch.
  explicit Watch(const Engines& engines) : engines_(engines) {}
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Starts the thread that samples for the rest of the process. Call once at most. Without a page
  /// `tencache top` does not see the process; without a thread the history is only the first sample
  /// and the present.
  void start(uint64_t started_ns, int rank);
  /// Ends the thread that samples. Call on one thread, before an engine goes, which happens in
  /// tests alone.
  void stop() TENCACHE_EXCLUDES(mutex_);
  /// Takes a sample now.
  void sample() TENCACHE_EXCLUDES(mutex_);
  /// All samples that were kept and one taken now, as tencache_history_json() describes them.
  std::string history_json() TENCACHE_EXCLUDES(mutex_);

 private:
  std::vector<LiveEngine> sample_all() const;
  static LiveEngine sample_of(const EngineEntry& entry);
  void publish(const std::vector<LiveEngine>& engines, uint64_t now) TENCACHE_REQUIRES(mutex_);
  HistorySample sum_of(const std::vector<LiveEngine>& engines, uint64_t now) const;
  void keep(const HistorySample& sample) TENCACHE_REQUIRES(mutex_);
  void work() TENCACHE_EXCLUDES(mutex_);

  const Engines& engines_;
  pid_t owner_pid_ = 0;
  uint64_t started_ns_ = 0;
  LivePage* page_ = nullptr;  // null: it could not be made
  std::thread thread_;

  Mutex mutex_;
  CondVar stopping_;
  bool is_stopping_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::vector<HistorySample> history_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t samples_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t samples_per_kept_ TENCACHE_GUARDED_BY(mutex_) = 1;
};

}  // namespace tencache
