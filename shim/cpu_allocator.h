// SPDX-License-Identifier: Apache-2.0
//
// The door for memory: a c10::Allocator over the core that takes the place of PyTorch's CPU
// allocator. Memory allocated earlier keeps its own deleter and is not touched.
//
// Invariants that PyTorch relies on: (1) the context of a DataPtr is its data pointer (raw_allocate
// asserts it; oneDNN uses it); (2) raw_deleter() is never null and always the same, and every
// DataPtr has it as its deleter, even an empty one; (3) the memory profiler is told the same sizes
// as by the stock allocator.
//
// Threads: any.
#pragma once

namespace tencache::shim {

/// Makes PyTorch allocate CPU tensors from the core. Call once, after the runtime has started.
void install_cpu_allocator();

}  // namespace tencache::shim
