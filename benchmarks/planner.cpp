// SPDX-License-Identifier: Apache-2.0
//
// How long does planning take, and how good is the plan? Each process makes one measurement: it
// makes the trace of a training step of a Llama-like model, or reads a period file, and plans it
// once on one thread. It prints the time, the peak memory of planning, and what the simulator says
// of the plan and of evicting without one, as one line of JSON. benchmarks/planner.py runs this for
// several models, traces and budgets.
//
// The trace that it makes is synthetic. Layers have Llama's weights and activations in bf16 and
// fp32 states. Op times are those of a GPU with 400 Tflop/s, whose optimizer reads and writes
// memory at 3.3 TB/s.
#include "learn/planner.h"

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "learn/bound.h"
#include "learn/host_model.h"
#include "support/period_file.h"
#include "support/random_trace.h"
#include "support/simulate.h"

namespace tencache {
namespace {

constexpr uint64_t kTokensPerMicroBatch = 16384;
constexpr uint64_t kBf16Bytes = 2;
// An update reads and writes two fp32 states and a bf16 weight, and reads a bf16 gradient.
constexpr uint64_t kUpdateBytesPerWeight = 22;
constexpr double kFlopsPerNs = 4e5;
constexpr double kUpdateBytesPerNs = 3300;

struct Job {
  std::string period;  // a period file; empty: a model of this shape
  uint64_t layers = 32;
  uint64_t hidden = 4096;
  uint64_t key_value = 1024;
  uint64_t feed_forward = 14336;
  uint64_t micro_batches = 2;
  uint64_t budget_bytes = 0;     // 0: a share of the peak
  uint64_t budget_percent = 50;  // of the most bytes that exist at once
  uint64_t link_bytes_per_s = 10'000'000'000;
  uint64_t host_bytes = 0;  // 0: all that is needed
  uint64_t disk_bytes_per_s = 0;
};

struct Flag {
  std::string_view name;
  uint64_t Job::*number;
};
constexpr Flag kFlags[] = {{"--layers", &Job::layers},
                           {"--hidden", &Job::hidden},
                           {"--key-value", &Job::key_value},
                           {"--feed-forward", &Job::feed_forward},
                           {"--micro-batches", &Job::micro_batches},
                           {"--budget-bytes", &Job::budget_bytes},
                           {"--budget-percent", &Job::budget_percent},
                           {"--link-bytes-per-s", &Job::link_bytes_per_s},
                           {"--host-bytes", &Job::host_bytes},
                           {"--disk-bytes-per-s", &Job::disk_bytes_per_s}};

TransformerShape shape_of(const Job& job) {
  const uint64_t hidden = job.hidden;
  const uint64_t narrow = job.key_value;
  const uint64_t wide = job.feed_forward;
  TransformerShape shape{.layers = static_cast<uint32_t>(job.layers),
                         .state_bytes_per_weight_byte = 2,
                         .micro_batches = static_cast<uint32_t>(job.micro_batches),
                         .ops_per_activation = 5,
                         .has_activation_gradients = true,
                         .weights_per_update = 16};
  // The weights are query, key, value, output, gate, up and down. The activations are their
  // results, then those of two norms (each also in fp32), the rotated query and key, attention,
  // activation, product and two sums.
  shape.weight_bytes = {hidden * hidden, hidden * narrow, hidden * narrow, hidden * hidden,
                        hidden * wide,   hidden * wide,   hidden * wide};
  shape.activation_bytes = {hidden, narrow, narrow, hidden,     wide,       wide,
                            hidden, hidden, hidden, 2 * hidden, 2 * hidden, hidden,
                            narrow, hidden, wide,   wide,       hidden,     hidden};
  uint64_t weights = 0;
  for (uint64_t& bytes : shape.weight_bytes) {
    weights += bytes;
    bytes *= kBf16Bytes;
  }
  for (uint64_t& bytes : shape.activation_bytes) bytes *= kTokensPerMicroBatch * kBf16Bytes;
  const uint64_t ops = shape.activation_bytes.size() * shape.ops_per_activation;
  const double flops = 2.0 * static_cast<double>(weights * kTokensPerMicroBatch);
  shape.op_ns = static_cast<uint64_t>(flops / kFlopsPerNs) / ops;
  const double update_ns = static_cast<double>(weights * kUpdateBytesPerWeight) / kUpdateBytesPerNs;
  shape.optimizer_op_ns = static_cast<uint64_t>(update_ns) / shape.weight_bytes.size();
  return shape;
}

/// The figure of a line of /proc/self/status, in bytes.
uint64_t status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stoull(line.substr(name.size() + 1)) * kKiB;
  }
  TENCACHE_CHECK(false, "/proc/self/status has no %s", name.data());
  return 0;
}

/// A digest that is equal for equal plans that are played alike.
uint64_t digest_of(const Planned& planned) {
  uint64_t digest = planned.plan.copy_ahead_bytes;
  const auto add = [&digest](uint64_t value) { digest = (digest ^ value) * 0x9E3779B97F4A7C15u; };
  for (const PlannedMove& move : planned.plan.moves) {
    for (const uint64_t value : {move.tensor, move.evict_after, move.fetch_at, move.needed_at}) {
      add(value);
    }
  }
  for (const uint64_t stall_ns : planned.simulation.stall_ns) add(stall_ns);
  for (const Migration& migration : planned.simulation.migrations) {
    add(static_cast<uint64_t>(migration.begin_ns));
    add(static_cast<uint64_t>(migration.end_ns));
  }
  return digest;
}

// The processor time of this process so far. Planning never waits, so its processor time is its
// time on an otherwise idle machine.
double processor_s() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

Trace trace_of(const Job& job) {
  if (job.period.empty()) return transformer_trace(shape_of(job));
  Result<Trace> trace = read_period(job.period);
  TENCACHE_CHECK(trace.is_ok(), "%s", trace.status().message().c_str());
  return std::move(trace).value();
}

Machine machine_of(const Job& job, uint64_t peak_bytes) {
  const double bytes_per_s = static_cast<double>(job.link_bytes_per_s);
  const double disk_bytes_per_s = static_cast<double>(job.disk_bytes_per_s);
  const double headroom_bytes = static_cast<double>(job.host_bytes) * kHostHeadroomShare;
  return {.budget_bytes =
              job.budget_bytes > 0 ? job.budget_bytes : peak_bytes / 100 * job.budget_percent,
          .read_bytes_per_s = bytes_per_s,
          .write_bytes_per_s = bytes_per_s,
          .host_bytes = job.host_bytes,
          .host_headroom_bytes = static_cast<uint64_t>(headroom_bytes),
          .disk_read_bytes_per_s = disk_bytes_per_s,
          .disk_write_bytes_per_s = disk_bytes_per_s};
}

void run(const Job& job) {
  const Trace trace = trace_of(job);
  const uint64_t peak_bytes = trace.peak_bytes();
  const Machine machine = machine_of(job, peak_bytes);

  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak to the current size
  const uint64_t rss_before = status_bytes("VmRSS:");
  const auto begin = std::chrono::steady_clock::now();
  const double processor_begin_s = processor_s();
  const Planned planned = make_plan(trace, machine);
  const double planning_s = processor_s() - processor_begin_s;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const uint64_t rss_most = status_bytes("VmHWM:");

  const auto without_plan = [&](Victim victim) { return simulate(trace, {{}, victim}, machine); };
  const auto print = [](const char* name, uint64_t value) {
    std::printf("\"%s\": %" PRIu64 ", ", name, value);
  };
  std::printf("{");
  print("ops", trace.ops.size());
  print("tensors", trace.tensors.size());
  print("gaps", gaps_of(trace).size());
  print("peak_bytes", peak_bytes);
  print("budget_bytes", machine.budget_bytes);
  print("rss_growth_bytes", rss_most - std::min(rss_most, rss_before));
  print("over_budget_bytes", planned.simulation.over_budget_bytes);
  print("moves", planned.plan.moves.size());
  print("digest", digest_of(planned));
  print("compute_ns", trace.compute_ns());
  print("bound_ns", bound_step_ns(trace, machine));
  print("step_ns", planned.simulation.step_ns);
  print("read_ns", machine.read_ns(planned.simulation.bytes_read));
  print("write_ns", machine.write_ns(planned.simulation.bytes_written));
  print("disk_bytes_read", planned.simulation.disk_bytes_read);
  print("disk_bytes_written", planned.simulation.disk_bytes_written);
  print("belady_step_ns", without_plan(Victim::kFarthestNextUse).step_ns);
  print("lru_step_ns", without_plan(Victim::kLeastRecentlyUsed).step_ns);
  std::printf("\"planning_s\": %.6f, \"elapsed_s\": %.6f}\n", planning_s, elapsed.count());
}

bool parse_number(std::string_view name, std::string_view text, Job& job) {
  for (const Flag& flag : kFlags) {
    if (flag.name != name) continue;
    uint64_t& number = job.*flag.number;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && number > 0;
  }
  return false;
}

bool parse(int count, char** words, Job& job) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view name = word.substr(0, equals);
    const std::string_view text = word.substr(equals + 1);
    if (name == "--period") {
      job.period = text;
    } else if (!parse_number(name, text, job)) {
      return false;
    }
  }
  return (job.host_bytes > 0) == (job.disk_bytes_per_s > 0);
}

}  // namespace
}  // namespace tencache

int main(int count, char** words) {
  tencache::Job job;
  if (!tencache::parse(count, words, job)) {
    std::fprintf(stderr, "usage: planner [--period=FILE] [FLAG=NUMBER]...; the flags are");
    for (const tencache::Flag& flag : tencache::kFlags) {
      std::fprintf(stderr, " %.*s", static_cast<int>(flag.name.size()), flag.name.data());
    }
    std::fprintf(stderr, "; host memory needs a disk\n");
    return 2;
  }
  tencache::run(job);
  return 0;
}
