// SPDX-License-Identifier: Apache-2.0
#include "driver/kernel_durations.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tencache {
namespace {

constexpr const char* kVariable = "EMULATED_GPU_DURATIONS";

[[noreturn]] void refuse_file(const char* path, const std::string& why) {
  fprintf(stderr, "emulated GPU: %s=%s: %s\n", kVariable, path, why.c_str());
  _exit(1);
}

}  // namespace

void KernelDurations::read(const char* path) {
  std::ifstream file(path);
  if (!file) refuse_file(path, "cannot be opened");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    if (!(words >> name) || name.starts_with('#')) continue;
    Duration duration;
    bool is_good = static_cast<bool>(words >> duration.launch_s);
    if (is_good && !(words >> std::ws).eof())
      is_good = static_cast<bool>(words >> duration.bytes_per_s);
    if (!is_good || !(words >> std::ws).eof() || duration.launch_s < 0 ||
        duration.bytes_per_s < 0) {
      refuse_file(path, "not NAME SECONDS [BYTES/S]: " + line);
    }
    set(name, duration);
  }
}

void KernelDurations::set(std::string_view name, Duration duration) {
  MutexLock lock(mutex_);
  durations_.insert_or_assign(std::string(name), duration);
}

uint64_t KernelDurations::duration_ns(std::string_view name, uint64_t bytes) const {
  MutexLock lock(mutex_);
  if (durations_.empty()) return 0;
  auto found = durations_.find(std::string(name) + "@" + std::to_string(bytes));
  if (found == durations_.end()) found = durations_.find(name);
  if (found == durations_.end()) found = durations_.find("*");
  if (found == durations_.end()) return 0;
  const auto& [launch_s, bytes_per_s] = found->second;
  const double transfer_s = bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s : 0;
  return static_cast<uint64_t>((launch_s + transfer_s) * 1e9);
}

KernelDurations& kernel_durations() {
  static auto* const made = [] {
    auto* durations = new KernelDurations;  // lives for ever, as the driver does
    if (has_device_clock()) durations->read(getenv(kVariable));
    return durations;
  }();
  return *made;
}

bool has_device_clock() {
  const char* const path = getenv(kVariable);
  return path != nullptr && *path != 0;
}

}  // namespace tencache
