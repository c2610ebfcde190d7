/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between libtencache_guard.so and libtencache.so. The guard is preloaded into a
 * program before its first library, and knows only the driver's functions. The core is loaded
 * later, if at all, looks for the guard in the process and installs its hooks. From then on every
 * function that queues work on GPU memory (guard/driver_functions.h) asks the hooks first, and one
 * that destroys a stream tells them.
 *
 * Threads: the hooks are called on any thread, with no lock held. They are installed once.
 */
#ifndef TENCACHE_GUARD_H_
#define TENCACHE_GUARD_H_

#include <stdint.h>

#include "abi/tencache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The per-thread default stream, however the caller named it (CU_STREAM_PER_THREAD). */
#define TENCACHE_STREAM_PER_THREAD ((void*)0x2)

typedef struct tencache_guard_hooks {
  /* The range of memory whose use must pass the gate; 0 bytes while there is none. */
  tencache_arena (*watched)(void);
  /* The guard calls this before the thread queues work in this stream that may use these addresses.
   * An address may be only a number that looks like one. `name` is that of a kernel or of a driver
   * function, and lives for ever. The guard gives a result other than 0 to end() once the work is
   * queued. count > 0. */
  uint32_t (*begin)(const char* name, void* stream, const tencache_access* accesses,
                    uint32_t count);
  void (*end)(uint32_t begun);
  /* The guard calls this when a kernel was launched whose arguments could not be read. */
  void (*on_unreadable)(void);
  /* The guard calls this before the thread destroys the stream. After this returns, the driver is
   * not asked about the handle. */
  void (*on_stream_end)(void* stream);
} tencache_guard_hooks;

/* The guard exports this. `hooks` must live for ever. */
typedef void (*tencache_guard_install_function)(const tencache_guard_hooks* hooks);
TENCACHE_API void tencache_guard_install(const tencache_guard_hooks* hooks);
/* dlsym() past the guard: finds the driver's own functions, which ask nobody. The core fills its
 * table of driver functions this way; else its own copies would pass its own gate. */
typedef void* (*tencache_guard_find_function)(void* library, const char* name);
TENCACHE_API void* tencache_guard_find(void* library, const char* name);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_GUARD_H_ */
