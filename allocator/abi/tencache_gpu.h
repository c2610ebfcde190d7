/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI of libtencache.so for the memory of GPUs, beside tencache.h, whose error codes,
 * accesses and op modes it shares. One engine serves one GPU; the shim opens one when a GPU is
 * first used.
 *
 * Streams are handles of the driver (CUstream, cudaStream_t) as void *; NULL is the legacy default
 * stream. The per-thread default stream is refused: it is another one on each thread.
 *
 * Threads: everything may be called from any thread, but open and close.
 */
#ifndef TENCACHE_GPU_H_
#define TENCACHE_GPU_H_

#include <stddef.h>
#include <stdint.h>

#include "abi/tencache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tencache_gpu tencache_gpu;

/* ---- Life ----------------------------------------------------------------------------------- */

/* Opens the engine of a GPU by the options of the runtime, in the GPU's primary context, the one
 * that CUDA's run time uses, and makes it one of those that the gate and the figures of tencache.h
 * are about. At most this share of the GPU's memory is used, in [0, 1]. NULL with *error filled
 * where that cannot be, or the backend in force is not cuda. */
TENCACHE_API tencache_gpu* tencache_open_gpu(int ordinal, double fraction, tencache_error* error);
/* From now on at most this share of the GPU's memory, in [0, 1], and no more than it was opened
 * with. What is above it leaves the GPU as far as it may; below 1 what does not fit even then is
 * refused. 0, or an error code. */
TENCACHE_API int tencache_gpu_set_fraction(tencache_gpu* gpu, double fraction,
                                           tencache_error* error);
/* Ends it and waits for the GPU. For tests; a program keeps its engines until it ends. REQUIRES:
 * everything was freed, and no thread uses it. */
TENCACHE_API void tencache_gpu_close(tencache_gpu* gpu);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Every address of the engine is in this range, and no other memory is. Constant. */
TENCACHE_API tencache_arena tencache_gpu_arena(const tencache_gpu* gpu);

/* Device memory that the stream may use at once, a multiple of 512 bytes, its contents undefined.
 * NULL with *error filled when it cannot be had. bytes > 0. */
TENCACHE_API void* tencache_gpu_allocate(tencache_gpu* gpu, size_t bytes, void* stream,
                                         tencache_error* error);
/* The program is done with it; work that it has queued may go on. The address is one that was
 * allocated and is not freed yet, else the process ends with a message. NULL is fine. */
TENCACHE_API void tencache_gpu_free(tencache_gpu* gpu, void* address);
/* The stream uses the allocation that contains the address, too: it is not used again before the
 * stream is done with what it was given until the free. 0, or an error code. */
TENCACHE_API int tencache_gpu_record_stream(tencache_gpu* gpu, const void* address, void* stream,
                                            tencache_error* error);

/* Gives everything that is free back to the driver, private pools aside; returns its bytes. Waits
 * for work that uses it. */
TENCACHE_API uint64_t tencache_gpu_empty_cache(tencache_gpu* gpu);

/* The GPU's memory as the driver sees it, all programs together. 0, or an error code. */
TENCACHE_API int tencache_gpu_memory(tencache_gpu* gpu, uint64_t* free_bytes, uint64_t* total_bytes,
                                     tencache_error* error);

/* ---- Private pools (CUDA graphs) ------------------------------------------------------------ */

/* A pool of its own: what is allocated in it never leaves the GPU, and what is freed in it is used
 * again for this pool alone. Its number is never 0. Allocations of a pool are freed as others are.
 */
TENCACHE_API uint64_t tencache_gpu_make_pool(tencache_gpu* gpu);
/* Ops are watched from now on, however little of the budget is used: before a CUDA graph is
 * captured, whose inputs must stay on the GPU. */
TENCACHE_API void tencache_gpu_watch_ops(tencache_gpu* gpu);
TENCACHE_API void* tencache_gpu_allocate_in_pool(tencache_gpu* gpu, uint64_t pool, size_t bytes,
                                                 void* stream, tencache_error* error);
/* Gives what is free in the pool back to the engine, and forgets the pool when nothing of it is in
 * use: 1 when it is gone. REQUIRES: the device is done with all that was freed in the pool, on
 * whatever streams its graphs were replayed, and nobody allocates in it any more. */
TENCACHE_API int tencache_gpu_drop_pool(tencache_gpu* gpu, uint64_t pool);

/* ---- What the program sees of its memory ---------------------------------------------------- */

typedef struct tencache_gpu_count {
  uint64_t current;
  uint64_t peak; /* since tencache_gpu_reset_peaks() */
  uint64_t added;
  uint64_t removed; /* both since tencache_gpu_reset_totals() */
} tencache_gpu_count;

/* Of the memory that small or large requests are served from. */
typedef struct tencache_gpu_uses {
  tencache_gpu_count bytes; /* allocated and not freed, wherever they are */
  tencache_gpu_count allocations;
  tencache_gpu_count active_bytes; /* that, and what was freed but other streams may still use */
  tencache_gpu_count active_count;
  tencache_gpu_count requested_bytes; /* of what is active */
  tencache_gpu_count split_bytes;     /* free, in segments that are in use otherwise */
  tencache_gpu_count split_count;
  tencache_gpu_count device_bytes; /* taken from the driver, what waits for its next use included */
  tencache_gpu_count device_count;
} tencache_gpu_uses;

typedef struct tencache_gpu_stats {
  tencache_gpu_uses all;
  tencache_gpu_uses small; /* requests of up to 1 MiB */
  tencache_gpu_uses large;
  uint64_t cached_bytes; /* freed and kept for the next request of that size */
  uint64_t cold_bytes;   /* allocated, and in host memory now */
  uint64_t host_bytes;   /* what is mapped for that */
  uint64_t device_budget_bytes;
  uint64_t others_bytes; /* of the budget, what other programs use of the same GPU */
  uint64_t over_budget_events;
  uint64_t over_budget_peak_bytes;
  uint64_t evicted_bytes;
  uint64_t fetched_bytes;
  uint64_t early_fetches;
  uint64_t late_fetches;
  uint64_t wasted_fetches;
  uint64_t stall_ns;
} tencache_gpu_stats;

TENCACHE_API void tencache_gpu_get_stats(const tencache_gpu* gpu, tencache_gpu_stats* stats);
TENCACHE_API void tencache_gpu_reset_peaks(tencache_gpu* gpu);
TENCACHE_API void tencache_gpu_reset_totals(tencache_gpu* gpu);

enum {
  TENCACHE_BLOCK_INACTIVE = 0,
  TENCACHE_BLOCK_ALLOCATED = 1,
  TENCACHE_BLOCK_PENDING_FREE = 2, /* freed, but streams may still use it */
};

typedef struct tencache_gpu_block {
  uintptr_t address;
  uint64_t bytes;
  uint64_t requested_bytes; /* 0 where it is inactive */
  int state;
  int is_shared; /* told by find alone: other streams use it too, so that its free waits for them */
} tencache_gpu_block;

typedef struct tencache_gpu_segment {
  uintptr_t address;
  uint64_t bytes;
  void* stream;  /* that its free blocks may serve at once; NULL also where there is no such one */
  uint64_t pool; /* number of the private pool; 0: none */
  int is_small;  /* serves requests of up to 1 MiB */
  int is_resident;                  /* 0: an extent whose bytes are in host memory now */
  const tencache_gpu_block* blocks; /* they cover the segment, in the order of their addresses */
  size_t block_count;
} tencache_gpu_segment;

/* The allocation that contains the address, and the segment it lies in (its blocks are left out; is
 * there no such allocation, 0 is returned and nothing written). Either may be NULL. */
TENCACHE_API int tencache_gpu_find(const tencache_gpu* gpu, const void* address,
                                   tencache_gpu_block* block, tencache_gpu_segment* segment);

enum {
  TENCACHE_SEGMENT_MADE = 0, /* addresses for blocks, or of one large allocation */
  TENCACHE_SEGMENT_GONE = 1,
  TENCACHE_FREE_COMPLETED = 2, /* streams are done with a shared block that was freed before */
};

/* From now on, for good, `note` is called when addresses come and go: on any thread, perhaps with
 * locks of the engine held, and before anybody else can have the same address. It calls nothing of
 * the engine. Bytes are those of the segment, or those requested of the block. */
TENCACHE_API void tencache_gpu_observe(tencache_gpu* gpu,
                                       void (*note)(void* context, int event, uintptr_t address,
                                                    uint64_t bytes),
                                       void* context);

/* Calls `visit` for every segment, in the order of their addresses, on this thread and with no lock
 * held: of one moment for each kind of segment, not for all of them. What it is given lives until
 * it returns. */
TENCACHE_API void tencache_gpu_walk(const tencache_gpu* gpu,
                                    void (*visit)(void* context,
                                                  const tencache_gpu_segment* segment),
                                    void* context);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_GPU_H_ */
