/* SPDX-License-Identifier: Apache-2.0
 *
 * What libtencache_guard.so and libtencache.so say to each other. The guard is preloaded into a
 * program before its first library and knows nothing but the driver's functions; the core is loaded
 * later, if at all, looks for the guard in the process and installs its hooks. From then on
 * whatever queues work on the memory of a GPU (guard/driver_functions.h) asks the hooks first.
 *
 * Threads: the hooks are called on any thread, with no lock held; installed once.
 */
#ifndef TENCACHE_GUARD_H_
#define TENCACHE_GUARD_H_

#include <stdint.h>

#include "abi/tencache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The per-thread default stream, whatever the caller named it (CU_STREAM_PER_THREAD). */
#define TENCACHE_STREAM_PER_THREAD ((void*)0x2)

typedef struct tencache_guard_hooks {
  /* Where memory is whose use must pass the gate; of 0 bytes as long as none must. */
  tencache_arena (*watched)(void);
  /* Work that may use these addresses is about to be queued in this stream by this thread. An
   * address may be no address at all, but a number that looks like one. `name` is that of a kernel
   * or of a function of the driver, and lives for ever. What is returned, unless it is 0, is given
   * to end() once the work is queued. count > 0. */
  uint32_t (*begin)(const char* name, void* stream, const tencache_access* accesses,
                    uint32_t count);
  void (*end)(uint32_t begun);
  /* A kernel was launched whose arguments could not be read. */
  void (*on_unreadable)(void);
} tencache_guard_hooks;

/* Exported by the guard. `hooks` live for ever. */
typedef void (*tencache_guard_install_function)(const tencache_guard_hooks* hooks);
TENCACHE_API void tencache_guard_install(const tencache_guard_hooks* hooks);
/* dlsym() past the guard: the driver's own functions, which ask nobody. The core's table of them is
 * filled so, or its own copies would pass its own gate. */
typedef void* (*tencache_guard_find_function)(void* library, const char* name);
TENCACHE_API void* tencache_guard_find(void* library, const char* name);

#ifdef __cplusplus
}
#endif

#endif /* TENCACHE_GUARD_H_ */
