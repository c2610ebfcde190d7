// SPDX-License-Identifier: Apache-2.0
//
// How NCCL's stand-in fails: a code of NCCL's, and a sentence that ncclGetLastError tells and that
// also goes to stderr. The last sentence of the process is kept, whichever thread failed, because
// collectives fail on the threads of streams and the program asks from its own. What has no
// stand-in is refused with its name. Any thread.
#pragma once

#include <nccl.h>

namespace emulated_gpu::nccl {

// Keeps and prints the sentence, and returns the code.
[[gnu::format(printf, 2, 3)]] ncclResult_t fail(ncclResult_t result, const char* format, ...);
// Lives until this thread asks again.
const char* last_failure();
ncclResult_t refuse(const char* name);

}  // namespace emulated_gpu::nccl
