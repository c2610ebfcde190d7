// SPDX-License-Identifier: Apache-2.0
//
// Trace: the errors found in a trace, bytes by tick, and gaps, in small cases and against a walk
// through two repetitions of random traces.
#include "learn/trace.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/random_trace.h"

namespace tencache {
namespace {

Trace ops_naming(const std::vector<std::vector<TraceAccess>>& accesses) {
  Trace trace;
  trace.op_names = {"op"};
  for (const std::vector<TraceAccess>& of_op : accesses) trace.ops.push_back({0, 10, of_op});
  return trace;
}

TEST(TraceTest, SumsBytesAndTimes) {
  Trace trace = ops_naming({{{0, false}}, {{1, false}}, {{1, true}}, {}});
  trace.fixed_bytes = 1;
  trace.tensors = {{10, kNoTick, kNoTick}, {100, 1, 2}, {1000, 3, 0}};
  ASSERT_TRUE(trace.validate().is_ok());
  EXPECT_EQ(trace.bytes_by_tick(), (std::vector<uint64_t>{1011, 111, 111, 1011}));
  EXPECT_EQ(trace.compute_ns(), 40u);
  EXPECT_EQ(trace.peak_bytes(), 1011u);
  EXPECT_EQ(trace.largest_op_bytes(), 1001u) << "op 3, which allocates what nobody names";
  trace.tensors.push_back({10000, kNoTick, kNoTick});
  EXPECT_EQ(trace.largest_op_bytes(), 11001u) << "and what never leaves, since nobody names it";
}

TEST(TraceTest, FindsWhatIsWrong) {
  const auto fault = [](const Trace& trace) { return trace.validate().message(); };
  EXPECT_NE(fault(Trace{}).find("no ops"), std::string::npos);
  Trace trace = ops_naming({{{1, false}}, {}});
  trace.tensors = {{10, kNoTick, kNoTick}};
  EXPECT_NE(fault(trace).find("unknown tensor at tick 0"), std::string::npos) << fault(trace);
  trace.tensors.push_back({10, 1, 1});
  EXPECT_NE(fault(trace).find("tensor 1 outside of its life at tick 0"), std::string::npos);
  trace.tensors[1] = {10, 1, 2};
  EXPECT_NE(fault(trace).find("impossible life"), std::string::npos);
  trace.tensors[1] = {10, 1, 0};
  EXPECT_TRUE(trace.validate().is_ok()) << fault(trace);
  trace.ops[0].name = 1;
  EXPECT_NE(fault(trace).find("an op without a name at tick 0"), std::string::npos);
}

TEST(TraceTest, GapsOfATensorThatIsAlwaysThere) {
  Trace trace = ops_naming({{}, {{0, true}}, {}, {}, {{0, false}}, {{0, false}}, {}});
  trace.tensors = {{10, kNoTick, kNoTick}};
  const std::vector<Gap> gaps = gaps_of(trace);
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_EQ(gaps[0].after, 1u);
  EXPECT_EQ(gaps[0].before, 4u);
  EXPECT_EQ(gaps[0].until, 3u);
  EXPECT_TRUE(gaps[0].was_written);
  EXPECT_FALSE(gaps[0].wraps());
  EXPECT_EQ(gaps[1].after, 5u);
  EXPECT_EQ(gaps[1].before, 1u);
  EXPECT_EQ(gaps[1].until, 0u);
  EXPECT_FALSE(gaps[1].was_written);
  EXPECT_TRUE(gaps[1].wraps());
}

TEST(TraceTest, GapsOfATensorThatComesAndGoes) {
  Trace trace = ops_naming({{{0, false}}, {}, {}, {}, {}, {{0, false}}});
  trace.tensors = {{10, 3, 2}};  // allocated at 3, named at 5 and, in the next repetition, at 0
  const std::vector<Gap> gaps = gaps_of(trace);
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_EQ(gaps[0].after, 3u);
  EXPECT_EQ(gaps[0].before, 5u);
  EXPECT_TRUE(gaps[0].was_written) << "the op that allocates it fills it";
  EXPECT_EQ(gaps[1].after, 0u);
  EXPECT_FALSE(gaps[1].comes_back());
  EXPECT_EQ(gaps[1].until, 2u);
}

TEST(TraceTest, GapsAreTheTicksWithoutUse) {
  Random random;
  for (int round = 0; round < 300; ++round) {
    const Trace trace = random_trace(random, {.ops = 10, .tensors = 5});
    ASSERT_TRUE(trace.validate().is_ok()) << trace.validate().message();
    const std::vector<std::vector<Tick>> uses = uses_by_tensor(trace);
    std::vector<std::multiset<Tick>> idle(trace.tensors.size());
    for (const Gap& gap : gaps_of(trace)) {
      for (Tick tick = (gap.after + 1) % 10;; tick = (tick + 1) % 10) {
        idle[gap.tensor].insert(tick);
        if (tick == gap.until) break;
      }
    }
    for (uint32_t index = 0; index < trace.tensors.size(); ++index) {
      const TraceTensor& tensor = trace.tensors[index];
      for (Tick tick = 0; tick < 10; ++tick) {
        const bool is_alive =
            tensor.is_persistent() || (tick + 10 - tensor.allocated_at) % 10 <=
                                          (tensor.freed_at + 10 - tensor.allocated_at) % 10;
        const bool is_used = std::ranges::count(uses[index], tick) > 0;
        ASSERT_EQ(idle[index].count(tick), is_alive && !is_used ? 1u : 0u)
            << "tensor " << index << " tick " << tick << " round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace tencache
