// SPDX-License-Identifier: Apache-2.0
//
// The part of the self-test (self_test.h) that needs torch's libraries for CUDA: the interfaces
// that the allocators of GPU and of pinned memory implement. PyTorch's own CUDAPluggableAllocator
// implements the first, and exports its functions; so each function's place is compared by name.
// PyTorch's allocator of pinned memory exports none; its functions are counted.
//
// Threads: any. The test calls none of these functions and starts no CUDA.
#pragma once

#include <string>

namespace tencache::shim {

/// Returns a clause that says what differs between the loaded libtorch_cuda and the one that the
/// shim was compiled against, or an empty string if nothing does.
std::string why_cuda_layouts_differ();

}  // namespace tencache::shim
