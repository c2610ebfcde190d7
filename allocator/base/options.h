// SPDX-License-Identifier: Apache-2.0
//
// The one table of options, which stands in base/options.cpp. Each row feeds the environment
// variable TENCACHE_<NAME>, the flag --<name> of `tencache run`, the keyword of tencache.enable(),
// `tencache doctor` and the table in docs/options.md (all but the variable read the table as JSON
// through the C ABI). The default of an option is the initial value of its member of Options; the
// table and all that shows it take it from there. (Engines that suites open without options have
// defaults in their own configurations, two of which are the constants below.) Options are read
// once, before the runtime starts, and are constant afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace tencache {

/// Whether to use a facility: if probing finds it, always (an error when it is absent), or never.
enum class Choice : uint8_t { kAuto, kOn, kOff };

/// Where the tensors are that move. The host program, which knows of GPUs, settles `auto`; for a
/// C++ program tencache_enable() does.
enum class BackendChoice : uint8_t { kAuto, kCpu, kCuda };

// The defaults of the options arm_at and extent_min, and of engines that suites open without
// options.
constexpr double kDefaultArmAt = 0.70;
constexpr uint64_t kDefaultExtentMinBytes = 1 << 20;

/// Parsed, checked values. `nullopt` means "auto", which probing settles; for chaos_seed it means
/// off.
struct Options {
  BackendChoice backend = BackendChoice::kAuto;  // backend: auto|cpu|cuda
  std::optional<uint64_t> device_memory_bytes;   // device_memory: budget of the device tier
  std::optional<uint64_t> host_memory_bytes;     // host_memory: budget of pinned host memory
  bool direct_storage = false;                   // direct_storage: from disk straight to a GPU
  bool launch_guard = true;                      // launch_guard: see kernels that no op announces
  std::string spill_dir;                         // spill_dir: empty = found by probing
  std::optional<uint64_t> disk_space_bytes;      // disk_space: quota of the disk tier
  uint64_t disk_wait_ns = 30'000'000'000;        // disk_wait: for a disk that takes nothing
  std::string stats_path;                        // stats: JSON written at exit; empty = none
  std::string trace_path;                        // trace: events written at exit; empty = none
  std::string record_path;                       // record: the learned period; empty = none
  std::string learn_from_path;                   // learn_from: one of an earlier run; empty = none
  bool strict = false;                           // strict: out of memory at the budget, never spill
  bool plan = true;                              // plan: learn what repeats and move ahead of use
  bool quiet = false;                            // quiet: warnings and errors only
  LogLevel log_level = LogLevel::kInfo;          // log_level: error|warning|info|debug
  uint64_t extent_min_bytes =
      kDefaultExtentMinBytes;          // extent_min: smaller allocations never go cold
  double arm_at = kDefaultArmAt;       // arm_at: share of the budget at which hooks arm
  double chunk_share = 0.05;           // chunk_share: share of the budget per list chunk
  Choice io_uring = Choice::kAuto;     // io_uring: auto|on|off
  Choice direct_io = Choice::kAuto;    // direct_io: auto|on|off
  Choice userfaultfd = Choice::kAuto;  // userfaultfd: auto|on|off
  std::optional<uint64_t> chaos_seed;  // chaos: evict whatever is unpinned at op ends
  double chaos_probability = 1.0;      // chaos_probability: chance per op end, 0..1
};

/// The table as a JSON array of objects {name, kind, choices, default, help, environment, flag}, in
/// the order in which they should be shown.
std::string option_table_json();

/// Sets one option by its name from text. Fails with kInvalidArgument for an unknown name (with the
/// known ones that may be meant) and for text that does not parse or is out of range; the message
/// names option, value, reason and remedy.
Status set_option(Options& options, std::string_view name, std::string_view text);

/// Reads every TENCACHE_<NAME> variable through `get` (getenv's contract). `names` lists the
/// variables that are present: one that starts with TENCACHE_ and names no option is an error.
/// TENCACHE itself (the switch) and the reserved names TENCACHE_INTERNAL_* are skipped.
Status read_environment(Options& options, const std::vector<std::string>& names,
                        const std::function<const char*(const char*)>& get);

/// The option's value as text that set_option accepts. It is the default's text if the option was
/// not set, and "" if no option has that name.
std::string option_text(const Options& options, std::string_view name);

/// The text of every option, in the order of the table. Paths come from the program, so they may
/// not be UTF-8.
nlohmann::ordered_json options_json(const Options& options);

}  // namespace tencache
