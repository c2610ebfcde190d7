// SPDX-License-Identifier: Apache-2.0
//
// The exports of libcuda.so.1. Each name of the driver is a trampoline that jumps through its slot
// to the function of the table of names. So the dynamic linker's names and those of
// cuGetProcAddress are the same functions, whose types only cuda.h has. The slots are filled when
// the library is loaded. The functions of emulated_gpu.h follow.
#include "driver/functions.h"
#include "driver/kernel_durations.h"
#include "driver/name_table.h"
#include "driver/started_driver.h"
#include "driver/tasks.h"
#include "emulated_gpu.h"

// cuda.h's macros expand a name before the macros below see it. So the name has its version where
// cuda.h gives it one, and programs are linked against that.
#define EMULATED_STRING(name) #name
#define EMULATED_JOINED(first, second) first##second
#define EMULATED_SLOT(name) EMULATED_JOINED(slot_of_, name)

#define EMULATED_JUMP(name)                                                                 \
  ".text; .globl " name "; .type " name ",@function; " name ": endbr64; jmp *slot_of_" name \
  "(%rip); .size " name ", .-" name
#define EMULATED_TRAMPOLINE(name)                                             \
  extern "C" __attribute__((visibility("hidden"))) void* EMULATED_SLOT(name); \
  void* EMULATED_SLOT(name) = nullptr;                                        \
  asm(EMULATED_JUMP(EMULATED_STRING(name)));
TENCACHE_CUDA_FUNCTIONS(EMULATED_TRAMPOLINE)
EMULATED_OWN_FUNCTIONS(EMULATED_TRAMPOLINE)
EMULATED_ABSENT_FUNCTIONS(EMULATED_TRAMPOLINE)
#pragma push_macro("cuGetProcAddress")
#undef cuGetProcAddress
EMULATED_TRAMPOLINE(cuGetProcAddress)
#pragma pop_macro("cuGetProcAddress")
#undef EMULATED_TRAMPOLINE
#undef EMULATED_JUMP

namespace {

using namespace tencache;

__attribute__((constructor)) void fill_slots() {
#define EMULATED_FILL(name) EMULATED_SLOT(name) = find_driver_function(EMULATED_STRING(name));
  TENCACHE_CUDA_FUNCTIONS(EMULATED_FILL)
  EMULATED_OWN_FUNCTIONS(EMULATED_FILL)
  EMULATED_ABSENT_FUNCTIONS(EMULATED_FILL)
#undef EMULATED_FILL
  slot_of_cuGetProcAddress = find_driver_function("cuGetProcAddress");
}

double seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUfunction emulated_gpu_function(const char* name) { return emulated_function(name); }

int emulated_gpu_is_device(const void* address) {
  SimulatedDriver* const driver = started_driver();
  return driver != nullptr &&
         driver->parts().memory.place_of({address_of(address), 1, false}, kAnyDevice).is_reserved;
}

int emulated_gpu_device_of(const void* address) {
  SimulatedDriver* const driver = started_driver();
  if (driver == nullptr) return -1;
  const auto mapped = driver->parts().memory.mapped_at(address_of(address));
  return mapped.has_value() && !mapped->is_host ? mapped->device : -1;
}

int emulated_gpu_is_registered(const void* address) {
  SimulatedDriver* const driver = started_driver();
  if (driver == nullptr) return 0;
  const auto mapped = driver->parts().memory.mapped_at(address_of(address));
  return (mapped.has_value() && mapped->is_host) ||
         driver->parts().host.is_registered({address_of(address), 1}, kAnyDevice);
}

void emulated_gpu_fail(CUresult result) {
  if (SimulatedDriver* const driver = started_driver()) driver->fail_context(result);
}

void emulated_gpu_fail_call(const char* name, uint64_t nth, CUresult result) {
  if (SimulatedDriver* const driver = started_driver()) driver->fail(name, nth, result);
}

CUresult emulated_gpu_check_unsafe() {
  SimulatedDriver* const driver = started_driver();
  return driver != nullptr ? driver->parts().streams.captures().check_unsafe() : CUDA_SUCCESS;
}

CUresult emulated_gpu_wait_for_device() {
  SimulatedDriver* const driver = started_driver();
  return driver != nullptr ? driver->parts().streams.wait_for_device() : CUDA_SUCCESS;
}

void emulated_gpu_hold(CUstream stream) {
  if (SimulatedDriver* const driver = started_driver()) driver->hold(stream);
}

void emulated_gpu_hold_copies() {
  if (SimulatedDriver* const driver = started_driver()) driver->hold_copies();
}

void emulated_gpu_let_go() {
  if (SimulatedDriver* const driver = started_driver()) driver->let_go();
}

int emulated_gpu_is_stuck() {
  SimulatedDriver* const driver = started_driver();
  return driver != nullptr && driver->is_stuck() ? 1 : 0;
}

void emulated_gpu_set_duration(const char* name, double launch_s, double bytes_per_s) {
  kernel_durations().set(name, {launch_s, bytes_per_s});
}

CUresult emulated_gpu_times(CUstream stream, EmulatedTimes* times) {
  SimulatedDriver* const driver = started_driver();
  if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const StreamTimes found = driver->parts().streams.times(stream);
  *times = {found.kernels, seconds(found.busy_ns), seconds(found.stalled_ns),
            seconds(found.starved_ns)};
  return CUDA_SUCCESS;
}

uint64_t emulated_gpu_late() {
  SimulatedDriver* const driver = started_driver();
  return driver != nullptr ? driver->parts().streams.late() : 0;
}

double emulated_gpu_lag_s() {
  SimulatedDriver* const driver = started_driver();
  return driver != nullptr ? seconds(driver->parts().streams.lag_ns()) : 0;
}

void emulated_gpu_reset_times() {
  if (SimulatedDriver* const driver = started_driver()) driver->parts().streams.reset_times();
}

}  // extern "C"
#pragma GCC visibility pop
