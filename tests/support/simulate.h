// SPDX-License-Identifier: Apache-2.0
//
// simulate() of a trace that is played only once, so that nobody has to make its index.
#pragma once

#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/trace.h"
#include "learn/trace_index.h"

namespace tencache {

inline Simulation simulate(const Trace& trace, const Plan& plan, const Machine& machine) {
  return simulate(TraceIndex(trace), plan, machine);
}

}  // namespace tencache
