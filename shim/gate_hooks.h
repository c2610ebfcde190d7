// SPDX-License-Identifier: Apache-2.0
//
// Two global RecordFunction callbacks that tell the gate of ops and of optimizer steps. The first
// sees every operator that the dispatcher calls, on every thread, forward and backward, and opens
// and closes the gate around it. It is off until the runtime arms, so a program far below its
// budget pays nothing. The second sees only the marks that torch.optim sets around Optimizer.step;
// it costs nothing per op and is on from the start.
//
// Events that are not operators (autograd nodes, Python custom Functions, profiler marks) are
// skipped at their start and at their end: they may end out of order or on another thread. An
// operator's event always ends on its own thread, last in, first out. So opens and closes balance.
// List operators that are split (list_split.h) are skipped too; their kernel opens the gate.
//
// Threads: the callbacks run on any thread, never throw, and keep no state between start and end.
#pragma once

#include <cstdint>

namespace tencache::shim {

/// Adds the callbacks. Call once, after the runtime has started.
void install_gate_hooks();

/// The runtime's arm callback: from now on operators are reported. Any thread may call it, even
/// inside an operator: a thread looks up its callbacks anew when its next event begins.
void arm_gate_hooks();

}  // namespace tencache::shim
