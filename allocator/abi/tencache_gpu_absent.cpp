// SPDX-License-Identifier: Apache-2.0
//
// The C ABI for GPUs where tencache was built without CUDA's header: there is no engine, and
// whoever asks for one is told so. The rest exists so that the library exports the same functions
// everywhere, and answers that there is nothing.
#include "abi/error_text.h"
#include "abi/tencache_gpu.h"

namespace {

int unavailable(tencache_error* error) {
  return tencache::report({tencache::StatusCode::kUnavailable,
                           "This tencache was built where cuda.h was missing, so it serves no "
                           "GPU; install CUDA's headers (pip brings them beside PyTorch) and "
                           "build it again."},
                          error);
}

}  // namespace

extern "C" {

void tencache_gpu_default_config(int ordinal, tencache_gpu_config* config) {
  *config = {};
  config->ordinal = ordinal;
}

tencache_gpu* tencache_gpu_open(const tencache_gpu_config*, tencache_error* error) {
  unavailable(error);
  return nullptr;
}

tencache_gpu* tencache_open_gpu(int, double, tencache_error* error) {
  unavailable(error);
  return nullptr;
}

void tencache_gpu_close(tencache_gpu*) {}

tencache_arena tencache_gpu_arena(const tencache_gpu*) { return {0, 0}; }

void* tencache_gpu_allocate(tencache_gpu*, size_t, void*, tencache_error* error) {
  unavailable(error);
  return nullptr;
}

void tencache_gpu_free(tencache_gpu*, void*) {}

int tencache_gpu_record_stream(tencache_gpu*, const void*, void*, tencache_error* error) {
  return unavailable(error);
}

uint64_t tencache_gpu_empty_cache(tencache_gpu*) { return 0; }

int tencache_gpu_memory(tencache_gpu*, uint64_t*, uint64_t*, tencache_error* error) {
  return unavailable(error);
}

uint64_t tencache_gpu_make_pool(tencache_gpu*) { return 0; }

void tencache_gpu_watch_ops(tencache_gpu*) {}

void* tencache_gpu_allocate_in_pool(tencache_gpu*, uint64_t, size_t, void*, tencache_error* error) {
  unavailable(error);
  return nullptr;
}

int tencache_gpu_drop_pool(tencache_gpu*, uint64_t) { return 1; }

int tencache_gpu_set_fraction(tencache_gpu*, double, tencache_error* error) {
  return unavailable(error);
}

uint32_t tencache_gpu_register_op(tencache_gpu*, const char*) { return 0; }

void tencache_gpu_open_op(tencache_gpu*, uint32_t, const tencache_access*, uint32_t, void*) {}

void tencache_gpu_close_op(tencache_gpu*) {}

void tencache_gpu_keep_resident(tencache_gpu*, const tencache_access*, uint32_t) {}

void tencache_gpu_get_stats(const tencache_gpu*, tencache_gpu_stats* stats) { *stats = {}; }

void tencache_gpu_reset_peaks(tencache_gpu*) {}

void tencache_gpu_reset_totals(tencache_gpu*) {}

int tencache_gpu_find(const tencache_gpu*, const void*, tencache_gpu_block*,
                      tencache_gpu_segment*) {
  return 0;
}

void tencache_gpu_observe(tencache_gpu*, void (*)(void*, int, uintptr_t, uint64_t), void*) {}

void tencache_gpu_walk(const tencache_gpu*, void (*)(void*, const tencache_gpu_segment*), void*) {}

}  // extern "C"
