// SPDX-License-Identifier: Apache-2.0
//
// The simulated driver as a whole: this file puts the parts together and fills the table. Each
// function of the table finds the driver that is alive, asks whether the call may happen, and
// passes the call to the method of a part.
#include "support/cuda/simulated_driver.h"

#include <atomic>
#include <utility>

#include "base/check.h"
#include "platform/cuda/driver_use.h"
#include "support/cuda/simulated_driver_parts.h"

namespace tencache {

namespace {

using Parts = SimulatedDriver::Parts;

// The driver that is alive, or null. Stores release and loads acquire, so a thread that finds the
// driver finds it made.
std::atomic<Parts*> alive_driver = nullptr;

// The function of the table that calls a method of a part.
template <size_t kFunction, CallKind kKind, auto kPart, auto kMethod>
struct Entry;

template <size_t kFunction, CallKind kKind, auto kPart, typename Part, typename... Arguments,
          CUresult (Part::*kMethod)(Arguments...)>
struct Entry<kFunction, kKind, kPart, kMethod> {
  static CUresult call(Arguments... arguments) {
    Parts* const parts = alive_driver.load(std::memory_order_acquire);
    TENCACHE_CHECK(parts != nullptr, "a call of a simulated driver that is gone");
    parts->expect_streams(kCudaFunctionNames[kFunction], arguments...);
    const CUresult result = parts->enter(kFunction, kKind);
    if (result != CUDA_SUCCESS) return result;
    return ((parts->*kPart).*kMethod)(arguments...);
  }
};

#define TENCACHE_SIMULATE(name, kind, part, method)                          \
  static_assert(cuda_function_index(#name) < kCudaFunctionCount);            \
  api.name = Entry<cuda_function_index(#name), CallKind::kind, &Parts::part, \
                   &std::remove_reference_t<decltype(std::declval<Parts>().part)>::method>::call

void fill_devices(DriverApi& api) {
  TENCACHE_SIMULATE(cuInit, kQuery, devices, init);
  TENCACHE_SIMULATE(cuDriverGetVersion, kQuery, devices, driver_version);
  TENCACHE_SIMULATE(cuGetErrorName, kQuery, devices, error_name);
  TENCACHE_SIMULATE(cuGetErrorString, kQuery, devices, error_string);
  TENCACHE_SIMULATE(cuDeviceGetCount, kQuery, devices, count);
  TENCACHE_SIMULATE(cuDeviceGet, kQuery, devices, get);
  TENCACHE_SIMULATE(cuDeviceGetName, kQuery, devices, name);
  TENCACHE_SIMULATE(cuDeviceTotalMem, kQuery, devices, total_memory);
  TENCACHE_SIMULATE(cuDeviceGetAttribute, kQuery, devices, attribute);
  TENCACHE_SIMULATE(cuDeviceGetPCIBusId, kQuery, devices, pci_bus_id);
  TENCACHE_SIMULATE(cuDevicePrimaryCtxRetain, kMemory, devices, retain_primary);
  TENCACHE_SIMULATE(cuDevicePrimaryCtxRelease, kQuery, devices, release_primary);
  TENCACHE_SIMULATE(cuCtxGetCurrent, kQuery, devices, current);
  TENCACHE_SIMULATE(cuCtxSetCurrent, kQuery, devices, set_current);
  TENCACHE_SIMULATE(cuThreadExchangeStreamCaptureMode, kQuery, devices, exchange_capture_mode);
}

void fill_memory(DriverApi& api) {
  TENCACHE_SIMULATE(cuMemGetInfo, kContext, memory, info);
  TENCACHE_SIMULATE(cuMemGetAllocationGranularity, kMemory, memory, granularity);
  TENCACHE_SIMULATE(cuMemAddressReserve, kMemory, memory, reserve);
  TENCACHE_SIMULATE(cuMemAddressFree, kMemory, memory, free_reservation);
  TENCACHE_SIMULATE(cuMemCreate, kMemory, memory, create);
  TENCACHE_SIMULATE(cuMemRelease, kMemory, memory, release);
  TENCACHE_SIMULATE(cuMemMap, kMemory, memory, map);
  TENCACHE_SIMULATE(cuMemUnmap, kMemory, memory, unmap);
  TENCACHE_SIMULATE(cuMemSetAccess, kMemory, memory, set_access);
  TENCACHE_SIMULATE(cuMemHostRegister, kUnsafe, host, add);
  TENCACHE_SIMULATE(cuMemHostUnregister, kUnsafe, host, remove);
  TENCACHE_SIMULATE(cuMemHostGetDevicePointer, kContext, host, device_pointer);
}

void fill_modules(DriverApi& api) {
  TENCACHE_SIMULATE(cuModuleLoadData, kUnsafe, modules, load);
  TENCACHE_SIMULATE(cuModuleUnload, kUnsafe, modules, unload);
  TENCACHE_SIMULATE(cuModuleGetFunction, kContext, modules, find_function);
  TENCACHE_SIMULATE(cuLaunchKernel, kContext, modules, launch);
}

void fill_streams(DriverApi& api) {
  TENCACHE_SIMULATE(cuStreamCreateWithPriority, kContext, streams, create_stream);
  TENCACHE_SIMULATE(cuStreamDestroy, kContext, streams, destroy_stream);
  TENCACHE_SIMULATE(cuStreamQuery, kContext, streams, query_stream);
  TENCACHE_SIMULATE(cuStreamSynchronize, kContext, streams, synchronize_stream);
  TENCACHE_SIMULATE(cuStreamWaitEvent, kContext, streams, wait_event);
  TENCACHE_SIMULATE(cuStreamIsCapturing, kContext, streams, is_capturing);
  TENCACHE_SIMULATE(cuStreamWaitValue64, kContext, streams, wait_value);
  TENCACHE_SIMULATE(cuStreamWriteValue64, kContext, streams, write_value);
  TENCACHE_SIMULATE(cuLaunchHostFunc, kContext, streams, launch_host_function);
  TENCACHE_SIMULATE(cuEventCreate, kContext, streams, create_event);
  TENCACHE_SIMULATE(cuEventDestroy, kContext, streams, destroy_event);
  TENCACHE_SIMULATE(cuEventRecord, kContext, streams, record_event);
  TENCACHE_SIMULATE(cuEventQuery, kContext, streams, query_event);
  TENCACHE_SIMULATE(cuEventSynchronize, kContext, streams, synchronize_event);
  TENCACHE_SIMULATE(cuEventElapsedTime, kContext, streams, elapsed_time);
  TENCACHE_SIMULATE(cuMemcpyHtoDAsync, kContext, streams, copy_to_device);
  TENCACHE_SIMULATE(cuMemcpyDtoHAsync, kContext, streams, copy_to_host);
  TENCACHE_SIMULATE(cuMemcpyDtoDAsync, kContext, streams, copy_on_device);
  TENCACHE_SIMULATE(cuMemsetD8Async, kContext, streams, set_bytes);
}
#undef TENCACHE_SIMULATE

}  // namespace

SimulatedDriver::SimulatedDriver(const SimulatedDriverConfig& config)
    : parts_(std::make_unique<Parts>(config)), api_(functions()) {
#define TENCACHE_CHECK_FILLED(name) \
  TENCACHE_CHECK(api_.name != nullptr, "nothing simulates %s", #name);
  TENCACHE_CUDA_FUNCTIONS(TENCACHE_CHECK_FILLED)
#undef TENCACHE_CHECK_FILLED
  Parts* none = nullptr;
  TENCACHE_CHECK(
      alive_driver.compare_exchange_strong(none, parts_.get(), std::memory_order_acq_rel),
      "there is a simulated driver already");
  TENCACHE_CHECK(watch_driver_use().is_ok());
}

DriverApi SimulatedDriver::functions() {
  DriverApi api;
  fill_devices(api);
  fill_memory(api);
  fill_modules(api);
  fill_streams(api);
  return api;
}

SimulatedDriver::~SimulatedDriver() { alive_driver.store(nullptr, std::memory_order_release); }

CUresult SimulatedDriver::launch(CUstream stream, std::vector<DeviceRange> touches,
                                 std::function<void()> kernel, std::chrono::nanoseconds duration) {
  parts_->expect_streams("launch", stream);
  if (SimulatedStream::is_on_stream()) return CUDA_ERROR_NOT_PERMITTED;
  if (parts_->failure.is_set()) return parts_->failure.result();
  return parts_->streams.launch(
      stream, {std::move(touches), std::move(kernel), static_cast<uint64_t>(duration.count())});
}

void SimulatedDriver::add_kernel(std::string_view name, SimulatedKernel kernel) {
  parts_->modules.add_kernel(name, std::move(kernel));
}

void SimulatedDriver::fail(std::string_view name, uint64_t nth, CUresult result) {
  parts_->script.fail(name, nth, result);
}

void SimulatedDriver::set_latency(std::string_view name, std::chrono::nanoseconds latency) {
  parts_->script.set_latency(name, latency);
}

void SimulatedDriver::set_capturing(CUstream stream, bool is_capturing) {
  parts_->streams.set_capturing(stream, is_capturing);
}

void SimulatedDriver::hold(CUstream stream) {
  const CUresult held = parts_->streams.hold(stream);
  TENCACHE_CHECK(held == CUDA_SUCCESS, "there is no stream %p", static_cast<void*>(stream));
}

void SimulatedDriver::hold_copies(int64_t but) { parts_->streams.hold_copies(but); }

void SimulatedDriver::let_go() { parts_->streams.let_go(); }

bool SimulatedDriver::is_stuck() const { return parts_->streams.is_stuck(); }

void SimulatedDriver::fail_context(CUresult result) { parts_->failure.fail(result); }

uint64_t SimulatedDriver::calls(std::string_view name) const { return parts_->script.calls(name); }

size_t SimulatedDriver::unfinished(CUstream stream) const {
  return parts_->streams.unfinished(stream);
}

bool SimulatedDriver::is_idle() const { return parts_->streams.unfinished() == 0; }

void SimulatedDriver::wait_until_idle() {
  let_go();
  parts_->streams.wait_until_idle();
}

std::string SimulatedDriver::leaks() const {
  return parts_->memory.leaks() + parts_->host.leaks() + parts_->streams.leaks() +
         parts_->modules.leaks() + parts_->devices.leaks();
}

}  // namespace tencache
