// SPDX-License-Identifier: Apache-2.0
#include "abi/runtime.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "abi/period_arrays.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/shown_text.h"
#include "base/units.h"
#include "engine/cpu_device.h"
#include "learn/period_writer.h"
#include "platform/launch_rank.h"
#include "platform/machine.h"

namespace tencache {
namespace {

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && text.starts_with("TENCACHE")) {
      names.emplace_back(text.substr(0, equals));
    }
  }
  return names;
}

// A random number as 16 hexadecimal digits. Where the kernel has none yet, the process's number and
// the time tell runs apart.
std::string new_run_id() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != ssize_t{sizeof number}) {
    number = now_ns() ^ static_cast<uint64_t>(getpid()) << 40;
  }
  char text[17];
  snprintf(text, sizeof text, "%016lx", number);
  return text;
}

}  // namespace

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

const char* const kVersion = TENCACHE_VERSION;

Status Runtime::read_environment() {
  MutexLock lock(mutex_);
  Options options;
  TENCACHE_RETURN_IF_ERROR(tencache::read_environment(
      options, environment_names(),
      [](const char* name) { return static_cast<const char*>(std::getenv(name)); }));
  if (is_started()) return Status::ok();
  options_ = std::move(options);
  stored_period_ = nullptr;
  return Status::ok();
}

Status Runtime::check_option(std::string_view name, std::string_view text) {
  Options scratch;
  return tencache::set_option(scratch, name, text);
}

Status Runtime::set_option(std::string_view name, std::string_view text) {
  MutexLock lock(mutex_);
  Options changed = options_;
  TENCACHE_RETURN_IF_ERROR(tencache::set_option(changed, name, text));
  if (is_started() && name == "spill_dir" && !changed.spill_dir.empty()) {
    changed.spill_dir = absolute_path(changed.spill_dir);  // as start() did
  }
  // The backend that was started has settled what auto means.
  const bool is_settled = name == "backend" && changed.backend == BackendChoice::kAuto;
  if (is_started() && is_settled) return Status::ok();
  const std::string in_force = tencache::option_text(options_, name);
  const std::string wished = tencache::option_text(changed, name);
  if (is_started() && in_force != wished) {
    return Status(StatusCode::kFailedPrecondition,
                  "tencache is already enabled with " + std::string(name) + "=" + shown(in_force) +
                      " and cannot change to " + shown(wished) +
                      "; enable it once, with the options you want, before the model is built");
  }
  options_ = std::move(changed);
  return Status::ok();
}

std::string Runtime::option_text(std::string_view name) const {
  MutexLock lock(mutex_);
  return tencache::option_text(options_, name);
}

Status Runtime::learn_from(const tencache_period& period, const char* const* op_names) {
  MutexLock lock(mutex_);
  if (is_started()) {
    return {StatusCode::kFailedPrecondition,
            "tencache is enabled already, so it cannot follow a recorded period from the first "
            "step on; give the file when you enable it"};
  }
  Result<Period> stored = to_stored_period(
      period, op_names, [this](std::string_view name) { return engines_.register_op(name); });
  if (!stored.is_ok()) return stored.status();
  stored_period_ = std::make_shared<const Period>(std::move(stored).value());
  return Status::ok();
}

Status Runtime::start() {
  MutexLock lock(mutex_);
  if (is_started()) return Status::ok();
  const int rank = launch_rank();
  if (rank >= 0) set_log_label("rank " + std::to_string(rank));
  set_log_level(options_.quiet ? std::min(options_.log_level, LogLevel::kWarning)
                               : options_.log_level);
  if (stored_period_ != nullptr && (options_.strict || !options_.plan)) {
    TENCACHE_LOG_WARNING("learn_from=%s has no effect: with %s nothing is planned",
                         shown(options_.learn_from_path).c_str(),
                         options_.strict ? "strict=on" : "plan=off");
  }
  if (run_id_.empty()) run_id_ = new_run_id();
  TENCACHE_RETURN_IF_ERROR(settle_spill_dir());
  // A GPU is opened when it is first used.
  if (options_.backend != BackendChoice::kCuda) TENCACHE_RETURN_IF_ERROR(start_cpu());
  start_ns_.store(now_ns());
  watch_.start(start_ns_.load(), rank);
  is_started_.store(true, std::memory_order_release);
  return Status::ok();
}

// Makes the spill directory absolute now, and probes it if it is used later: a GPU is opened long
// after the start, and by then the program may have changed its working directory.
Status Runtime::settle_spill_dir() {
  if (options_.spill_dir.empty()) return Status::ok();
  options_.spill_dir = absolute_path(options_.spill_dir);
  const bool is_used_later = options_.backend == BackendChoice::kCuda && !options_.strict;
  return is_used_later ? probe_directory(options_.spill_dir).status() : Status::ok();
}

Status Runtime::start_cpu() {
  std::string origin;
  const Result<CpuDeviceConfig> config = cpu_config(&origin);
  if (!config.is_ok()) return config.status();
  Result<std::unique_ptr<CpuDevice>> device = CpuDevice::open(config.value());
  if (!device.is_ok()) return device.status();
  const AddressArena& arena = device.value()->arena();
  Result<std::unique_ptr<Engine>> engine =
      Engine::create(engine_config(EngineEntry::kHost), std::move(device).value());
  if (!engine.is_ok()) return engine.status();
  lower_chunk_bytes(engine.value()->budget().limit());
  cover({reinterpret_cast<uintptr_t>(arena.base()), arena.bytes()});
  Engine* const made = std::move(engine).value().release();
  cpu_engine_.store(made, std::memory_order_release);
  TENCACHE_RETURN_IF_ERROR(engines_.add({EngineEntry::kHost, made}));
  announce_start(origin);
  return Status::ok();
}

void Runtime::lower_chunk_bytes(uint64_t budget_bytes) {
  const auto bytes =
      static_cast<uint64_t>(static_cast<double>(budget_bytes) * options_.chunk_share);
  chunk_bytes_.store(std::min(bytes, chunk_bytes()), std::memory_order_relaxed);
}

// Moves the end up before it moves the base down. Readers read the base first, so at every moment
// they see all that was covered before.
void Runtime::cover(const tencache_arena& arena) {
  const std::atomic_ref<uintptr_t> base(arena_.base);
  const std::atomic_ref<size_t> bytes(arena_.bytes);
  const uintptr_t old_base = base.load();
  const bool is_first = bytes.load() == 0;
  const uintptr_t new_base = is_first ? arena.base : std::min(old_base, arena.base);
  const uintptr_t end = std::max(old_base + bytes.load(), arena.base + arena.bytes);
  if (is_first) {
    base.store(new_base);
    bytes.store(end - new_base);
  } else {
    bytes.store(end - new_base);
    base.store(new_base);
  }
}

EngineConfig Runtime::engine_config(int ordinal) {
  EngineConfig config;
  config.arm_at = options_.arm_at;
  config.plans = options_.plan;
  config.disk_patience.wait_ns = options_.disk_wait_ns;
  config.stored_period = stored_period_;
  if (options_.chaos_seed) {
    config.chaos = ChaosConfig{*options_.chaos_seed, options_.chaos_probability};
  }
  config.hooks.on_arm = [this] {
    if (auto* callback = arm_callback_.load()) callback();
  };
  config.hooks.before_pass = [this] {
    if (auto* callback = poll_callback_.load()) callback();
  };
  config.hooks.on_first_spill = [this, ordinal] { announce_first_spill(ordinal); };
  if (!options_.record_path.empty()) {
    config.hooks.on_learned_plan = [this, ordinal,
                                    path = options_.record_path](const LearnedPlan& learned) {
      offer_period(learned, ordinal, path);
    };
  }
  return config;
}

Result<CpuDeviceConfig> Runtime::cpu_config(std::string* origin) {
  const MachineMemory memory = probe_memory();
  CpuDeviceConfig config;
  if (options_.device_memory_bytes) {
    config.budget_bytes = *options_.device_memory_bytes;
    *origin = as_asked();
  } else {
    const DefaultBudget budget = default_device_budget(memory);
    config.budget_bytes = budget.bytes;
    *origin = budget.reason;
  }
  config.heap.extent_min_bytes = options_.extent_min_bytes;
  config.heap.strict = options_.strict;
  config.heap.request_bytes_max = memory.total_bytes + memory.swap_bytes;
  // An extent costs up to three mappings: itself and the reservation on both sides.
  config.heap.extent_count_max = std::max<uint64_t>(memory.map_count_max / 4, 1);
  config.userfaultfd = options_.userfaultfd;
  if (!options_.strict) {
    const Result<DiskProbe> found = find_disk();
    if (!found.is_ok()) return found.status();
    config.disk = disk_config(found.value());
    *origin += "), cold tensors go to " + shown(found.value().directory) + " (" +
               found.value().file_system + ", " + format_bytes(found.value().free_bytes) + " free";
  }
  return config;
}

// Returns "as asked", for the line at the start. That line shows the budget in binary units, so a
// budget that was asked for in other units comes first, in those.
std::string Runtime::as_asked() const {
  const std::string asked = tencache::option_text(options_, "device_memory");
  return asked.ends_with("iB") ? "as asked" : asked + " as asked";
}

Result<DiskProbe> Runtime::find_disk() const {
  return options_.spill_dir.empty() ? find_spill_directory() : probe_directory(options_.spill_dir);
}

DiskTierConfig Runtime::disk_config(const DiskProbe& found) const {
  DiskTierConfig config;
  config.directory = found.directory;
  config.quota_bytes = options_.disk_space_bytes;
  config.io_uring = options_.io_uring;
  config.direct_io = options_.direct_io;
  return config;
}

// Each engine's learner calls this on its own thread. The lock is not held while the file is
// written. Instead one thread at a time writes, and goes on until it has written the last choice.
void Runtime::offer_period(const LearnedPlan& learned, int ordinal, const std::string& path) {
  {
    MutexLock lock(record_mutex_);
    if (!record_choice_.takes(learned, ordinal)) return;
    unwritten_period_ = learned.period;
    unwritten_machine_ = learned.machine;
    if (is_recording_) return;
    is_recording_ = true;
  }
  for (;;) {
    std::shared_ptr<const Period> period;
    Machine machine;
    {
      MutexLock lock(record_mutex_);
      period.swap(unwritten_period_);
      machine = unwritten_machine_;
      is_recording_ = period != nullptr;
    }
    if (period == nullptr) return;
    record_period(period->trace, machine, path);
  }
}

void Runtime::record_period(const Trace& trace, const Machine& machine, const std::string& path) {
  const Status status = write_period(trace, machine, path, run_id_);
  if (status.is_ok()) {
    recorded_.store(Recorded::kWritten);
    return;
  }
  Recorded before = Recorded::kNothing;
  recorded_.compare_exchange_strong(before, Recorded::kFailed);
  TENCACHE_LOG_ERROR("the learned period could not be written to %s: %s", shown(path).c_str(),
                     status.message().c_str());
}

void Runtime::announce_start(const std::string& origin) const {
  std::string used_of_disk;
  if (const DiskTier* disk = cpu_engine()->device().disk()) {
    used_of_disk = ", at most " + format_bytes(disk->quota_bytes()) + " used";
  }
  TENCACHE_LOG_INFO("%s on the cpu backend: device budget %s (%s%s)%s", kVersion,
                    format_bytes(cpu_engine()->budget().limit()).c_str(), origin.c_str(),
                    used_of_disk.c_str(),
                    options_.strict ? ", strict: out of memory at the budget, no spilling" : "");
}

void Runtime::announce_first_spill(int ordinal) const {
  Engine* engine = nullptr;  // stays null for a GPU that is still being opened
  for (const EngineEntry& entry : engines_.all()) {
    if (entry.ordinal == ordinal) engine = entry.engine;
  }
  std::string reason = "use of GPU " + std::to_string(ordinal) + " came near its budget";
  std::string target = "host memory";
  if (Engine* const cpu = cpu_engine()) {
    reason = "use reached " + format_bytes(cpu->stats().peak_device_bytes.load()) +
             " of the device budget of " + format_bytes(cpu->budget().limit());
    target = cpu->device().disk()->shown_directory();
  }
  Learner* const learner = engine != nullptr ? engine->learner() : nullptr;
  const LearnerSummary summary = learner != nullptr ? learner->summary() : LearnerSummary();
  std::string text = "tensors that were not used for the longest time go to " + target;
  if (summary.following.kind != 0) {
    text = "tensors that the plan needs last go to " + target +
           " from now on, and come back ahead of their use";
  } else if (summary.stored_ticks > 0) {
    text += " until the program does what the file of learn_from tells";
  } else {
    text += " from now on, so steps get slower";
  }
  TENCACHE_LOG_INFO("first spill: %s; %s", reason.c_str(), text.c_str());
}

}  // namespace tencache
