/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI of libtencache.so for GPU memory. It shares error codes, accesses and op modes with
 * tencache.h. One engine serves one GPU; the shim opens it when the GPU is first used.
 *
 * Streams are handles of the driver (CUstream, cudaStream_t) as void *; NULL is the legacy default
 * stream. The per-thread default stream is refused, because it is another stream on each thread.
 *
 * Threads: any thread may call any function, except open and close.
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

/* Opens the engine of a GPU with the runtime's options, in the GPU's primary context, which CUDA's
 * runtime also uses. The gate and the figures of tencache.h then include the engine. The engine
 * uses at most this share of the GPU's memory, in [0, 1]. Returns NULL with *error filled if the
 * GPU cannot be opened or the backend in force is not cuda. */
TENCACHE_API tencache_gpu* tencache_open_gpu(int ordinal, double fraction, tencache_error* error);
/* Bounds the engine to this share of the GPU's memory, in [0, 1], and never to more than it was
 * opened with. What exceeds the bound leaves the GPU as far as it may. Below 1, an allocation that
 * does not fit even then is refused. Returns 0, or an error code. */
TENCACHE_API int tencache_gpu_set_fraction(tencache_gpu* gpu, double fraction,
                                           tencache_error* error);
/* Closes the engine and waits for the GPU. Only tests call this; a program keeps its engines until
 * it ends. REQUIRES: all memory was freed, and no thread uses the engine. */
TENCACHE_API void tencache_gpu_close(tencache_gpu* gpu);

/* ---- Memory --------------------------------------------------------------------------------- */

/* The range that holds every address of the engine and no other memory. It is constant. */
TENCACHE_API tencache_arena tencache_gpu_arena(const tencache_gpu* gpu);

/* Allocates device memory that the stream may use at once, at a multiple of 512 bytes, contents
 * undefined. NULL with *error filled on failure. bytes > 0. */
TENCACHE_API void* tencache_gpu_allocate(tencache_gpu* gpu, size_t bytes, void* stream,
                                         tencache_error* error);
/* Frees an allocation; work that was queued before may still use it. The address must be one that
 * was allocated and is not freed yet, else the process ends with a message. NULL is fine. */
TENCACHE_API void tencache_gpu_free(tencache_gpu* gpu, void* address);
/* Tells that the stream also uses the allocation that contains the address. After its free the
 * memory is not used again until the stream has done the work that was queued before the free.
 * Returns 0, or an error code. */
TENCACHE_API int tencache_gpu_record_stream(tencache_gpu* gpu, const void* address, void* stream,
                                            tencache_error* error);

/* Gives all free memory back to the driver, except that of private pools; returns its bytes. Waits
 * for work that still uses such memory. */
TENCACHE_API uint64_t tencache_gpu_empty_cache(tencache_gpu* gpu);

/* Lets the GPU of that ordinal use what lies in this one's memory, now and later. Returns 0, or an
 * error code where the two are no peers. */
TENCACHE_API int tencache_gpu_add_peer(tencache_gpu* gpu, int ordinal, tencache_error* error);

/* The GPU's memory as the driver sees it, over all programs. Returns 0, or an error code. */
TENCACHE_API int tencache_gpu_memory(tencache_gpu* gpu, uint64_t* free_bytes, uint64_t* total_bytes,
                                     tencache_error* error);

/* ---- Private pools (CUDA graphs) ------------------------------------------------------------ */

/* Makes a pool: memory allocated in it never leaves the GPU, and memory freed in it is used again
 * for this pool alone. The number is never 0. Allocations of a pool are freed as others are.
 */
TENCACHE_API uint64_t tencache_gpu_make_pool(tencache_gpu* gpu);
/* Watches ops from now on, however little of the budget is used. Call before a CUDA graph is
 * captured, whose inputs must stay on the GPU. */
TENCACHE_API void tencache_gpu_watch_ops(tencache_gpu* gpu);
TENCACHE_API void* tencache_gpu_allocate_in_pool(tencache_gpu* gpu, uint64_t pool, size_t bytes,
                                                 void* stream, tencache_error* error);
/* What is in use of the pool now, to which tencache_gpu_restore_pool() puts the pool back. The
 * result is never NULL; the caller deletes it. REQUIRES: the pool exists. */
typedef struct tencache_gpu_pool_state tencache_gpu_pool_state;
TENCACHE_API tencache_gpu_pool_state* tencache_gpu_pool_state_of(tencache_gpu* gpu, uint64_t pool);
TENCACHE_API void tencache_gpu_delete_pool_state(tencache_gpu_pool_state* state);
/* Frees what is in use of the pool, and allocates again, at the same addresses, what was in use in
 * that state. Calls `note` for each address on this thread: first for all that were freed, then for
 * all that are in use now; one may be among both. Returns 0, or an error code with nothing changed.
 * REQUIRES: no other thread uses the pool meanwhile, and what is freed here is not freed
 * otherwise. */
TENCACHE_API int tencache_gpu_restore_pool(tencache_gpu* gpu, const tencache_gpu_pool_state* state,
                                           void (*note)(void* context, int is_allocated,
                                                        void* address),
                                           void* context, tencache_error* error);
/* Gives the pool's free memory back to the driver. Forgets the pool if none of its memory is in
 * use, and then returns 1. REQUIRES: the device is done with all memory freed in the pool, on
 * whatever streams its graphs were replayed, and nobody allocates in it any more. */
TENCACHE_API int tencache_gpu_drop_pool(tencache_gpu* gpu, uint64_t pool);

/* ---- What the program sees of its memory ---------------------------------------------------- */

typedef struct tencache_gpu_count {
  uint64_t current;
  uint64_t peak; /* since tencache_gpu_reset_peaks() */
  uint64_t added;
  uint64_t removed; /* both since tencache_gpu_reset_totals() */
} tencache_gpu_count;

/* Counts for all requests, for small ones or for large ones. */
typedef struct tencache_gpu_uses {
  tencache_gpu_count bytes; /* allocated and not freed, wherever the bytes are */
  tencache_gpu_count allocations;
  tencache_gpu_count active_bytes; /* these, and freed ones that streams may still use */
  tencache_gpu_count active_count;
  tencache_gpu_count requested_bytes; /* of the active ones */
  tencache_gpu_count split_bytes;     /* free, in segments that are partly in use */
  tencache_gpu_count split_count;
  tencache_gpu_count device_bytes; /* taken from the driver, cached memory included */
  tencache_gpu_count device_count; /* segments with such memory */
} tencache_gpu_uses;

typedef struct tencache_gpu_stats {
  tencache_gpu_uses all;
  tencache_gpu_uses small; /* requests of up to 1 MiB */
  tencache_gpu_uses large;
  uint64_t cold_bytes; /* allocated, and not on the GPU now */
} tencache_gpu_stats;

/* Fills *stats, for which it walks all large tensors. */
TENCACHE_API void tencache_gpu_get_stats(const tencache_gpu* gpu, tencache_gpu_stats* stats);

/* all.bytes.current and all.device_bytes.current, without a walk. */
typedef struct tencache_gpu_use {
  uint64_t bytes;
  uint64_t device_bytes;
} tencache_gpu_use;

TENCACHE_API tencache_gpu_use tencache_gpu_use_now(const tencache_gpu* gpu);
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
  uint64_t requested_bytes; /* while inactive: of the one freed last in or around it; 0: none */
  int state;
  int is_shared; /* set by find alone: other streams use it too, so its free waits for them */
} tencache_gpu_block;

typedef struct tencache_gpu_segment {
  uintptr_t address;
  uint64_t bytes;
  void* stream;    /* its free blocks serve this stream at once; NULL also if there is none */
  uint64_t pool;   /* number of the private pool, or 0 */
  int is_small;    /* for requests of up to 1 MiB */
  int is_resident; /* 0: an extent whose bytes are not on the GPU now */
  const tencache_gpu_block* blocks; /* they cover the segment, in order of address */
  size_t block_count;
} tencache_gpu_segment;

/* Finds the allocation that contains the address, and its segment (without the blocks). Returns 0
 * and writes nothing if there is none. Either pointer may be NULL. */
TENCACHE_API int tencache_gpu_find(const tencache_gpu* gpu, const void* address,
                                   tencache_gpu_block* block, tencache_gpu_segment* segment);

enum {
  TENCACHE_SEGMENT_MADE = 0, /* addresses for blocks, or of one large allocation */
  TENCACHE_SEGMENT_GONE = 1,
  TENCACHE_FREE_COMPLETED = 2, /* streams are done with a shared block that was freed earlier */
};

/* Calls `note` whenever addresses come and go, from now on and for good: on any thread, perhaps
 * with locks of the engine held, and before anybody else can get the same address. `note` must call
 * nothing of the engine. The bytes are those of the segment, or those requested of the block. */
TENCACHE_API void tencache_gpu_observe(tencache_gpu* gpu,
                                       void (*note)(void* context, int event, uintptr_t address,
                                                    uint64_t bytes),
                                       void* context);

/* Calls `visit` for every segment, in order of address, on this thread and with no lock held.
 * Segments of one kind are shown as of one moment; all of them together are not. The arguments live
 * until `visit` returns. */
TENCACHE_API void tencache_gpu_walk(const tencache_gpu* gpu,
                                    void (*visit)(void* context,
                                                  const tencache_gpu_segment* segment),
                                    void* context);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_GPU_H_ */
