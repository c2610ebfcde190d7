// SPDX-License-Identifier: Apache-2.0
//
// The C ABI for pinned memory where tencache was built without CUDA's header: there is none, and
// whoever asks for some is told so. The rest exists so that the library exports the same functions
// everywhere.
#include "abi/error_text.h"
#include "abi/tencache_pinned.h"

namespace {

int unavailable(tencache_error* error) {
  return tencache::report({tencache::StatusCode::kUnavailable,
                           "This tencache was built where cuda.h was missing, so it pins no "
                           "memory; install CUDA's headers (pip brings them beside PyTorch) and "
                           "build it again."},
                          error);
}

}  // namespace

extern "C" {

tencache_pinned* tencache_pinned_open(const tencache_pinned_config*, tencache_error* error) {
  unavailable(error);
  return nullptr;
}

void tencache_pinned_close(tencache_pinned*) {}

void* tencache_pinned_allocate(tencache_pinned*, size_t, tencache_error* error) {
  unavailable(error);
  return nullptr;
}

void tencache_pinned_free(tencache_pinned*, void*) {}

int tencache_pinned_record_stream(tencache_pinned*, const void*, int, void*,
                                  tencache_error* error) {
  unavailable(error);
  return 0;
}

void tencache_pinned_poll(tencache_pinned*) {}

void tencache_pinned_trim(tencache_pinned*) {}

uint64_t tencache_pinned_make_pool(tencache_pinned*) { return 0; }

void* tencache_pinned_allocate_in_pool(tencache_pinned*, uint64_t, size_t, tencache_error* error) {
  unavailable(error);
  return nullptr;
}

void tencache_pinned_drop_pool(tencache_pinned*, uint64_t) {}

void tencache_pinned_get_stats(tencache_pinned*, tencache_pinned_stats* stats) { *stats = {}; }

void tencache_pinned_reset_peaks(tencache_pinned*) {}

void tencache_pinned_reset_totals(tencache_pinned*) {}

void tencache_pinned_walk(tencache_pinned*, void (*)(void*, const tencache_pinned_block*), void*) {}

}  // extern "C"
