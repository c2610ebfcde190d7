/* SPDX-License-Identifier: Apache-2.0
 *
 * The C functions of libtencache_torch-<minor>.so, for the Python package (ctypes) and for C++
 * programs that link libtorch. The library reads PyTorch's C++ structures and works only with the
 * minor version that it was compiled against; there is one library for each. Installing tests the
 * layout of the loaded libtorch first (shim/self_test.h). The package's _build_info.py tells
 * which libraries there are.
 *
 * No function throws. After tencache_torch_install(), any thread may call any function.
 */
#ifndef TENCACHE_TORCH_H_
#define TENCACHE_TORCH_H_

#include <stddef.h>
#include <stdint.h>

#include "abi/tencache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tests the layout of the loaded libtorch, starts the runtime with the options set so far and puts
 * it under PyTorch: gate, list operators, collectives, and on the cpu backend the CPU allocator
 * (for GPUs: tencache_torch_cuda.h). Returns 0, or an error code with *error filled; PyTorch then
 * allocates as before. A second call does nothing and returns 0. After a failure the function may
 * be called again; it fails for good once PyTorch has refused a kernel or callback. */
TENCACHE_API int tencache_torch_install(tencache_error* error);

/* Opens the gate on this thread for the extents that hold the addresses. It serves kernels that the
 * dispatcher does not see (Inductor's). Each address has a mode of its own: TENCACHE_READ,
 * TENCACHE_WRITE or both. */
TENCACHE_API void tencache_torch_open(const char* name, const void* const* addresses,
                                      const char* modes, uint32_t count);
/* How many ops this thread has open. */
TENCACHE_API uint32_t tencache_torch_depth(void);
/* Ends what this thread has opened beyond that depth: nothing, if an exception came before the op
 * was opened. */
TENCACHE_API void tencache_torch_close_to(uint32_t depth);

/* Describes the installation as JSON: {torch, backend, installed, split: [names], left_alone:
 * [{name, reason}], split_calls, split_chunks, collectives, pending_collectives, known_operators}.
 * Writes as much as fits, always terminated; returns the size needed, terminator included. */
TENCACHE_API size_t tencache_torch_describe_json(char* buffer, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_TORCH_H_ */
