// SPDX-License-Identifier: Apache-2.0
//
// The sentence of the last failure, guarded by a lock; a caller gets the thread's own copy.
#include "errors.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string>

namespace emulated_gpu::nccl {

namespace {
std::mutex mutex;
std::string last_sentence;  // guarded by mutex
}  // namespace

ncclResult_t fail(ncclResult_t result, const char* format, ...) {
  char sentence[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  fprintf(stderr, "emulated GPU: NCCL: %s\n", sentence);
  const std::lock_guard lock(mutex);
  last_sentence = sentence;
  return result;
}

const char* last_failure() {
  thread_local std::string copy;
  const std::lock_guard lock(mutex);
  copy = last_sentence;
  return copy.c_str();
}

ncclResult_t refuse(const char* name) { return fail(ncclInvalidUsage, "%s is not emulated", name); }

}  // namespace emulated_gpu::nccl
