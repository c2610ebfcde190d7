// SPDX-License-Identifier: Apache-2.0
//
// The one place where an error of the core becomes an exception of PyTorch, except in what serves
// GPU and pinned memory (cuda_errors.h, TORCH_CHECK).
#pragma once

#include "abi/tencache.h"

namespace tencache::shim {

/// Throws c10::OutOfMemoryError, which PyTorch's callers expect of a failed allocation and Python
/// sees as torch.OutOfMemoryError with one argument. The text is the core's. The function makes
/// sure that the text contains what libraries search for to retry with a smaller batch: accelerate
/// searches for " out of memory.", and Lightning for what PyTorch's own allocator says.
[[noreturn]] void throw_out_of_memory(const tencache_error& error);

}  // namespace tencache::shim
