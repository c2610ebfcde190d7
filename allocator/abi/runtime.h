// SPDX-License-Identifier: Apache-2.0
//
// Runtime: the one engine of the process with the options it was started from, and the texts and
// JSON that users see. The C ABI (abi/tencache.cpp) is a thin skin over it.
//
// It is never destroyed: at process exit threads may still be inside it, and freeing then would
// only add a way to crash. Threads: any.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/options.h"
#include "base/status.h"
#include "engine/cpu_engine.h"

namespace tencache {

/// The version of this library, "0.1.0".
extern const char* const kVersion;

class Runtime {
 public:
  static Runtime& instance();

  Status read_environment() TENCACHE_EXCLUDES(mutex_);
  Status set_option(std::string_view name, std::string_view text) TENCACHE_EXCLUDES(mutex_);
  static Status check_option(std::string_view name, std::string_view text);
  Status start() TENCACHE_EXCLUDES(mutex_);

  /// Null before start.
  CpuEngine* engine() const { return engine_.load(std::memory_order_acquire); }

  void set_arm_callback(void (*callback)()) { arm_callback_.store(callback); }
  void set_poll_callback(void (*callback)()) { poll_callback_.store(callback); }

  std::string stats_json() const TENCACHE_EXCLUDES(mutex_);
  std::string doctor_json() const TENCACHE_EXCLUDES(mutex_);
  /// Asked for every list op, also in forked children: no lock.
  uint64_t chunk_bytes() const { return chunk_bytes_.load(std::memory_order_relaxed); }

 private:
  Runtime() = default;
  Result<CpuEngineConfig> engine_config(std::string* origin) const TENCACHE_REQUIRES(mutex_);
  Result<DiskTierConfig> disk_config(std::string* origin) const TENCACHE_REQUIRES(mutex_);
  void announce_start(const std::string& origin) const TENCACHE_REQUIRES(mutex_);
  void announce_first_spill() const;

  std::atomic<CpuEngine*> engine_{nullptr};  // set once by start()
  std::atomic<void (*)()> arm_callback_{nullptr};
  std::atomic<void (*)()> poll_callback_{nullptr};
  std::atomic<uint64_t> start_ns_{0};
  std::atomic<uint64_t> chunk_bytes_{~uint64_t{0}};  // written before engine_ is set

  mutable Mutex mutex_;
  Options options_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
