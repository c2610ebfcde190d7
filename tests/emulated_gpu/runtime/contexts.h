// SPDX-License-Identifier: Apache-2.0
//
// The current device of each thread. A primary context is retained at its device's first use and
// never released. A thread's requested device counts until the thread has a context; from then on
// the driver's current context does. A mutex guards the contexts; any thread may call.
#pragma once

#include "driver_table.h"

namespace emulated_gpu::runtime {

/// The driver, once the calling thread has a context: the first call that needs one makes the
/// primary context current, as the real run time does. Where that fails, the driver's next call
/// reports that there is no context.
const Driver& ready();
bool has_device(int device);
/// Whether each device may use the memory of each other one (EMULATED_GPU_PEERS).
bool has_peers();
/// Returns null where the driver gives none. REQUIRES: has_device(device).
CUcontext context_of(int device);
int current_device();
CUresult set_current_device(int device);
/// Waits for that device, whichever is current. REQUIRES: has_device(device).
CUresult synchronize_device(int device);
/// Waits for each device with a context.
CUresult synchronize_devices();

}  // namespace emulated_gpu::runtime
