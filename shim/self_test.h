// SPDX-License-Identifier: Apache-2.0
//
// The self-test of the shim: whether the loaded libtorch is laid out as the torch that the shim was
// compiled against. The shim calls PyTorch's virtual functions, overrides them, and reads members
// of its classes through code that the compiler has put into the shim itself. Within a minor
// version of PyTorch none of that changes, but nobody promises it: a torch that somebody patched,
// a nightly build or a debug build bears the same version.
//
// The test compares two views of one thing. libtorch's own view comes from its stable C functions
// (aoti_torch_...), from exported member functions, or from the vtables that it exports; the
// shim's view comes from the inlined code that its hooks use. The test looks at plain numbers
// before it follows a pointer, so that it can report a difference without crashing on it.
//
// What is compared: the version that libtorch itself was compiled as; the virtual functions of
// c10::Allocator, and calls of them by libtorch; a tensor's numbers, key set, storage and address;
// values (IValue) that libtorch has made, lists among them; an operator's event (RecordFunction)
// with name, inputs and their number; a registered schema, and a boxed call; c10d::Work. For GPU
// memory see cuda_self_test.h.
//
// Invariant: the test installs nothing; what it registers for its own thread is gone when it
// returns.
// Threads: any. The test ignores modes of this thread that would catch its operators.
#pragma once

#include <string>

namespace tencache::shim {

/// Returns a clause that says what differs between the loaded libtorch and the one that the shim
/// was compiled against, or an empty string if nothing does.
std::string why_layouts_differ();

}  // namespace tencache::shim
