// SPDX-License-Identifier: Apache-2.0
//
// The probe of what a directory offers to the disk tier, and the search for a directory when the
// user named none. Everything is tried for real: a file is made, written with O_DIRECT and handed
// to a ring. The file is gone when the function returns. The functions read the environment and
// keep no state.
// Threads: any.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tier/disk_tier.h"
#include "tier/spill_file.h"

namespace tencache {
namespace {

/// Directories in which a spill file may be made without asking, the best one first.
std::vector<std::string> candidate_directories() {
  std::vector<std::string> candidates;
  const auto add = [&candidates](std::string path) {
    const bool is_known = std::find(candidates.begin(), candidates.end(), path) != candidates.end();
    if (!path.empty() && !is_known) candidates.push_back(std::move(path));
  };
  const auto variable = [](const char* name) {
    const char* text = getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
    return std::string(text == nullptr ? "" : text);
  };
  add(variable("TMPDIR"));
  const std::string home = variable("HOME");
  const std::string cache = variable("XDG_CACHE_HOME");
  add(!cache.empty() ? cache : home.empty() ? "" : home + "/.cache");
  add("/var/tmp");
  std::error_code error;
  add(std::filesystem::current_path(error).string());
  return candidates;
}

}  // namespace

Result<DiskProbe> probe_directory(const std::string& directory) {
  Result<SpillDirectory> opened = open_spill_directory(directory);
  if (!opened.is_ok()) return opened.status();
  Result<SpillFile> file = open_spill_file(opened.value(), directory, Choice::kAuto);
  if (!file.is_ok()) return file.status();

  DiskProbe probe;
  probe.directory = directory;
  probe.file_system = opened.value().file_system;
  probe.free_bytes = opened.value().free_bytes;
  probe.direct_io_reason = file.value().direct_io_reason;
  const int fd = file.value().fd.get();
  probe.io_uring_reason = make_uring_channel(fd, 1).status().message();
  probe.registered_buffers_reason = try_registered_buffers(fd, DiskTierConfig{}.depth).message();
  return probe;
}

Result<DiskProbe> find_spill_directory() {
  std::string refusals;
  for (const std::string& candidate : candidate_directories()) {
    Result<DiskProbe> probe = probe_directory(candidate);
    if (probe.is_ok()) return probe;
    refusals += " " + probe.status().message();
  }
  return Status(StatusCode::kUnavailable,
                "No directory for the spill file was found. Name one with --spill-dir or "
                "TENCACHE_SPILL_DIR. Tried:" +
                    refusals);
}

}  // namespace tencache
