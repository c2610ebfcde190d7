// SPDX-License-Identifier: Apache-2.0
//
// The one table of options (kRows) and the functions that loop over it. A row names an option,
// describes it, and converts it between text and the Options struct. The text that a row's format
// function gives is accepted by its parse function and means the same value. Nothing here keeps
// state.
//
// A new option takes:
//   1. a member of Options, with its default, and a row here; kRows has one more
//   2. a member of the configuration of the part that obeys, and the line that fills it:
//      EngineConfig, CpuDeviceConfig, HeapConfig or DiskTierConfig in Runtime::engine_config,
//      cpu_config or disk_config (abi/runtime.cpp); CudaDeviceConfig, and HeapConfig once more, in
//      Runtime::gpu_config (abi/runtime_gpus.cpp). Engine::make_parts hands an engine's member on,
//      CpuDevice::open_parts or CudaDevice::open_parts a device's. The runtime obeys a few itself.
//   3. where only the machine tells whether a value will do, a check in Runtime::start: on the cuda
//      backend a GPU is opened long after that
//   4. in tests/allocator/options_test.cpp the count of rows, a text for it and its bounds; where a
//      GPU obeys, a line in RuntimeGpusTest.OptionsReachTheGpu; a test of what it does in the suite
//      of the part that obeys
//   5. its row in docs/options.md (after `make build`, `.venv/bin/python -m tencache._options`
//      prints the table), what it does in docs/cpu.md or docs/cuda.md, a line in CHANGELOG.md
// Flags, keywords, variables and `tencache doctor` follow from the row. In a Python program, Python
// reads and writes the files that options name (python/tencache/_runtime.py), except for the
// recorded period; in a C++ program, abi/exit_report.cpp writes them.
#include "base/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/ascii.h"
#include "base/shown_text.h"
#include "base/units.h"

namespace tencache {
namespace {

/// Why a parse function refused a text, as the end of a sentence. It is empty when the function
/// took the text.
using Refusal = std::string;

struct Row {
  std::string_view name;     // "device_memory"
  std::string_view kind;     // "bytes" | "path" | "flag" | "choice" | "number"
  std::string_view choices;  // for "choice": "auto|on|off"; else empty
  std::string_view help;     // sentences; the last ends in a full stop
  Refusal (*parse)(Options& options, std::string_view text);
  std::string (*format)(const Options& options);
};

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kOff = "off";
constexpr std::string_view kEnvironmentPrefix = "TENCACHE_";
constexpr std::string_view kInternalPrefix = "TENCACHE_INTERNAL_";
// A longer name is not compared with the known ones. Names come from the environment too, where
// they can have any length.
constexpr size_t kAskedNameMax = 64;
constexpr uint64_t kMemoryBytesMin = kMiB;
constexpr uint64_t kExtentMinBytesMin = 4 * kKiB;
constexpr uint64_t kExtentMinBytesMax = kGiB;
constexpr uint64_t kWaitNsMax = uint64_t{24} * 3600 * 1'000'000'000;

// ---- Text to value -------------------------------------------------------------------------

Refusal parse_size(std::string_view text, uint64_t min, uint64_t max, uint64_t& value) {
  Result<uint64_t> bytes = parse_bytes(text);
  if (!bytes.is_ok()) return bytes.status().message();
  if (bytes.value() < min) return "It must be at least " + format_bytes(min) + ".";
  if (bytes.value() > max) return "It must be at most " + format_bytes(max) + ".";
  value = bytes.value();
  return {};
}

Refusal parse_optional_size(std::string_view text, std::optional<uint64_t>& value) {
  if (lower_case(text) == kAuto) {
    value.reset();
    return {};
  }
  uint64_t bytes = 0;
  Refusal refusal = parse_size(text, kMemoryBytesMin, UINT64_MAX, bytes);
  if (refusal.empty()) value = bytes;
  return refusal;
}

Refusal parse_wait(std::string_view text, uint64_t& ns) {
  const Result<uint64_t> parsed = parse_seconds(text);
  if (!parsed.is_ok()) return parsed.status().message();
  if (parsed.value() > kWaitNsMax) return "It must be at most 1 day.";
  ns = parsed.value();
  return {};
}

Refusal parse_path(std::string_view text, std::string_view none, std::string& path) {
  if (text.empty()) return "It is empty. Give a path, or " + std::string(none) + ".";
  if (text.find('\0') != std::string_view::npos) return "A path holds no zero byte.";
  if (text == none) {
    path.clear();
  } else {
    path = text;
  }
  return {};
}

Refusal parse_flag(std::string_view text, bool& value) {
  const std::string word = lower_case(text);
  if (word == "1" || word == "true" || word == "on" || word == "yes") {
    value = true;
  } else if (word == "0" || word == "false" || word == "off" || word == "no") {
    value = false;
  } else {
    return "It must be on or off.";
  }
  return {};
}

Refusal parse_share(std::string_view text, bool zero_allowed, double& value) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  // The comparison is written so that it refuses "nan", too.
  const bool in_range = zero_allowed ? number >= 0 && number <= 1 : number > 0 && number <= 1;
  if (error != std::errc() || rest != end || !in_range) {
    return zero_allowed ? "It must be a number from 0 to 1." : "It must be above 0 and at most 1.";
  }
  value = number;
  return {};
}

constexpr std::array<std::string_view, 3> kChoiceNames = {"auto", "on", "off"};
constexpr std::array<std::string_view, 3> kBackendNames = {"auto", "cpu", "cuda"};
constexpr std::array<std::string_view, 4> kLevelNames = {"error", "warning", "info", "debug"};

/// Parses one of `names`. The enumerators of `Enum` count up from 0 in the same order.
template <typename Enum, size_t kCount>
Refusal parse_enum(std::string_view text, const std::array<std::string_view, kCount>& names,
                   Enum& value) {
  const auto found = std::find(names.begin(), names.end(), lower_case(text));
  if (found == names.end()) {
    Refusal refusal = "It must be one of ";
    for (std::string_view name : names) refusal.append(name).append(", ");
    refusal.replace(refusal.size() - 2, 2, ".");
    return refusal;
  }
  value = static_cast<Enum>(found - names.begin());
  return {};
}

Refusal parse_seed(std::string_view text, std::optional<uint64_t>& seed) {
  if (lower_case(text) == kOff) {
    seed.reset();
    return {};
  }
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return "It must be off or an unsigned whole number.";
  seed = number;
  return {};
}

// ---- Value to text -------------------------------------------------------------------------

struct SizeUnit {
  const char* name;
  uint64_t bytes;
};

// Of units that make equally short texts, the first is taken.
constexpr std::array<SizeUnit, 7> kSizeUnits = {{{"GiB", kGiB},
                                                 {"MiB", kMiB},
                                                 {"KiB", kKiB},
                                                 {"GB", 1'000'000'000},
                                                 {"MB", 1'000'000},
                                                 {"kB", 1000},
                                                 {"", 1}}};

/// The shortest text that loses no digit: what was asked for as 2GB is 2GB, and not 1953125KiB.
std::string format_size(uint64_t bytes) {
  std::string shortest;
  for (const SizeUnit& unit : kSizeUnits) {
    if (bytes % unit.bytes != 0 || (bytes == 0 && unit.bytes > 1)) continue;
    const std::string text = std::to_string(bytes / unit.bytes) + unit.name;
    if (shortest.empty() || text.size() < shortest.size()) shortest = text;
  }
  return shortest;
}

std::string format_optional_size(const std::optional<uint64_t>& bytes) {
  return bytes ? format_size(*bytes) : std::string(kAuto);
}

std::string format_path(const std::string& path, std::string_view none) {
  return path.empty() ? std::string(none) : path;
}

std::string format_flag(bool value) { return value ? "on" : "off"; }

std::string format_number(double value) {
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc() ? std::string(buffer, end) : std::string();
}

template <typename Enum, size_t kCount>
std::string format_enum(Enum value, const std::array<std::string_view, kCount>& names) {
  return std::string(names.at(static_cast<size_t>(value)));
}

// ---- The table -----------------------------------------------------------------------------

constexpr std::array<Row, 24> kRows = {{
    {"device_memory", "bytes", "",
     "Budget of the device tier: DRAM for tensors, where auto takes what the cgroup or the "
     "machine leaves, less a reserve; or each GPU's memory, where auto takes 90 %.",
     [](Options& o, std::string_view t) { return parse_optional_size(t, o.device_memory_bytes); },
     [](const Options& o) { return format_optional_size(o.device_memory_bytes); }},
    {"backend", "choice", "auto|cpu|cuda",
     "Which tensors move: those in DRAM, to disk (cpu), or those on GPUs, to host memory and from "
     "there to disk (cuda); auto takes GPUs where torch sees one.",
     [](Options& o, std::string_view t) { return parse_enum(t, kBackendNames, o.backend); },
     [](const Options& o) { return format_enum(o.backend, kBackendNames); }},
    {"host_memory", "bytes", "",
     "With GPUs: budget of pinned host memory for tensors that leave a GPU, one for each GPU; "
     "auto takes what the cgroup or the machine leaves, less a reserve.",
     [](Options& o, std::string_view t) { return parse_optional_size(t, o.host_memory_bytes); },
     [](const Options& o) { return format_optional_size(o.host_memory_bytes); }},
    {"direct_storage", "flag", "",
     "With GPUs: read tensors from disk straight into a GPU's memory, where the machine has "
     "NVIDIA's GPUDirect Storage.",
     [](Options& o, std::string_view t) { return parse_flag(t, o.direct_storage); },
     [](const Options& o) { return format_flag(o.direct_storage); }},
    {"launch_guard", "flag", "",
     "With GPUs: also see kernels that no op announces, as of extensions or CuPy, through a "
     "library that `tencache run` preloads.",
     [](Options& o, std::string_view t) { return parse_flag(t, o.launch_guard); },
     [](const Options& o) { return format_flag(o.launch_guard); }},
    {"spill_dir", "path", "",
     "Directory of the spill file; auto takes the first usable one of TMPDIR, the user's cache "
     "directory, /var/tmp and the working directory.",
     [](Options& o, std::string_view t) { return parse_path(t, kAuto, o.spill_dir); },
     [](const Options& o) { return format_path(o.spill_dir, kAuto); }},
    {"disk_space", "bytes", "",
     "Quota of the disk tier, with GPUs one for each; auto takes a share of the file system's "
     "free space, as it is when the spill file grows.",
     [](Options& o, std::string_view t) { return parse_optional_size(t, o.disk_space_bytes); },
     [](const Options& o) { return format_optional_size(o.disk_space_bytes); }},
    {"disk_wait", "number", "",
     "Seconds to wait for room while the disk is full or fails, before the program gets an "
     "out-of-memory error; at most 1 day.",
     [](Options& o, std::string_view t) { return parse_wait(t, o.disk_wait_ns); },
     [](const Options& o) { return format_seconds(o.disk_wait_ns); }},
    {"stats", "path", "", "File that receives the stats as JSON when the program ends.",
     [](Options& o, std::string_view t) { return parse_path(t, kOff, o.stats_path); },
     [](const Options& o) { return format_path(o.stats_path, kOff); }},
    {"trace", "path", "",
     "File that receives the newest events as JSON lines when the program ends: up to 5 MiB for "
     "each thread that runs ops, and 10 MiB for moves. With several GPUs it covers the one "
     "used first.",
     [](Options& o, std::string_view t) { return parse_path(t, kOff, o.trace_path); },
     [](const Options& o) { return format_path(o.trace_path, kOff); }},
    {"record", "path", "",
     "File that receives one learned period of the program as JSON lines, for `tencache plan` and "
     "learn_from; with several GPUs the one that needs the most memory.",
     [](Options& o, std::string_view t) { return parse_path(t, kOff, o.record_path); },
     [](const Options& o) { return format_path(o.record_path, kOff); }},
    {"learn_from", "path", "",
     "File that an earlier run of the program has recorded: its period is planned at once and "
     "followed from the first step on.",
     [](Options& o, std::string_view t) { return parse_path(t, kOff, o.learn_from_path); },
     [](const Options& o) { return format_path(o.learn_from_path, kOff); }},
    {"strict", "flag", "", "Raise an out-of-memory error at the budget instead of spilling.",
     [](Options& o, std::string_view t) { return parse_flag(t, o.strict); },
     [](const Options& o) { return format_flag(o.strict); }},
    {"plan", "flag", "",
     "Learn what the program repeats and move tensors ahead of use; off moves the least "
     "recently used ones when room is short.",
     [](Options& o, std::string_view t) { return parse_flag(t, o.plan); },
     [](const Options& o) { return format_flag(o.plan); }},
    {"quiet", "flag", "",
     "Print warnings and errors only: no line at the start, none at the first spill, no summary.",
     [](Options& o, std::string_view t) { return parse_flag(t, o.quiet); },
     [](const Options& o) { return format_flag(o.quiet); }},
    {"log_level", "choice", "error|warning|info|debug",
     "The most verbose kind of message that is printed.",
     [](Options& o, std::string_view t) { return parse_enum(t, kLevelNames, o.log_level); },
     [](const Options& o) { return format_enum(o.log_level, kLevelNames); }},
    {"extent_min", "bytes", "",
     "Allocations smaller than this stay resident, unless they fill the budget (in DRAM); from "
     "4KiB to 1GiB, and on GPUs at least 2MiB.",
     [](Options& o, std::string_view t) {
       return parse_size(t, kExtentMinBytesMin, kExtentMinBytesMax, o.extent_min_bytes);
     },
     [](const Options& o) { return format_size(o.extent_min_bytes); }},
    {"arm_at", "number", "",
     "Share of the budget in use at which ops begin to be watched; above 0, at most 1. On GPUs "
     "without the launch guard they always are.",
     [](Options& o, std::string_view t) { return parse_share(t, false, o.arm_at); },
     [](const Options& o) { return format_number(o.arm_at); }},
    {"chunk_share", "number", "",
     "Share of the budget that one chunk of a multi-tensor op may name; above 0, at most 1.",
     [](Options& o, std::string_view t) { return parse_share(t, false, o.chunk_share); },
     [](const Options& o) { return format_number(o.chunk_share); }},
    {"io_uring", "choice", "auto|on|off",
     "Whether the disk tier uses io_uring; auto falls back to a pool of threads.",
     [](Options& o, std::string_view t) { return parse_enum(t, kChoiceNames, o.io_uring); },
     [](const Options& o) { return format_enum(o.io_uring, kChoiceNames); }},
    {"direct_io", "choice", "auto|on|off",
     "Whether the disk tier bypasses the page cache (O_DIRECT); auto falls back to buffered.",
     [](Options& o, std::string_view t) { return parse_enum(t, kChoiceNames, o.direct_io); },
     [](const Options& o) { return format_enum(o.direct_io, kChoiceNames); }},
    {"userfaultfd", "choice", "auto|on|off",
     "Whether other tensors take over the pages of tensors that leave DRAM, by the kernel's "
     "userfaultfd; auto gives the pages back where it is not allowed.",
     [](Options& o, std::string_view t) { return parse_enum(t, kChoiceNames, o.userfaultfd); },
     [](const Options& o) { return format_enum(o.userfaultfd, kChoiceNames); }},
    {"chaos", "number", "",
     "For tests: seed with which everything unpinned is evicted at random op ends.",
     [](Options& o, std::string_view t) { return parse_seed(t, o.chaos_seed); },
     [](const Options& o) {
       return o.chaos_seed ? std::to_string(*o.chaos_seed) : std::string(kOff);
     }},
    {"chaos_probability", "number", "",
     "For tests: chance from 0 to 1 that an op end evicts; needs chaos.",
     [](Options& o, std::string_view t) { return parse_share(t, true, o.chaos_probability); },
     [](const Options& o) { return format_number(o.chaos_probability); }},
}};

const Row* find_row(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &Row::name);
  return found == kRows.end() ? nullptr : found;
}

std::string environment_name(std::string_view name) {
  std::string result(kEnvironmentPrefix);
  for (char c : name) result += to_upper(c);
  return result;
}

std::string flag_name(std::string_view name) {
  std::string result = "--";
  for (char c : name) result += c == '_' ? '-' : c;
  return result;
}

/// Levenshtein's distance: insertions, deletions and substitutions of one character.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

/// The row whose name a typing slip most likely meant, or null when no name is close.
const Row* nearest_row(std::string_view name) {
  constexpr size_t kDistanceMax = 3;
  const Row* nearest = nullptr;
  size_t nearest_distance = kDistanceMax + 1;
  for (const Row& row : kRows) {
    const size_t distance = edit_distance(name, row.name);
    if (distance < nearest_distance && distance * 2 <= row.name.size()) {
      nearest = &row;
      nearest_distance = distance;
    }
  }
  return nearest;
}

/// How many words of the asked name the known one lacks, and how many it has.
struct WordCounts {
  size_t lacking = 0;
  size_t shared = 0;
};

WordCounts count_words(std::string_view known, std::string_view asked) {
  const std::string bounded = "_" + std::string(known) + "_";
  WordCounts counts;
  while (!asked.empty()) {
    const size_t length = std::min(asked.find('_'), asked.size());
    const std::string word(asked.substr(0, length));
    const bool is_shared = length > 0 && bounded.find("_" + word + "_") != std::string::npos;
    (is_shared ? counts.shared : counts.lacking) += 1;
    asked.remove_prefix(std::min(length + 1, asked.size()));
  }
  return counts;
}

/// The names that may have been meant: those with all words of the asked one ("memory" finds
/// host_memory); else the one that is spelled almost like it; else those with some of its words.
std::vector<std::string_view> similar_names(std::string_view name) {
  std::vector<std::string_view> with_all;
  std::vector<std::string_view> with_some;
  if (name.size() > kAskedNameMax) return {};
  for (const Row& row : kRows) {
    const WordCounts counts = count_words(row.name, name);
    if (counts.shared > 0) with_some.push_back(row.name);
    if (counts.shared > 0 && counts.lacking == 0) with_all.push_back(row.name);
  }
  if (!with_all.empty()) return with_all;
  const Row* nearest = nearest_row(name);
  if (nearest != nullptr) return {nearest->name};
  return with_some;
}

Status unknown_option(std::string_view spelled, std::string_view name,
                      std::string (*spell)(std::string_view)) {
  std::string message = "There is no option \"" + shown(spelled) + "\".";
  const std::vector<std::string_view> similar = similar_names(name);
  for (size_t i = 0; i < similar.size(); ++i) {
    message += i == 0 ? " Did you mean \"" : " or \"";
    message += spell(similar[i]) + "\"";
  }
  if (!similar.empty()) {
    message += '?';
  } else {
    message += " The options are";
    for (const Row& row : kRows) message += " " + spell(row.name);
    message += '.';
  }
  return {StatusCode::kInvalidArgument, std::move(message)};
}

Status set_row(Options& options, const Row& row, std::string_view text) {
  const Refusal refusal = row.parse(options, text);
  if (refusal.empty()) return Status::ok();
  return invalid_argument("Option " + std::string(row.name) + " does not take the value \"" +
                          shown(text) + "\". " + refusal + " Set " + flag_name(row.name) + " or " +
                          environment_name(row.name) + ", or leave it at its default, " +
                          row.format(Options()) + ".");
}

}  // namespace

std::string option_table_json() {
  try {
    nlohmann::ordered_json table = nlohmann::ordered_json::array();
    for (const Row& row : kRows) {
      table.push_back({{"name", row.name},
                       {"kind", row.kind},
                       {"choices", row.choices},
                       {"default", row.format(Options())},
                       {"help", row.help},
                       {"environment", environment_name(row.name)},
                       {"flag", flag_name(row.name)}});
    }
    return table.dump();
  } catch (...) {
    // The JSON library throws when memory runs out; no exception may leave this layer.
    return "[]";
  }
}

Status set_option(Options& options, std::string_view name, std::string_view text) {
  const Row* row = find_row(name);
  if (row == nullptr) {
    return unknown_option(name, lower_case(name),
                          [](std::string_view n) { return std::string(n); });
  }
  return set_row(options, *row, text);
}

Status read_environment(Options& options, const std::vector<std::string>& names,
                        const std::function<const char*(const char*)>& get) {
  for (const std::string& variable : names) {
    if (!variable.starts_with(kEnvironmentPrefix) || variable.starts_with(kInternalPrefix))
      continue;
    const std::string_view suffix = std::string_view(variable).substr(kEnvironmentPrefix.size());
    const Row* row = find_row(lower_case(suffix));
    // Only upper case is read below; a name in another case would be ignored silently.
    if (row == nullptr || environment_name(row->name) != variable) {
      return unknown_option(variable, lower_case(suffix), environment_name);
    }
  }
  for (const Row& row : kRows) {
    const char* text = get(environment_name(row.name).c_str());
    // Job scripts and compose files unset a variable by making it empty.
    if (text == nullptr || text[0] == '\0') continue;
    TENCACHE_RETURN_IF_ERROR(set_row(options, row, text));
  }
  return Status::ok();
}

std::string option_text(const Options& options, std::string_view name) {
  const Row* row = find_row(name);
  return row == nullptr ? std::string() : row->format(options);
}

nlohmann::ordered_json options_json(const Options& options) {
  nlohmann::ordered_json texts = nlohmann::ordered_json::object();
  for (const Row& row : kRows) texts[std::string(row.name)] = row.format(options);
  return texts;
}

}  // namespace tencache
