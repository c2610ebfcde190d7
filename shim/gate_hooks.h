// SPDX-License-Identifier: Apache-2.0
//
// The gate's eyes: two global RecordFunction callbacks. The first sees every operator that the
// dispatcher calls, on every thread, forward and backward, and opens and closes the gate around it.
// It is switched off until the runtime arms, so a program that fits its budget pays nothing. The
// second sees only the marks that torch.optim sets around Optimizer.step; it costs nothing per op
// and is on from the start.
//
// Events that are no operators (autograd nodes, Python custom Functions, profiler marks) are passed
// over at their start and at their end alike: they may end out of order or on another thread, while
// an operator's event always ends on its thread, last in, first out. So opens and closes balance.
// List operators that are split (list_split.h) are passed over too; their kernel opens the gate.
//
// Threads: the callbacks run on any thread; they never throw and keep no state between start and
// end.
#pragma once

#include <cstdint>

namespace tencache::shim {

/// Adds the callbacks. After the runtime has started; once.
void install_gate_hooks();

/// The arm callback of the runtime: operators are reported from now on. Any thread, also from
/// inside an operator: the callbacks of a thread are looked up anew when its next event begins.
void arm_gate_hooks();

}  // namespace tencache::shim
