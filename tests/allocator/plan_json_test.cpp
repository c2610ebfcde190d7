// SPDX-License-Identifier: Apache-2.0
//
// Predictions through the C ABI, as ctypes requests them: figures worked out by hand, figures equal
// to the planner's own, and refusals that say what is wrong.
#include "abi/plan_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "learn/bound.h"
#include "learn/host_model.h"
#include "learn/planner.h"
#include "support/flat_period.h"
#include "support/random_trace.h"

namespace tencache {
namespace {

using Json = nlohmann::json;

// Two tensors of 10 bytes, each named by one op of 100 ns; the first is written.
Trace two_in_turn() {
  Trace trace;
  trace.op_names = {"op"};
  trace.ops = {{0, 100, {{0, true}}}, {0, 100, {{1, false}}}};
  trace.tensors = {{10, kNoTick, kNoTick}, {10, kNoTick, kNoTick}};
  return trace;
}

class PlanJsonTest : public ::testing::Test {
 protected:
  Json plan(const Trace& trace, const tencache_machine& machine) {
    char buffer[TENCACHE_PLAN_JSON_BYTES];
    const int code =
        tencache_plan(FlatPeriod(trace).get(), &machine, buffer, sizeof buffer, &error_);
    EXPECT_EQ(code, TENCACHE_OK) << error_.message;
    return code == TENCACHE_OK ? Json::parse(buffer) : Json();
  }
  Json timeline(const Trace& trace, const tencache_machine& machine) {
    const FlatPeriod period(trace);
    const size_t needed = tencache_plan_timeline(period.get(), &machine, nullptr, 0, &error_);
    EXPECT_GT(needed, 0u) << error_.message;
    std::string text(needed, '?');
    EXPECT_EQ(tencache_plan_timeline(period.get(), &machine, text.data(), needed, &error_), needed);
    return Json::parse(text.c_str());
  }
  void expect_refused(const Trace& trace, const tencache_machine& machine,
                      const std::string& part) {
    char buffer[TENCACHE_PLAN_JSON_BYTES];
    EXPECT_EQ(tencache_plan(FlatPeriod(trace).get(), &machine, buffer, sizeof buffer, &error_),
              TENCACHE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find(part), std::string::npos) << error_.message;
    error_ = {};
    EXPECT_EQ(
        tencache_plan_timeline(FlatPeriod(trace).get(), &machine, buffer, sizeof buffer, &error_),
        0u);
    EXPECT_EQ(error_.code, TENCACHE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find(part), std::string::npos) << error_.message;
  }
  static tencache_machine byte_per_ns(uint64_t budget_bytes) {
    return machine(budget_bytes, 1e9, 1e9);
  }
  static tencache_machine machine(uint64_t budget_bytes, double read_bytes_per_s,
                                  double write_bytes_per_s) {
    tencache_machine result = {};
    result.budget_bytes = budget_bytes;
    result.read_bytes_per_s = read_bytes_per_s;
    result.write_bytes_per_s = write_bytes_per_s;
    return result;
  }

  tencache_error error_ = {};
};

TEST_F(PlanJsonTest, TwoInTurnOnOnePlace) {
  // Nothing can be done ahead. Before op 1, tensor 0 is written and 1 is read; before op 0, tensor
  // 1 is dropped and 0 is read.
  EXPECT_EQ(plan(two_in_turn(), byte_per_ns(10)), Json::parse(R"({
      "step_ns": 230, "step_slower_ns": 236, "step_faster_ns": 224,
      "compute_ns": 200, "bound_step_ns": 220, "stall_ns": 30, "work_ns": 0,
      "bytes_read": 20,
      "bytes_written": 10, "bytes_dropped": 10, "bytes_late": 20,
      "disk_bytes_read": 0, "disk_bytes_written": 0, "over_budget_bytes": 0,
      "peak_bytes": 20, "largest_op_bytes": 10})"));
}

// Three tensors are used in turn. The device has room for one, and host memory for another.
TEST_F(PlanJsonTest, WhatHostMemoryDoesNotHoldGoesToDisk) {
  Trace trace = two_in_turn();
  trace.ops.push_back({0, 100, {{2, true}}});
  trace.tensors.push_back({10, kNoTick, kNoTick});
  const Json without = plan(trace, byte_per_ns(10));
  tencache_machine machine = byte_per_ns(10);
  machine.host_bytes = 10;
  machine.disk_read_bytes_per_s = machine.disk_write_bytes_per_s = 1e8;
  const Json with = plan(trace, machine);
  EXPECT_GT(with["step_ns"], without["step_ns"]);
  EXPECT_GT(with["disk_bytes_read"], 0);
  EXPECT_GT(with["disk_bytes_written"], 0);
  EXPECT_EQ(without["bound_step_ns"], 330) << "no tensor fits beside the one before: 10 ns each";
  EXPECT_EQ(with["bound_step_ns"], 330) << "the disk reads 15 bytes a period, in 150 ns";
  // All tensors fit, so the disk is not used.
  machine.host_bytes = 30;
  machine.disk_read_bytes_per_s = machine.disk_write_bytes_per_s = 0;
  EXPECT_EQ(plan(trace, machine), without);
}

TEST_F(PlanJsonTest, WhatFitsCostsNothingWhateverTheBudget) {
  for (const uint64_t budget_bytes : {uint64_t{20}, ~uint64_t{0}}) {
    const Json json = plan(two_in_turn(), byte_per_ns(budget_bytes));
    EXPECT_EQ(json["step_ns"], 200);
    EXPECT_EQ(json["bound_step_ns"], 200);
    EXPECT_EQ(json["bytes_read"], 0);
  }
}

TEST_F(PlanJsonTest, SaysWhatThePlannerSays) {
  Random random;
  for (int round = 0; round < (kHasSanitizer ? 5 : 100); ++round) {
    const Trace trace = random_trace(random, {.ops = 20, .tensors = 10});
    uint64_t largest_bytes = 0;
    for (const TraceTensor& tensor : trace.tensors) {
      largest_bytes = std::max(largest_bytes, tensor.bytes);
    }
    const tencache_machine machine = {
        .budget_bytes = random.between(trace.peak_bytes() / 3, trace.peak_bytes()),
        .read_bytes_per_s = 2e9,
        .write_bytes_per_s = 1e9,
        .read_fixed_ns = random.between(0, 3),
        .write_fixed_ns = random.between(0, 3),
        .is_half_duplex = random.chance(0.5) ? 1 : 0,
        .read_work_ns_per_byte = 0.1 * static_cast<double>(random.between(0, 9)),
        .write_work_ns_per_byte = 0.1 * static_cast<double>(random.between(0, 9)),
        .drop_work_ns_per_byte = 0.1 * static_cast<double>(random.between(0, 9)),
        .host_bytes = random.chance(0.5) ? 0 : std::max(trace.peak_bytes() / 2, largest_bytes),
        .disk_read_bytes_per_s = 4e8,
        .disk_write_bytes_per_s = 3e8};
    const auto headroom_bytes =
        static_cast<uint64_t>(static_cast<double>(machine.host_bytes) * kHostHeadroomShare);
    const Machine same = {machine.budget_bytes,
                          machine.read_bytes_per_s,
                          machine.write_bytes_per_s,
                          machine.is_half_duplex != 0,
                          machine.read_fixed_ns,
                          machine.write_fixed_ns,
                          machine.read_work_ns_per_byte,
                          machine.write_work_ns_per_byte,
                          machine.drop_work_ns_per_byte,
                          machine.host_bytes,
                          headroom_bytes,
                          machine.disk_read_bytes_per_s,
                          machine.disk_write_bytes_per_s};
    const Simulation expected = make_plan(trace, same).simulation;
    const Json json = plan(trace, machine);
    EXPECT_EQ(json["step_ns"], expected.step_ns);
    EXPECT_EQ(json["work_ns"], expected.work_ns);
    EXPECT_EQ(json["bytes_read"], expected.bytes_read);
    EXPECT_EQ(json["bytes_written"], expected.bytes_written);
    EXPECT_EQ(json["bytes_dropped"], expected.bytes_dropped);
    EXPECT_EQ(json["bytes_late"], expected.bytes_late);
    EXPECT_EQ(json["disk_bytes_read"], expected.disk_bytes_read);
    EXPECT_EQ(json["disk_bytes_written"], expected.disk_bytes_written);
    EXPECT_EQ(json["over_budget_bytes"], expected.over_budget_bytes);
    EXPECT_EQ(json["bound_step_ns"], bound_step_ns(trace, same));
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST_F(PlanJsonTest, TheTimelineOfTwoInTurnOnOnePlace) {
  EXPECT_EQ(timeline(two_in_turn(), byte_per_ns(10)), Json::parse(R"({
      "step_ns": 230, "work_ns": 0, "begin_ns": [10, 130], "stall_ns": [10, 20],
      "used_bytes": [10, 10], "existing_bytes": [20, 20],
      "evictions": {"tensors": [1, 0], "begin_ns": [0, 110], "end_ns": [0, 120]},
      "fetches": {"tensors": [0, 1], "begin_ns": [0, 120], "end_ns": [10, 130]}})"));
}

TEST_F(PlanJsonTest, TheTimelineOfWhatFitsHasNoMigrations) {
  const Json json = timeline(two_in_turn(), byte_per_ns(~uint64_t{0}));
  EXPECT_EQ(json["used_bytes"], json["existing_bytes"]);
  for (const char* const name : {"evictions", "fetches"}) {
    EXPECT_EQ(json[name], Json::parse(R"({"tensors": [], "begin_ns": [], "end_ns": []})"));
  }
}

TEST_F(PlanJsonTest, TheTimelineIsThatOfTheFigures) {
  Random random;
  for (int round = 0; round < (kHasSanitizer ? 5 : 50); ++round) {
    const Trace trace = random_trace(random, {.ops = 20, .tensors = 10});
    tencache_machine machine =
        byte_per_ns(random.between(trace.peak_bytes() / 3, trace.peak_bytes()));
    machine.read_work_ns_per_byte = 0.5;
    const Json figures = plan(trace, machine);
    const Json json = timeline(trace, machine);
    EXPECT_EQ(json["step_ns"], figures["step_ns"]);
    EXPECT_EQ(json["work_ns"], figures["work_ns"]);
    const auto stalls = json["stall_ns"].get<std::vector<uint64_t>>();
    EXPECT_EQ(std::accumulate(stalls.begin(), stalls.end(), uint64_t{0}), figures["stall_ns"]);
    EXPECT_EQ(json["existing_bytes"].get<std::vector<uint64_t>>(), trace.bytes_by_tick());
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST_F(PlanJsonTest, TheLargestOpTellsTheSmallestBudgetThatIsNeverExceeded) {
  Random random;
  for (int round = 0; round < (kHasSanitizer ? 8 : 200); ++round) {
    const Trace trace = random_trace(random, {.ops = 14, .tensors = 8});
    const uint64_t least_bytes = trace.largest_op_bytes();
    ASSERT_EQ(plan(trace, byte_per_ns(least_bytes))["over_budget_bytes"], 0) << "round " << round;
    ASSERT_GT(plan(trace, byte_per_ns(least_bytes - 1))["over_budget_bytes"], 0)
        << "round " << round;
  }
}

TEST_F(PlanJsonTest, APeriodThatIsNotValidIsNamedAsTheTraceNamesIt) {
  Trace trace = two_in_turn();
  trace.ops[1].accesses[0].tensor = 7;
  expect_refused(trace, byte_per_ns(10), trace.validate().message());
  expect_refused({}, byte_per_ns(10), "it has no ops");
}

TEST_F(PlanJsonTest, NumbersThatWouldWrapAreRefused) {
  Trace trace = two_in_turn();
  trace.tensors[1].bytes = uint64_t{1} << 63;
  expect_refused(trace, byte_per_ns(10), "more than 1.00 EiB");
  trace = two_in_turn();
  trace.ops[1].compute_ns = ~uint64_t{0};
  expect_refused(trace, byte_per_ns(10), "36 years");
}

TEST_F(PlanJsonTest, MachinesThatCannotBeAreRefused) {
  for (const double bytes_per_s : {0.0, -1.0, 1e-9, std::numeric_limits<double>::quiet_NaN()}) {
    const char* const refusal = "bytes/s cannot be planned with";
    expect_refused(two_in_turn(), machine(10, bytes_per_s, 1e9), refusal);
    expect_refused(two_in_turn(), machine(10, 1e9, bytes_per_s), refusal);
  }
  tencache_machine with_host = byte_per_ns(10);
  with_host.host_bytes = 10;
  with_host.disk_read_bytes_per_s = 1e9;
  expect_refused(two_in_turn(), with_host, "a bandwidth of 0.0");
  with_host.disk_write_bytes_per_s = 1e9;
  with_host.host_bytes = 9;
  expect_refused(two_in_turn(), with_host, "9 B of host memory hold no tensor of 10 B");
  tencache_machine slow = byte_per_ns(10);
  slow.read_fixed_ns = ~uint64_t{0};
  expect_refused(two_in_turn(), slow, "ns for one move cannot be");
}

TEST_F(PlanJsonTest, ABufferThatIsTooSmallIsRefused) {
  char small[16];
  const tencache_machine machine = byte_per_ns(10);
  EXPECT_EQ(tencache_plan(FlatPeriod(two_in_turn()).get(), &machine, small, sizeof small, &error_),
            TENCACHE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("TENCACHE_PLAN_JSON_BYTES"), std::string::npos);
}

}  // namespace
}  // namespace tencache
