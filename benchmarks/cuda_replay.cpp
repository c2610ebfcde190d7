// SPDX-License-Identifier: Apache-2.0
//
// Does the cuda backend do what its plans say? One measurement a process: replays a recorded
// training step over the simulated driver (tests/support/cuda/trace_replay.h), at a share of the
// bytes that it needs, on a link and a device with the rates of an H200 in slow motion, and prints
// what was measured and what the simulator had said of the plan that was followed, as one line of
// JSON. benchmarks/cuda_replay.py runs this for several traces and budgets.
//
// usage: cuda_replay TRACE BUDGET_PERCENT [reactive]
#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/units.h"
#include "engine/headroom.h"
#include "support/cuda/trace_replay.h"
#include "support/period_file.h"

namespace tencache {
namespace {

// Of an H200: each way over PCIe 5, and what a kernel reads of its memory.
constexpr double kLinkBytesPerS = 55e9;
constexpr double kDeviceBytesPerS = 4.3e12;
// Traces are of small models, so that this machine can move their bytes: a MiB stands for as many
// MiB of an H200 as make the link this slow. On two cores half of it is too little: what the
// simulated device hashes and copies takes this machine up to a tenth of the link's time then.
constexpr double kSlowMotion = 500;
// An H200 that is full computes about as long in a step as its link takes to move all of that twice
// (GPT-2 in bf16: 140 GB of activations and states, a step of some 5 s).
constexpr double kComputePerMove = 2;

int run(const char* path, uint64_t budget_percent, bool plans) {
  Result<Trace> recorded = read_period(path);
  if (!recorded.is_ok()) {
    std::fprintf(stderr, "%s\n", recorded.status().message().c_str());
    return 1;
  }
  ReplayConfig config;
  config.link_bytes_per_s = static_cast<uint64_t>(kLinkBytesPerS / kSlowMotion);
  config.device_bytes_per_s = static_cast<uint64_t>(kDeviceBytesPerS / kSlowMotion);
  config.plans = plans;
  config.learned_after = plans ? 8 : 2;
  config.measured_periods = 3;
  config.periods_max = 24;
  const uint64_t peak_bytes = scaled_for_replay(recorded.value(), 1).peak_bytes();
  const double move_ns =
      static_cast<double>(peak_bytes) / static_cast<double>(config.link_bytes_per_s) * 1e9;
  const Trace trace = scaled_for_replay(std::move(recorded).value(),
                                        static_cast<uint64_t>(kComputePerMove * move_ns));
  // No plan can do with less than one op uses, besides the headroom that is kept free.
  config.budget_bytes =
      std::max(peak_bytes * budget_percent / 100 / kGranuleBytes * kGranuleBytes,
               round_up(budget_with_headroom(trace.largest_op_bytes()), kGranuleBytes));
  const ReplayResult result = TraceReplay(trace, config).run();
  std::printf(
      "{\"ops\": %u, \"tensors\": %zu, \"needed_bytes\": %" PRIu64 ", \"budget_bytes\": %" PRIu64
      ", \"peak_bytes\": %" PRIu64 ", \"over_budget_events\": %" PRIu64
      ", \"largest_op_bytes\": %" PRIu64 ", \"periods\": %" PRIu64
      ", \"measured_periods\": %" PRIu64 ", \"early\": %" PRIu64 ", \"late\": %" PRIu64
      ", \"wasted\": %" PRIu64 ", \"fetched_bytes\": %" PRIu64 ", \"evicted_bytes\": %" PRIu64
      ", \"dropped_bytes\": %" PRIu64 ", \"simulated_fetched_bytes\": %" PRIu64
      ", \"simulated_evicted_bytes\": %" PRIu64 ", \"trace_compute_ns\": %" PRIu64
      ", \"compute_ns\": %" PRIu64 ", \"bound_ns\": %" PRIu64 ", \"simulated_ns\": %" PRIu64
      ", \"measured_ns\": %" PRIu64 ", \"differences\": %" PRIu64 ", \"failure\": \"%s\"}\n",
      trace.tick_count(), trace.tensors.size(), peak_bytes, config.budget_bytes, result.peak_bytes,
      result.over_budget_events, trace.largest_op_bytes(), result.periods, config.measured_periods,
      result.early_fetches, result.late_fetches, result.wasted_fetches, result.fetched_bytes,
      result.evicted_bytes, result.dropped_bytes, result.simulated_fetched_bytes,
      result.simulated_evicted_bytes, trace.compute_ns(), result.compute_ns, result.bound_ns,
      result.simulated_ns, result.measured_ns, result.differences, result.failure.c_str());
  return result.failure.empty() && result.differences == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tencache

int main(int argument_count, char** arguments) {
  uint64_t percent = 0;
  const bool plans = argument_count == 3;
  if (plans || (argument_count == 4 && strcmp(arguments[3], "reactive") == 0)) {
    const char* text = arguments[2];
    const char* end = text + strlen(text);
    const auto parsed = std::from_chars(text, end, percent);
    if (parsed.ec == std::errc() && parsed.ptr == end && percent > 0 && percent <= 100) {
      return tencache::run(arguments[1], percent, plans);
    }
  }
  std::fprintf(stderr, "usage: cuda_replay TRACE BUDGET_PERCENT [reactive] (1 to 100)\n");
  return 2;
}
