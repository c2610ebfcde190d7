// SPDX-License-Identifier: Apache-2.0
//
// What the libraries of the emulated GPU offer each other beyond CUDA's own interfaces: a kernel is
// a task, which says what device memory it touches and runs on its stream's thread. The operators
// queue tasks by emulated_gpu_launch of the run time; that one hands them to the driver by
// cuLaunchKernel, as it would a real kernel, so that a launch guard sees them too.
//
// Everything is plain C, so that each library has a C++ library of its own. Any thread may call the
// functions, but for the threads of streams, which must not call CUDA.
#pragma once

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {

/// Device memory that a task reads or writes.
struct EmulatedRange {
  uint64_t address;
  uint64_t bytes;
  int is_written;
};

/// One kernel: what a thread of the stream runs when its turn comes.
struct EmulatedTask {
  const char* name;              // lives for ever
  void (*run)(void* state);      // must not call CUDA
  void (*destroy)(void* state);  // after it ran, or was refused, or dropped as the context failed
  void* state;
};

/// The block of parameters ("extra" of cuLaunchKernel) of such a kernel: whoever reads parameters
/// of launches finds the addresses as in a real kernel's.
struct EmulatedParameters {
  EmulatedTask task;
  const EmulatedRange* ranges;  // copied by the launch
  uint64_t count;
  uint64_t addresses[1];  // `count` of them
};

/// What became of a stream's time, on the device's clock, from its first kernel to its last one.
struct EmulatedTimes {
  uint64_t kernels;
  double busy_s;     // with kernels
  double stalled_s;  // a kernel was queued, but an event, a value or a copy stood before it
  double starved_s;  // no kernel was queued
};

// ---- libcuda.so.1

/// A handle for cuLaunchKernel, one for each name.
CUfunction emulated_gpu_function(const char* name);
/// Whether the address lies in a reservation of device addresses.
int emulated_gpu_is_device(const void* address);
/// The ordinal of the device whose memory is mapped there, -1 where none is.
int emulated_gpu_device_of(const void* address);
int emulated_gpu_is_registered(const void* address);
/// The context fails for good.
void emulated_gpu_fail(CUresult result);
/// The nth call of tencache's function of that name from now (1 is the next one) returns `result`
/// and does nothing, whoever makes it.
void emulated_gpu_fail_call(const char* name, uint64_t nth, CUresult result);
void emulated_gpu_set_capturing(CUstream stream, int is_capturing);
/// What the stream is given from now on waits for emulated_gpu_let_go(); after two minutes that
/// ends the process. REQUIRES: the stream exists.
void emulated_gpu_hold(CUstream stream);
/// No copy over the link begins until emulated_gpu_let_go(), for two minutes at most, too.
void emulated_gpu_hold_copies(void);
/// All that is held goes on.
void emulated_gpu_let_go(void);
/// Whether all that is queued waits for emulated_gpu_let_go(), and some of it by way of an event.
int emulated_gpu_is_stuck(void);
/// From now on kernels of that name take so long, as by a line of EMULATED_GPU_DURATIONS.
void emulated_gpu_set_duration(const char* name, double launch_s, double bytes_per_s);
/// Since the driver was started or the times were reset. REQUIRES: the stream exists.
CUresult emulated_gpu_times(CUstream stream, EmulatedTimes* times);
/// Kernels and copies that kept the processor longer than the time they were given: where there are
/// any, the times are void.
uint64_t emulated_gpu_late(void);
/// The longest time that the end of a kernel or copy came after it was due on the device's clock.
double emulated_gpu_lag_s(void);
/// All streams count anew, from their next kernels on.
void emulated_gpu_reset_times(void);

// ---- libcudart.so.13

/// Queues the task in the stream, or keeps it for the graph that the stream captures. The task is
/// the run time's from then on, also where it is refused.
CUresult emulated_gpu_launch(void* stream, const EmulatedTask* task, const EmulatedRange* ranges,
                             size_t count);
/// A kernel failed, and so does the context, for the reason that is given.
void emulated_gpu_device_failed(const char* why);

// ---- libemulated_operators.so

/// Shows each of PyTorch's operators that has a CUDA kernel: its name, what became of it (emulated,
/// own, refused or kept), and how often its emulated kernel was called.
void emulated_gpu_operators(void (*show)(const char* name, const char* fate, uint64_t calls));

}  // extern "C"
