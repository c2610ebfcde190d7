// SPDX-License-Identifier: Apache-2.0
#include "driver/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/units.h"

namespace tencache {
namespace {

// Each device has a number of its own on the bus, which has 255.
constexpr int kDevicesMax = 255;

// The variable's text, or an empty one where the variable is not set.
std::string_view variable(const char* name) {
  const char* const text = getenv(name);
  return text != nullptr ? text : "";
}

// Ends the process with an error that names the variable. Skips exit handlers, because the program
// is in the middle of starting its libraries.
[[noreturn]] void refuse(const char* name, const std::string& why) {
  fprintf(stderr, "emulated GPU: %s=%s: %s\n", name, std::string(variable(name)).c_str(),
          why.c_str());
  _exit(1);
}

uint64_t bytes_of(const char* name, uint64_t fallback) {
  const std::string_view text = variable(name);
  if (text.empty()) return fallback;
  const Result<uint64_t> bytes = parse_bytes(text);
  if (!bytes.is_ok()) refuse(name, bytes.status().message());
  return bytes.value();
}

}  // namespace

int device_count_from_environment() {
  constexpr const char* kName = "EMULATED_GPU_COUNT";
  const std::string_view text = variable(kName);
  if (text.empty()) return 1;
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 ||
      count > kDevicesMax) {
    refuse(kName, "not a number from 1 to " + std::to_string(kDevicesMax));
  }
  return count;
}

SimulatedDriverConfig config_from_environment() {
  SimulatedDriverConfig config;
  config.device_count = device_count_from_environment();
  config.queued_kernels_max = 1024;  // about as many as a real GPU takes
  config.device_name = "Emulated GPU";
  config.has_peers = variable("EMULATED_GPU_PEERS") == "1";
  config.capacity_bytes = bytes_of("EMULATED_GPU_MEMORY", 4 * kGiB);
  config.to_device_bytes_per_s = bytes_of("EMULATED_GPU_LINK", 0);
  config.to_host_bytes_per_s = config.to_device_bytes_per_s;
  config.reuses_stream_handles = variable("EMULATED_GPU_REUSE_STREAMS") == "1";
  config.kernel_bytes_per_s = bytes_of("EMULATED_GPU_KERNEL_BYTES_PER_S", 0);
  return config;
}

}  // namespace tencache
