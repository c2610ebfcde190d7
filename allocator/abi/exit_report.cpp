// SPDX-License-Identifier: Apache-2.0
#include "abi/exit_report.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "abi/tencache.h"
#include "base/log.h"
#include "base/shown_text.h"
#include "base/units.h"
#include "platform/launch_rank.h"
#include "platform/output_file.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNoFile = "off";

// The process that reports at exit, and the version of torch in its report. report_at_exit() sets
// both, once.
pid_t reporting_process = 0;
std::string* torch_text = nullptr;  // never destroyed

// run.json becomes run.rank1.json where a launcher has started several processes. Devices and pipes
// keep their names: all processes write to them.
std::string own_path(const std::string& text) {
  std::filesystem::path path = absolute_path(text);
  const int rank = launch_rank();
  if (rank < 0 || is_shared_output(path)) return path;
  const std::string suffix = ".rank" + std::to_string(rank) + path.extension().string();
  return path.replace_filename(path.stem().string() + suffix);
}

struct OutputOption {
  std::string name;
  std::string path;
};

Status refused(const std::string& name, const std::string& text, const std::string& why) {
  return {StatusCode::kInvalidArgument,
          "Option " + name + " does not take the value '" + shown(text) + "': " + why};
}

Json stats_for_file(Runtime& runtime, Json stats) {
  const int rank = launch_rank();
  stats["versions"]["torch"] = *torch_text;
  stats["rank"] = rank < 0 ? Json(nullptr) : Json(rank);
  stats["program"] = program_invocation_name;
  stats["options"] = runtime.options_json();
  stats["files"] = Json::object();
  for (const char* name : {"trace", "record"}) {
    const std::string path = runtime.option_text(name);
    if (path != kNoFile) stats["files"][name] = path;
  }
  stats["history"] = Json::parse(runtime.watch().history_json());
  return stats;
}

void say_not_written(const char* what, const std::string& path, const std::string& reason) {
  TENCACHE_LOG_ERROR("the %s file %s could not be written: %s", what, shown(path).c_str(),
                     reason.c_str());
}

void write_stats(Runtime& runtime, const Json& stats) {
  const std::string path = runtime.option_text("stats");
  if (path == kNoFile) return;
  // Paths come from the program, so dump() is told to replace invalid UTF-8; otherwise it would
  // throw.
  const std::string text =
      stats_for_file(runtime, stats).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const Status written = write_output_file(path, [&text](OutputText& file) { file.append(text); });
  if (!written.is_ok()) say_not_written("stats", path, written.message());
}

void write_trace(const Runtime& runtime) {
  const std::string path = runtime.option_text("trace");
  if (path == kNoFile) return;
  tencache_error error = {};
  if (tencache_write_trace(path.c_str(), &error) != TENCACHE_OK) {
    say_not_written("trace", path, error.message);
    return;
  }
  std::error_code no_size;  // a pipe has none
  const uintmax_t bytes = std::filesystem::file_size(path, no_size);
  if (no_size) return;
  TENCACHE_LOG_INFO("the trace is in %s (%s)", shown(path).c_str(), format_bytes(bytes).c_str());
}

void say_whether_recorded(const Runtime& runtime) {
  const std::string path = runtime.option_text("record");
  if (path == kNoFile || runtime.recorded() != Recorded::kNothing) return;
  TENCACHE_LOG_ERROR(
      "%s was not written: no repeating period was seen; run more iterations, or with a smaller "
      "device_memory so that tencache arms",
      shown(path).c_str());
}

// The most by which one budget was exceeded. Each GPU has a budget; the outer figures are sums.
uint64_t excess_bytes(const Json& stats) {
  const auto gpus = stats.find("gpus");
  if (gpus == stats.end() || gpus->empty()) return stats["over_budget"]["peak_bytes"];
  uint64_t most = 0;
  for (const Json& gpu : *gpus) {
    most = std::max<uint64_t>(most, gpu["over_budget"]["peak_bytes"]);
  }
  return most;
}

void say_summary(const Json& stats) {
  if (stats["extents"] == 0) return;
  const double wall_s = stats["wall_s"];
  const double stall_s = stats["stall_s"];
  TENCACHE_LOG_INFO("%.2f s; device peak %s of a budget of %s", wall_s,
                    format_bytes(stats["peak"]["device"]).c_str(),
                    format_bytes(stats["budget"]["device"]).c_str());
  TENCACHE_LOG_INFO("evicted %s, fetched %s; waited %.2f s (%.0f%% of the time)",
                    format_bytes(stats["bytes"]["evicted"]).c_str(),
                    format_bytes(stats["bytes"]["fetched"]).c_str(), stall_s,
                    wall_s > 0 ? 100 * stall_s / wall_s : 0.0);
  const uint64_t over_budget_events = stats["over_budget"]["events"];
  if (over_budget_events > 0) {
    TENCACHE_LOG_INFO("over budget %lu times, by up to %s (a warning has named the cause)",
                      over_budget_events, format_bytes(excess_bytes(stats)).c_str());
  }
}

void report_exit() {
  if (getpid() != reporting_process) return;
  Runtime& runtime = Runtime::instance();
  const Json stats = Json::parse(runtime.stats_json());
  write_stats(runtime, stats);
  write_trace(runtime);
  say_whether_recorded(runtime);
  if (runtime.option_text("quiet") != "on") say_summary(stats);
}

}  // namespace

Status settle_output_files(Runtime& runtime) {
  std::vector<OutputOption> settled;
  for (const std::string name : {"stats", "trace", "record"}) {
    const std::string text = runtime.option_text(name);
    if (text == kNoFile) continue;
    const std::string path = own_path(text);
    const Status tried = try_output_file(path);
    if (!tried.is_ok()) {
      return refused(name, text,
                     tried.message() + ". Give a file in an existing, writable directory.");
    }
    for (const OutputOption& other : settled) {
      if (!is_same_output(path, other.path)) continue;
      return refused(name, text,
                     shown(other.path) + " is also the file of the option " + other.name +
                         ", and one would replace the other. Give each a file of its own.");
    }
    settled.push_back({name, path});
    TENCACHE_RETURN_IF_ERROR(runtime.set_option(name, path));
  }
  return Status::ok();
}

void report_at_exit(const std::string& torch_version) {
  torch_text = new std::string(torch_version);
  reporting_process = getpid();
  std::atexit(&report_exit);
}

}  // namespace tencache
