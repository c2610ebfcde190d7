/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI of libtencache.so for host memory that GPUs copy from and to at full speed: what
 * PyTorch's pin_memory() asks for. It needs no engine of a GPU (tencache_gpu.h, whose streams and
 * counts it shares). Sizes are exact, the memory lies next to one GPU and serves all. Where the
 * driver refuses to pin, memory is given all the same, pageable: right, slower, and the library has
 * warned. The driver knows which is which, and is what PyTorch asks (Tensor.is_pinned()).
 *
 * Memory is taken from the system when it is needed, up to the budget, and given back when that is
 * asked for (tencache_pinned_trim()): to unpin may stop the GPUs. A forked child has none of it:
 * allocation fails there, the rest does nothing.
 *
 * Threads: everything may be called from any thread, but open and close.
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

typedef struct tencache_pinned_config {
  int ordinal;           /* of the GPU near which the memory shall lie */
  uint64_t budget_bytes; /* 0: what the machine can spare; more than that is lowered to it */
} tencache_pinned_config;

/* NULL with *error filled where there is no such GPU, or no CUDA. */
TENCACHE_API tencache_pinned* tencache_pinned_open(const tencache_pinned_config* config,
                                                   tencache_error* error);
/* For tests; a program keeps its memory until it ends. Waits for streams that still use what was
 * freed. REQUIRES: everything was freed, and no thread uses it. */
TENCACHE_API void tencache_pinned_close(tencache_pinned* pinned);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Memory at a multiple of 4096, its contents undefined. NULL with *error filled when it cannot be
 * had: TENCACHE_OUT_OF_MEMORY at the budget, after streams were waited for. bytes > 0. */
TENCACHE_API void* tencache_pinned_allocate(tencache_pinned* pinned, size_t bytes,
                                            tencache_error* error);
/* The program is done with it; copies that it has queued may go on. The address is one that was
 * allocated and is not freed yet, else the process ends with a message. NULL is fine. */
TENCACHE_API void tencache_pinned_free(tencache_pinned* pinned, void* address);
/* The stream of that GPU uses the allocation that contains the address: it is not used again before
 * the stream is done with what it was given until the free. 1 when that is noted. 0 when there is
 * no such allocation, with error->code TENCACHE_OK, or when it cannot be noted. */
TENCACHE_API int tencache_pinned_record_stream(tencache_pinned* pinned, const void* address,
                                               int ordinal, void* stream, tencache_error* error);
/* Looks which streams are done with what was freed. Waits for none. */
TENCACHE_API void tencache_pinned_poll(tencache_pinned* pinned);
/* The same, and gives memory in which nothing lies any more back to the system. */
TENCACHE_API void tencache_pinned_trim(tencache_pinned* pinned);

/* ---- Private pools (CUDA graphs) ------------------------------------------------------------ */

/* A pool of its own: what is freed in it serves the pool alone, and where streams used it nobody
 * until the pool is dropped, because a graph may use it at each replay. Its number is never 0.
 * Freed as other memory. */
TENCACHE_API uint64_t tencache_pinned_make_pool(tencache_pinned* pinned);
TENCACHE_API void* tencache_pinned_allocate_in_pool(tencache_pinned* pinned, uint64_t pool,
                                                    size_t bytes, tencache_error* error);
/* REQUIRES: the GPUs are done with what was freed in it, and nobody allocates in it any more. */
TENCACHE_API void tencache_pinned_drop_pool(tencache_pinned* pinned, uint64_t pool);

/* ---- Figures -------------------------------------------------------------------------------- */

enum { TENCACHE_PINNED_SIZES = 64 };

typedef struct tencache_pinned_stats {
  tencache_gpu_count bytes;       /* as asked for; freed ones that streams still use included */
  tencache_gpu_count allocations; /* likewise */
  uint64_t waiting_bytes;         /* of these, freed */
  uint64_t waiting_count;
  uint64_t kept_bytes;             /* freed in private pools */
  tencache_gpu_count mapped_bytes; /* taken from the system */
  tencache_gpu_count mapped_count; /* in so many pieces */
  uint64_t pinned_bytes;           /* of the mapped ones; less where the driver refused */
  uint64_t budget_bytes;
  /* Since tencache_pinned_reset_totals(): how many pieces were mapped, [n]: of up to 2^n bytes, and
   * more than half of that; and how long the driver took to pin them. */
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
  uint64_t pool; /* number of the private pool; 0: none */
  int state;     /* TENCACHE_BLOCK_...; inactive is what a private pool keeps */
} tencache_pinned_block;

/* Calls `visit` for every block, in no order, on this thread and with no lock held: of one moment.
 */
TENCACHE_API void tencache_pinned_walk(tencache_pinned* pinned,
                                       void (*visit)(void* context,
                                                     const tencache_pinned_block* block),
                                       void* context);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_PINNED_H_ */
