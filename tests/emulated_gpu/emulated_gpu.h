// SPDX-License-Identifier: Apache-2.0
//
// The interface between the libraries of the emulated GPU beyond CUDA's own. A kernel is a task,
// which declares the device memory it touches and runs on its stream's thread. The operators queue
// tasks by the run time's emulated_gpu_launch. The run time passes them to the driver by
// cuLaunchKernel, like a real kernel, so that a launch guard sees them too.
//
// Everything is plain C, so that each library has a C++ library of its own. Any thread may call the
// functions, except the threads of streams, which must not call CUDA.
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

/// One kernel: the work of a stream's thread when its turn comes.
struct EmulatedTask {
  const char* name;              // lives for ever
  void (*run)(void* state);      // must not call CUDA
  void (*destroy)(void* state);  // after it ran, or was refused, or dropped as the context failed
  void* state;
};

/// The block of parameters ("extra" of cuLaunchKernel) of a kernel that is a task. A reader of
/// launch parameters finds the addresses in it as in a real kernel's.
struct EmulatedParameters {
  EmulatedTask task;
  const EmulatedRange* ranges;  // copied by the launch
  uint64_t count;
  uint64_t addresses[1];  // `count` of them
};

/// How a stream spent its time, on the device's clock, from its first kernel to its last one.
struct EmulatedTimes {
  uint64_t kernels;
  double busy_s;     // with kernels
  double stalled_s;  // a kernel was queued, but had to wait for an event, a value or a copy
  double starved_s;  // no kernel was queued
};

// ---- libcuda.so.1

/// A handle for cuLaunchKernel, one for each name.
CUfunction emulated_gpu_function(const char* name);
/// Whether the address lies in a reservation of device addresses.
int emulated_gpu_is_device(const void* address);
/// The ordinal of the device whose memory is mapped there, or -1 where none is.
int emulated_gpu_device_of(const void* address);
/// Whether the address is in memory of the host that devices reach: registered, or mapped.
int emulated_gpu_is_registered(const void* address);
/// Fails the context for good.
void emulated_gpu_fail(CUresult result);
/// The nth call from now (1 is the next one) of the function of that name in
/// TENCACHE_CUDA_FUNCTIONS returns `result` and does nothing, whoever makes it.
void emulated_gpu_fail_call(const char* name, uint64_t nth, CUresult result);
/// Whether captures allow the calling thread what CUDA calls potentially unsafe, like cudaMalloc.
/// If not, they are invalid from now on.
CUresult emulated_gpu_check_unsafe(void);
/// Waits for the streams of the current device, whatever they capture.
CUresult emulated_gpu_wait_for_device(void);
/// Later work of the stream waits for emulated_gpu_let_go(); after two minutes of waiting the
/// process ends. REQUIRES: the stream exists.
void emulated_gpu_hold(CUstream stream);
/// No copy begins until emulated_gpu_let_go(), or for two minutes at most.
void emulated_gpu_hold_copies(void);
/// Lets all held work go on.
void emulated_gpu_let_go(void);
/// Whether all queued work waits for emulated_gpu_let_go(), some of it through an event.
int emulated_gpu_is_stuck(void);
/// Kernels of that name that are launched or captured from now on take this long, as by a line of
/// EMULATED_GPU_DURATIONS.
void emulated_gpu_set_duration(const char* name, double launch_s, double bytes_per_s);
/// Times since the driver was started or the times were reset. REQUIRES: the stream exists.
CUresult emulated_gpu_times(CUstream stream, EmulatedTimes* times);
/// The number of kernels and copies that took the processor longer than their time. If it is not 0,
/// the times are void.
uint64_t emulated_gpu_late(void);
/// The longest delay of a kernel's or copy's end on the device's clock.
double emulated_gpu_lag_s(void);
/// Restarts the counts of all streams at their next kernels.
void emulated_gpu_reset_times(void);

// ---- libcudart.so.13

/// Queues the task in the stream, or adds it to the graph that the stream captures. The run time
/// owns the task from then on, even if it is refused.
CUresult emulated_gpu_launch(void* stream, const EmulatedTask* task, const EmulatedRange* ranges,
                             size_t count);
/// Fails the context for the given reason, because a kernel failed.
void emulated_gpu_device_failed(const char* why);

// ---- libemulated_operators.so

/// Shows each of PyTorch's operators that has a CUDA kernel: its name, its fate (emulated, own,
/// refused or kept), and how often its emulated kernel was called.
void emulated_gpu_operators(void (*show)(const char* name, const char* fate, uint64_t calls));

}  // extern "C"
