// SPDX-License-Identifier: Apache-2.0
//
// The one place where an error of the core becomes an exception of PyTorch, but for the CUDA
// allocator's (cuda_errors.h). Nothing else in the shim throws.
#pragma once

#include "abi/tencache.h"

namespace tencache::shim {

/// Throws what PyTorch's callers expect of a failed allocation: c10::OutOfMemoryError, which Python
/// sees as torch.OutOfMemoryError with one argument. The text is the core's; it is made sure that
/// it contains " out of memory.", which is what libraries search for to retry with a smaller batch.
[[noreturn]] void throw_out_of_memory(const tencache_error& error);

}  // namespace tencache::shim
