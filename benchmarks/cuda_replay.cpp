// SPDX-License-Identifier: Apache-2.0
//
// Does the cuda backend do what its plans say? Each process makes one measurement: it replays a
// recorded training step over the simulated driver (tests/support/cuda/trace_replay.h), at a share
// of the bytes that it needs, on a link and a device with the rates of an H200 in slow motion. It
// prints what was measured, and what the simulator had said of the plan that was followed, as one
// line of JSON. benchmarks/cuda_replay.py and cuda_replay_disk.py run this for several traces and
// budgets.
//
// With `disk`, host memory is short too, and below it is a disk with the rates of a fast NVMe, in
// the same slow motion. With `reactive`, nothing is planned.
//
// usage: cuda_replay TRACE BUDGET_PERCENT [disk] [reactive]
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "memory/budget.h"
#include "support/cuda/trace_replay.h"
#include "support/period_file.h"

namespace tencache {
namespace {

// An H200's rates: each way over PCIe 5, and of a kernel that reads its memory.
constexpr double kLinkBytesPerS = 55e9;
constexpr double kDeviceBytesPerS = 4.3e12;
// The rates of a PCIe 5 NVMe.
constexpr double kDiskReadBytesPerS = 12e9;
constexpr double kDiskWriteBytesPerS = 8e9;
// If there is a disk, host memory holds this share of the bytes that are needed at once.
constexpr uint64_t kHostPercent = 30;
// Traces are of small models, so that this machine can move their bytes: a MiB stands for as many
// MiB of an H200 as make the link this slow. On two cores half this factor is too little: hashes
// and copies of the simulated device then take this machine up to a tenth of the link's time.
constexpr double kSlowMotion = 500;
// A full H200 computes about as long in a step as its link takes to move all its bytes twice (GPT-2
// in bf16: 140 GB of activations and states, a step of some 5 s).
constexpr double kComputePerMove = 2;

struct Variant {
  bool has_disk = false;
  bool is_reactive = false;
};

uint64_t in_slow_motion(double bytes_per_s) {
  return static_cast<uint64_t>(bytes_per_s / kSlowMotion);
}

uint64_t share_in_granules(uint64_t bytes, uint64_t percent) {
  return bytes * percent / 100 / kGranuleBytes * kGranuleBytes;
}

ReplayConfig replay_config(Variant variant, uint64_t peak_bytes) {
  ReplayConfig config;
  config.link_bytes_per_s = in_slow_motion(kLinkBytesPerS);
  config.device_bytes_per_s = in_slow_motion(kDeviceBytesPerS);
  config.wait_resolution_ns = static_cast<uint64_t>(EventTimer::kResolutionNs * kSlowMotion);
  if (variant.has_disk) {
    config.host_bytes = share_in_granules(peak_bytes, kHostPercent);
    config.disk_read_bytes_per_s = in_slow_motion(kDiskReadBytesPerS);
    config.disk_write_bytes_per_s = in_slow_motion(kDiskWriteBytesPerS);
  }
  config.plans = !variant.is_reactive;
  config.learned_after = config.plans ? 8 : 2;
  config.measured_periods = config.plans ? 8 : 3;
  config.periods_max = 24;
  return config;
}

void print(const Trace& trace, const ReplayConfig& config, const ReplayResult& result) {
  const nlohmann::ordered_json json = {
      {"ops", trace.tick_count()},
      {"tensors", trace.tensors.size()},
      {"needed_bytes", trace.peak_bytes()},
      {"largest_op_bytes", trace.largest_op_bytes()},
      {"budget_bytes", config.budget_bytes},
      {"host_bytes", config.host_bytes},
      {"peak_bytes", result.peak_bytes},
      {"over_budget_events", result.over_budget_events},
      {"periods", result.periods},
      {"measured_periods", config.measured_periods},
      {"early", result.early_fetches},
      {"late", result.late_fetches},
      {"wasted", result.wasted_fetches},
      {"early_fetched_bytes", result.early_fetched_bytes},
      {"stall_ns", result.stall_ns},
      {"fetched_bytes", result.fetched_bytes},
      {"evicted_bytes", result.evicted_bytes},
      {"dropped_bytes", result.dropped_bytes},
      {"disk_read_bytes", result.disk_read_bytes},
      {"disk_written_bytes", result.disk_written_bytes},
      {"simulated_stall_ns", result.simulated_stall_ns},
      {"simulated_late_bytes", result.simulated_late_bytes},
      {"simulated_fetched_bytes", result.simulated_fetched_bytes},
      {"simulated_evicted_bytes", result.simulated_evicted_bytes},
      {"simulated_disk_read_bytes", result.simulated_disk_read_bytes},
      {"simulated_disk_written_bytes", result.simulated_disk_written_bytes},
      {"trace_compute_ns", trace.compute_ns()},
      {"compute_ns", result.compute_ns},
      {"bound_ns", result.bound_ns},
      {"simulated_ns", result.simulated_ns},
      {"measured_ns", result.measured_ns},
      {"differences", result.differences},
      {"failure", result.failure}};
  std::puts(json.dump().c_str());
}

int run(const char* path, uint64_t budget_percent, Variant variant) {
  Result<Trace> recorded = read_period(path);
  if (!recorded.is_ok()) {
    std::fprintf(stderr, "%s\n", recorded.status().message().c_str());
    return 1;
  }
  const uint64_t peak_bytes = scaled_for_replay(recorded.value(), 1).peak_bytes();
  ReplayConfig config = replay_config(variant, peak_bytes);
  const double move_ns =
      static_cast<double>(peak_bytes) / static_cast<double>(config.link_bytes_per_s) * 1e9;
  const Trace trace = scaled_for_replay(std::move(recorded).value(),
                                        static_cast<uint64_t>(kComputePerMove * move_ns));
  // No plan can work with less than one op uses, plus the headroom that is kept free.
  config.budget_bytes =
      std::max(share_in_granules(peak_bytes, budget_percent),
               round_up(budget_with_headroom(trace.largest_op_bytes()), kGranuleBytes));
  const ReplayResult result = TraceReplay(trace, config).run();
  print(trace, config, result);
  return result.failure.empty() && result.differences == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tencache

int main(int argument_count, char** arguments) {
  uint64_t percent = 0;
  tencache::Variant variant;
  bool is_understood = argument_count >= 3;
  if (is_understood) {
    const char* text = arguments[2];
    const char* end = text + strlen(text);
    const auto parsed = std::from_chars(text, end, percent);
    is_understood = parsed.ec == std::errc() && parsed.ptr == end && percent > 0 && percent <= 100;
  }
  for (int index = 3; index < argument_count; ++index) {
    const std::string_view word = arguments[index];
    variant.has_disk |= word == "disk";
    variant.is_reactive |= word == "reactive";
    is_understood &= word == "disk" || word == "reactive";
  }
  if (is_understood) return tencache::run(arguments[1], percent, variant);
  std::fprintf(stderr, "usage: cuda_replay TRACE BUDGET_PERCENT [disk] [reactive] (1 to 100)\n");
  return 2;
}
