// What the emulated GPU's parts offer each other, beyond CUDA's own interfaces.
#pragma once
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Device memory that a task reads or writes.
typedef struct EmulatedRange {
  uint64_t address;
  uint64_t bytes;
  int is_written;
} EmulatedRange;

// One kernel: what a thread of the stream runs when its turn comes.
typedef struct EmulatedTask {
  const char* name;                 // lives for ever
  void (*run)(void* state);         // on the stream's thread; must not call CUDA
  void (*destroy)(void* state);     // after it ran, or was dropped because the context failed
  void* state;
} EmulatedTask;

// The block of parameters ("extra" of cuLaunchKernel) of such a kernel: so that whoever reads the
// parameters of launches (tencache's launch guard) finds the addresses as in a real kernel's.
typedef struct EmulatedParameters {
  EmulatedTask task;
  const EmulatedRange* ranges;           // copied by the launch
  uint64_t count;
  uint64_t addresses[1];            // count of them
} EmulatedParameters;

// libcuda.so.1 --------------------------------------------------------------------------------
CUfunction emulated_gpu_function(const char* name);           // a handle for cuLaunchKernel, one per name
int emulated_gpu_is_device(const void* address);              // reserved device address
int emulated_gpu_device_of(const void* address);              // ordinal, -1 when not mapped
int emulated_gpu_is_registered(const void* address);
void emulated_gpu_fail(CUresult result);                      // the context fails for good
void emulated_gpu_wait_idle(void);
uint64_t emulated_gpu_launches(void);
void emulated_gpu_set_capturing(CUstream stream, int is_capturing);

// libcudart.so.13 -----------------------------------------------------------------------------
// Queues the task in the stream, by the driver's cuLaunchKernel.
CUresult emulated_gpu_launch(void* stream, const EmulatedTask* task, const EmulatedRange* ranges, size_t count);
void emulated_gpu_device_failed(void);                        // a kernel failed: so does the context

#ifdef __cplusplus
}
#endif
