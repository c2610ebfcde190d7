/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI of libtencache.so for host memory that GPUs copy from and to at full speed, which
 * PyTorch's pin_memory() asks for. It needs no engine of a GPU (tencache_gpu.h, whose streams and
 * counts it shares). Sizes are exact. The memory lies next to one GPU and serves all. If the driver
 * refuses to pin, the memory is pageable: right, but slower, and the library warns. The driver
 * knows which memory is pinned, and PyTorch asks the driver (Tensor.is_pinned()).
 *
 * Memory is taken from the system when needed, as long as the machine has any left, and given back
 * only on request (tencache_pinned_trim()) or in exchange for other pieces, because unpinning may
 * stop the GPUs. A forked child has none of it: allocations fail there, and the other functions do
 * nothing.
 *
 * Threads: any thread may call any function, except open and close.
 */
#ifndef TENCACHE_PINNED_H_
#define TENCACHE_PINNED_H_

#include <stddef.h>
#include <stdint.h>

#include "abi/tencache_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tencache_pinned tencache_pinned;

/* ---- Life ----------------------------------------------------------------------------------- */

/* The memory lies next to the GPU `ordinal`. NULL with *error filled if there is no such GPU, or no
 * CUDA. */
TENCACHE_API tencache_pinned* tencache_pinned_open(int ordinal, tencache_error* error);
/* Only tests call this; a program keeps its memory until it ends. Waits for streams that still use
 * freed memory. REQUIRES: all memory was freed, and no thread uses `pinned`. */
TENCACHE_API void tencache_pinned_close(tencache_pinned* pinned);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Allocates memory at a multiple of 4096, contents undefined. NULL with *error filled on failure:
 * TENCACHE_OUT_OF_MEMORY where the machine has none left, after waiting for streams. bytes > 0. */
TENCACHE_API void* tencache_pinned_allocate(tencache_pinned* pinned, size_t bytes,
                                            tencache_error* error);
/* Frees an allocation; copies that were queued before may still use it. The address must be one
 * that was allocated and is not freed yet, else the process ends with a message. NULL is fine. */
TENCACHE_API void tencache_pinned_free(tencache_pinned* pinned, void* address);
/* Tells that this stream of that GPU uses the allocation that contains the address. After its free
 * the memory is not used again until the stream has done the work that was queued before the free.
 * Returns 1 if that is noted. Returns 0 if there is no such allocation (error->code is
 * TENCACHE_OK), or if it cannot be noted. */
TENCACHE_API int tencache_pinned_record_stream(tencache_pinned* pinned, const void* address,
                                               int ordinal, void* stream, tencache_error* error);
/* Checks which streams are done with freed memory, without waiting, and gives unused memory back to
 * the system. */
TENCACHE_API void tencache_pinned_trim(tencache_pinned* pinned);

/* ---- Private pools (CUDA graphs) ------------------------------------------------------------ */

/* Makes a pool: memory freed in it serves the pool alone. Where streams used it, it serves nobody
 * until the pool is dropped, because a graph may use it at each replay. The number is never 0.
 * Allocations of a pool are freed as others are. */
TENCACHE_API uint64_t tencache_pinned_make_pool(tencache_pinned* pinned);
TENCACHE_API void* tencache_pinned_allocate_in_pool(tencache_pinned* pinned, uint64_t pool,
                                                    size_t bytes, tencache_error* error);
/* Drops the pool. REQUIRES: the GPUs are done with memory freed in the pool, and nobody allocates
 * in it any more. */
TENCACHE_API void tencache_pinned_drop_pool(tencache_pinned* pinned, uint64_t pool);

/* ---- Figures -------------------------------------------------------------------------------- */

enum { TENCACHE_PINNED_SIZES = 64 };

typedef struct tencache_pinned_stats {
  tencache_gpu_count bytes;        /* as requested; includes freed ones that streams still use */
  tencache_gpu_count allocations;  /* likewise */
  tencache_gpu_count mapped_bytes; /* taken from the system */
  tencache_gpu_count mapped_count; /* the pieces it was taken in */
  /* Since tencache_pinned_reset_totals(): [n] counts the mapped pieces of up to 2^n bytes and more
   * than half of that; pin_ns is how long the driver took to pin them. */
  uint64_t added_by_size[TENCACHE_PINNED_SIZES];
  uint64_t pin_ns;
  uint64_t pin_ns_max; /* both since tencache_pinned_reset_peaks() */
  uint64_t pin_ns_min;
} tencache_pinned_stats;

TENCACHE_API void tencache_pinned_get_stats(tencache_pinned* pinned, tencache_pinned_stats* stats);
TENCACHE_API void tencache_pinned_reset_peaks(tencache_pinned* pinned);
TENCACHE_API void tencache_pinned_reset_totals(tencache_pinned* pinned);

typedef struct tencache_pinned_block {
  uintptr_t address;
  uint64_t bytes;
  uint64_t pool; /* number of the private pool, or 0 */
  int state;     /* TENCACHE_BLOCK_...; a private pool keeps inactive ones */
} tencache_pinned_block;

/* Calls `visit` for every block, in no order, on this thread and with no lock held. All are shown
 * as of one moment; a block that another thread polls at that moment is missing.
 */
TENCACHE_API void tencache_pinned_walk(tencache_pinned* pinned,
                                       void (*visit)(void* context,
                                                     const tencache_pinned_block* block),
                                       void* context);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_PINNED_H_ */
