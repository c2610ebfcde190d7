/* SPDX-License-Identifier: Apache-2.0
 *
 * The C functions of libtencache_torch_cuda-<minor>-cu<major>.so, which puts the memory of GPUs
 * under tencache. It works with one minor version of torch, built for one major version of CUDA. It
 * depends on libtencache_torch-<minor>.so and loads it.
 *
 * Life: set the option backend to cuda, then call tencache_torch_cuda_install() before the first
 * CUDA tensor. It does not initialise CUDA: a GPU is opened when it is first used.
 *
 * Any thread may call any function.
 */
#ifndef TENCACHE_TORCH_CUDA_H_
#define TENCACHE_TORCH_CUDA_H_

#include <stddef.h>

#include "abi/tencache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st* tencache_cuda_stream; /* cudaStream_t */

/* Does what tencache_torch_install() does, and makes PyTorch allocate CUDA tensors from tencache:
 * torch.cuda, torch.accelerator and torch.cuda.memory._get_current_allocator() show its allocator.
 * Pinned memory (pin_memory(), torch.cuda.host_memory_stats()) comes from it as well. Returns 0, or
 * an error code with *error filled: in the cases of tencache_torch_install(), and where the option
 * backend is not cuda, CUDA's own allocator already holds memory, or PyTorch refuses ours. A second
 * call does nothing and returns 0. Does not throw. */
TENCACHE_API int tencache_torch_cuda_install(tencache_error* error);

/* The allocator, a c10::cuda::CUDACachingAllocator::CUDAAllocator, for C++ programs; NULL before
 * tencache_torch_cuda_install() or tencache_cuda_malloc() has made it. */
TENCACHE_API void* tencache_torch_cuda_allocator(void);

/* Both serve torch.cuda.memory.CUDAPluggableAllocator, which tells the allocator neither of other
 * streams (record_stream) nor of CUDA graphs, and shows no figures. Prefer
 * tencache_torch_cuda_install() where you can. Where the runtime has not started, the first call
 * starts it with the options of the environment; it also installs the hooks. Both throw what
 * PyTorch's own allocators throw. */
TENCACHE_API void* tencache_cuda_malloc(size_t bytes, int device, tencache_cuda_stream stream);
TENCACHE_API void tencache_cuda_free(void* address, size_t bytes, int device,
                                     tencache_cuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_TORCH_CUDA_H_ */
