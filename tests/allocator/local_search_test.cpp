// SPDX-License-Identifier: Apache-2.0
//
// LocalSearch: small plans that only changes of several moves at once make better.
#include "learn/local_search.h"

#include <gtest/gtest.h>

#include <utility>

#include "support/random_trace.h"
#include "support/simulate.h"

namespace tencache {
namespace {

Planned improved(const Trace& trace, const Machine& machine, Plan plan) {
  Simulation simulation = simulate(trace, plan, machine);
  Planned planned = {std::move(plan), std::move(simulation)};
  improve_moves(TraceIndex(trace), machine, gaps_of(trace), &planned);
  return planned;
}

// Two tensors come back over one link, which also carries what leaves. Both could come early, if a
// third one left that nobody names any more. If only that one leaves, its write is in vain. If only
// the fetches are early, there is no room for them.
TEST(LocalSearchTest, RoomFromOneTensorLetsAnotherComeEarlier) {
  Trace trace;
  trace.op_names = {"op"};
  for (const uint64_t compute_ns : {11, 17, 14, 7, 6, 13, 1, 7}) {
    trace.ops.push_back({0, compute_ns, {}});
  }
  trace.tensors = {
      {7, kNoTick, kNoTick}, {5, 1, 6}, {7, kNoTick, kNoTick}, {8, kNoTick, kNoTick}, {5, 0, 1}};
  trace.ops[1].accesses = {{0, false}, {1, false}, {4, true}};
  trace.ops[5].accesses = {{3, true}};
  trace.ops[7].accesses = {{2, true}};
  const Plan plan = {{{2, 7, 6, 7}, {3, 5, 2, 5}}};
  const Machine machine = byte_per_ns(22, true);
  ASSERT_GT(simulate(trace, plan, machine).step_ns, trace.compute_ns());
  EXPECT_EQ(improved(trace, machine, plan).simulation.step_ns, trace.compute_ns());
}

// Tensor 1 has a copy in host memory and could leave without a write. The copy goes as soon as
// tensor 4 needs its place there, so tensor 1 has to leave first.
TEST(LocalSearchTest, TheOrderOfEvictionsAfterOneOpCounts) {
  Trace trace;
  trace.op_names = {"op"};
  for (const uint64_t compute_ns : {5, 5, 20, 17, 12, 13, 11, 17}) {
    trace.ops.push_back({0, compute_ns, {}});
  }
  trace.fixed_bytes = 1;
  trace.tensors = {{2, 5, 2}, {5, kNoTick, kNoTick}, {8, 4, 6}, {3, kNoTick, kNoTick}, {7, 2, 6}};
  trace.ops[1].accesses = {{1, false}};
  trace.ops[3].accesses = {{1, false}, {4, false}};
  trace.ops[4].accesses = {{2, false}};
  trace.ops[5].accesses = {{2, false}};
  trace.ops[6].accesses = {{0, false}, {1, false}, {3, false}};
  trace.ops[7].accesses = {{0, false}};
  Machine machine = byte_per_ns(19);
  machine.host_bytes = 11;
  machine.host_headroom_bytes = 3;
  machine.disk_read_bytes_per_s = 1e9;
  machine.disk_write_bytes_per_s = 0.25e9;
  const Plan plan = {{{4, 3, kNoTick, kNoTick}}};
  ASSERT_GT(simulate(trace, plan, machine).step_ns, trace.compute_ns());
  EXPECT_EQ(improved(trace, machine, plan).simulation.step_ns, trace.compute_ns());
}

}  // namespace
}  // namespace tencache
