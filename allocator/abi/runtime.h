// SPDX-License-Identifier: Apache-2.0
//
// Runtime: the engines of the process, the options they were started with, and the texts and JSON
// that users see. start() makes the cpu backend's engine; the engine of a GPU is made when the host
// program first uses it. The C ABI (abi/tencache.cpp) is a thin layer over it.
//
// The Runtime is never destroyed: at process exit threads may still be inside it, and freeing it
// would only add a way to crash. Threads: any.
#pragma once

#include <atomic>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "abi/engines.h"
#include "abi/launch_gate.h"
#include "abi/record_choice.h"
#include "abi/tencache_gpu.h"
#include "abi/watch.h"
#include "base/mutex.h"
#include "base/options.h"
#include "base/status.h"
#include "engine/engine.h"

namespace tencache {

struct CpuDeviceConfig;
struct CudaDeviceConfig;

/// What became of the period that the option record asks for. The numbers are those of
/// tencache_recorded().
enum class Recorded : int8_t { kFailed = -1, kNothing = 0, kWritten = 1 };

/// The path made absolute. It stays as it is where the working directory is gone; whoever tries the
/// path says so.
std::string absolute_path(const std::string& path);

/// The version of this library, "0.1.0".
extern const char* const kVersion;

class Runtime {
 public:
  /// The Runtime of the process. The function is inline, since every op calls it twice.
  static Runtime& instance() {
    static Runtime* const runtime = new Runtime();
    return *runtime;
  }

  /// Sets every option to its environment variable, else to its default, and forgets learn_from().
  /// After start() this only checks the variables.
  Status read_environment() TENCACHE_EXCLUDES(mutex_);
  Status set_option(std::string_view name, std::string_view text) TENCACHE_EXCLUDES(mutex_);
  static Status check_option(std::string_view name, std::string_view text);
  std::string option_text(std::string_view name) const TENCACHE_EXCLUDES(mutex_);
  /// Keeps the period for the engines that are made from now on. After start() this fails.
  Status learn_from(const tencache_period& period, const char* const* op_names)
      TENCACHE_EXCLUDES(mutex_);
  Status start() TENCACHE_EXCLUDES(mutex_);

  bool is_started() const { return is_started_.load(std::memory_order_acquire); }
  /// Null before start, and on the cuda backend.
  Engine* cpu_engine() const { return cpu_engine_.load(std::memory_order_acquire); }
  Engines& engines() { return engines_; }
  LaunchGate& launches() { return launches_; }
  /// The arena that covers the address of every extent. It is the cpu engine's, or spans the arenas
  /// of all GPUs opened so far and the gaps between them. Atomic operations write its fields.
  const tencache_arena* arena() const { return &arena_; }

  /// The configuration of this GPU, from the options. The budget is 0 unless one was given. If no
  /// disk can be used below host memory, the configuration has none; that is an error only if a
  /// disk was asked for. Fails with kFailedPrecondition where the backend in force is not cuda, and
  /// with kUnavailable where no host memory is left.
  Result<CudaDeviceConfig> gpu_config(int ordinal) TENCACHE_EXCLUDES(mutex_);
  /// The configuration of the engine over this GPU.
  EngineConfig gpu_engine_config(int ordinal) TENCACHE_EXCLUDES(mutex_);
  /// Whether the disk shall be read straight into GPUs where possible.
  bool wants_direct_storage() TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return options_.direct_storage;
  }
  /// Adds an engine that serves the process from now on; `name` is the GPU's.
  Status add_gpu(const EngineEntry& gpu, const std::string& name, const tencache_arena& arena)
      TENCACHE_EXCLUDES(mutex_);

  void set_arm_callback(void (*callback)()) { arm_callback_.store(callback); }
  void set_poll_callback(void (*callback)()) { poll_callback_.store(callback); }

  /// 16 hexadecimal digits that the files of this process have in common, and no other files have.
  /// The text is empty before start.
  const std::string& run_id() const { return run_id_; }

  /// What became of the period so far. It is kFailed if what was learned could not be written, and
  /// nothing was written before.
  Recorded recorded() const { return recorded_.load(); }

  std::string stats_json() const TENCACHE_EXCLUDES(mutex_);
  /// The watch over all engines. Stop it before an engine goes.
  Watch& watch() { return watch_; }
  std::string doctor_json() const TENCACHE_EXCLUDES(mutex_);
  /// Every option's name and its value, as text.
  nlohmann::ordered_json options_json() const TENCACHE_EXCLUDES(mutex_);
  /// How many bytes one chunk of a list op should name. Every list op calls this, also in forked
  /// children, so it takes no lock.
  uint64_t chunk_bytes() const { return chunk_bytes_.load(std::memory_order_relaxed); }

 private:
  Runtime() = default;
  Status start_cpu() TENCACHE_REQUIRES(mutex_);
  Result<CpuDeviceConfig> cpu_config(std::string* origin) TENCACHE_REQUIRES(mutex_);
  Status settle_spill_dir() TENCACHE_REQUIRES(mutex_);
  EngineConfig engine_config(int ordinal) TENCACHE_REQUIRES(mutex_);
  void cover(const tencache_arena& arena) TENCACHE_REQUIRES(mutex_);
  void lower_chunk_bytes(uint64_t budget_bytes) TENCACHE_REQUIRES(mutex_);
  std::string as_asked() const TENCACHE_REQUIRES(mutex_);
  Result<DiskProbe> find_disk() const TENCACHE_REQUIRES(mutex_);
  DiskTierConfig disk_config(const DiskProbe& found) const TENCACHE_REQUIRES(mutex_);
  /// Records the period if it is the best choice so far. `ordinal` is that of the engine.
  void offer_period(const LearnedPlan& learned, int ordinal, const std::string& path)
      TENCACHE_EXCLUDES(record_mutex_);
  void record_period(const Trace& trace, const Machine& machine, const std::string& path);
  void announce_start(const std::string& origin) const TENCACHE_REQUIRES(mutex_);
  void watch_launches() TENCACHE_REQUIRES(mutex_);
  void announce_gpu(const EngineEntry& gpu, const std::string& name) const
      TENCACHE_REQUIRES(mutex_);
  /// Says why the engine with this ordinal spills, what goes where, and what comes of it.
  void announce_first_spill(int ordinal) const;

  std::atomic<bool> is_started_{false};
  std::atomic<Engine*> cpu_engine_{nullptr};  // set once by start()
  std::atomic<void (*)()> arm_callback_{nullptr};
  std::atomic<void (*)()> poll_callback_{nullptr};
  std::string run_id_;  // written once, before there are engines
  std::atomic<uint64_t> start_ns_{0};
  std::atomic<uint64_t> chunk_bytes_{~uint64_t{0}};  // from the smallest budget
  Engines engines_;
  LaunchGate launches_{engines_};
  Watch watch_{engines_};
  tencache_arena arena_ = {0, 0};
  std::atomic<bool> sees_launches_{false};
  std::atomic<Recorded> recorded_{Recorded::kNothing};

  mutable Mutex mutex_;
  Options options_ TENCACHE_GUARDED_BY(mutex_);
  std::shared_ptr<const Period> stored_period_ TENCACHE_GUARDED_BY(mutex_);

  Mutex record_mutex_;
  RecordChoice record_choice_ TENCACHE_GUARDED_BY(record_mutex_);
  std::shared_ptr<const Period> unwritten_period_ TENCACHE_GUARDED_BY(record_mutex_);
  Machine unwritten_machine_ TENCACHE_GUARDED_BY(record_mutex_);
  bool is_recording_ TENCACHE_GUARDED_BY(record_mutex_) = false;  // some thread writes the file
};

}  // namespace tencache
