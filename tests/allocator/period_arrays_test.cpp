// SPDX-License-Identifier: Apache-2.0
//
// A period that comes in through the C ABI to be followed: the same digests as the gate's, extents
// that are not known yet, and arrays that make no period.
#include "abi/period_arrays.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "learn/tick_digest.h"
#include "support/flat_period.h"
#include "support/random.h"
#include "support/random_trace.h"

namespace tencache {
namespace {

/// A counter that numbers ops in the order in which it hears of them, as a process does.
class OpNumbers {
 public:
  uint32_t operator()(std::string_view name) {
    return numbers_.try_emplace(std::string(name), static_cast<uint32_t>(numbers_.size() + 1))
        .first->second;
  }

 private:
  std::map<std::string, uint32_t> numbers_;
};

Result<Period> stored(const Trace& trace) {
  const FlatPeriod flat(trace);
  return to_stored_period(*flat.get(), flat.op_names(), OpNumbers());
}

TEST(PeriodArraysTest, TellsWhatIsNeededToFollow) {
  Trace trace;
  trace.op_names = {"mm", "add_"};
  trace.ops = {{0, 1200, {{0, false}, {1, true}}}, {1, 300, {{1, false}, {0, true}}}};
  trace.tensors = {{4096, kNoTick, kNoTick}, {8192, 0, 1}, {1 << 20, kNoTick, kNoTick}};
  trace.fixed_bytes = 100;
  const Result<Period> period = stored(trace);
  ASSERT_TRUE(period.is_ok()) << period.status().message();
  EXPECT_EQ(period.value().trace.op_names, trace.op_names);
  EXPECT_EQ(period.value().trace.ops[1].name, 1u);
  EXPECT_EQ(period.value().trace.peak_bytes(), trace.peak_bytes());
  EXPECT_EQ(period.value().extent_ids, (std::vector<uint64_t>{kUnknownExtent, 0, 0}))
      << "what no op names cannot be found";
  EXPECT_EQ(period.value().born_bytes, 8192u);
  TickDigest second(2);
  second.add(false);
  second.add(true);
  EXPECT_EQ(period.value().digests[1], second.value());
}

TEST(PeriodArraysTest, SizesThatNoMachineHasAreRefused) {
  Trace trace;
  trace.op_names = {"op"};
  trace.ops = {{0, 1, {{0, false}}}};
  trace.tensors = {{uint64_t{1} << 51, kNoTick, kNoTick}};
  const Result<Period> period = stored(trace);
  ASSERT_FALSE(period.is_ok());
  EXPECT_NE(period.status().message().find("1.00 PiB"), std::string::npos)
      << period.status().message();
}

// Whatever the numbers are, the answer is a period that is valid, or a reason.
TEST(PeriodArraysTest, AnyNumbersAreTakenOrRefused) {
  Random random;
  size_t taken = 0;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Trace trace = transformer_trace({.layers = 1});
    for (size_t changes = random.between(0, 3); changes > 0; --changes) {
      TraceTensor& tensor = trace.tensors[random.between(0, trace.tensors.size() - 1)];
      TraceOp& op = trace.ops[random.between(0, trace.ops.size() - 1)];
      const uint64_t value = uint64_t{1} << random.between(0, 63);
      switch (random.between(0, 4)) {
        case 0:
          tensor.bytes = value;
          break;
        case 1:
          tensor.allocated_at = static_cast<Tick>(value - 1);
          break;
        case 2:
          tensor.freed_at = static_cast<Tick>(value - 1);
          break;
        case 3:
          op.compute_ns = value;
          break;
        default:
          op.accesses.push_back({static_cast<uint32_t>(value), random.chance(0.5)});
      }
    }
    const Result<Period> period = stored(trace);
    if (!period.is_ok()) {
      EXPECT_NE(period.status().message(), "");
      continue;
    }
    ++taken;
    EXPECT_TRUE(period.value().trace.validate().is_ok());
    EXPECT_EQ(period.value().digests.size(), trace.ops.size());
  }
  EXPECT_GT(taken, 100u);
  EXPECT_LT(taken, 2000u);
}

}  // namespace
}  // namespace tencache
