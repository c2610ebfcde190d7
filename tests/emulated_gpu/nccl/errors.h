// SPDX-License-Identifier: Apache-2.0
//
// Failures of NCCL's stand-in: a code of NCCL's, and a sentence that ncclGetLastError returns and
// that also goes to stderr. The process has one last sentence, whichever thread failed, because
// collectives fail on the threads of streams and the program asks from its own. A function without
// a stand-in is refused by name. Threads: any.
#pragma once

#include <nccl.h>

namespace emulated_gpu::nccl {

// Stores and prints the sentence, and returns the code.
[[gnu::format(printf, 2, 3)]] ncclResult_t fail(ncclResult_t result, const char* format, ...);
// The last sentence; it lives until this thread asks again.
const char* last_failure();
ncclResult_t refuse(const char* name);

}  // namespace emulated_gpu::nccl
