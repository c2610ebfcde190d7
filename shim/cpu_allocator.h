// SPDX-License-Identifier: Apache-2.0
//
// The door for memory: a c10::Allocator over the core, put in the place of PyTorch's CPU allocator.
// What was allocated before keeps its own deleter and is not touched.
//
// Invariants that PyTorch relies on: (1) the context of a DataPtr is its data pointer (raw_allocate
// asserts it; oneDNN uses it); (2) raw_deleter() is never null and always the same, and it is the
// deleter of every DataPtr, also of an empty one; (3) sizes are reported to the memory profiler as
// the stock allocator reports them.
//
// Threads: any.
#pragma once

namespace tencache::shim {

/// From now on CPU tensors are allocated from the core. After the runtime has started; once.
void install_cpu_allocator();

}  // namespace tencache::shim
