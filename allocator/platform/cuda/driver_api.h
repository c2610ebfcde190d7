// SPDX-License-Identifier: Apache-2.0
//
// DriverApi: every function of the CUDA driver that the cuda backend calls, as one table of
// function pointers. Nothing links against libcuda: load_driver() opens it at run time, so
// everything else builds and runs on a machine without a GPU. The suites put a simulated driver
// into the same table (tests/support/cuda/simulated_driver.h). Only this folder of the core
// includes CUDA's header; it comes with the CUDA that pip installs beside PyTorch.
//
// The table is constant once it is filled; any thread may call through it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tencache {

// cuda.h defines some of these names as macros for versioned ones (cuStreamDestroy_v2). Members are
// declared and called by the plain name, which the macro changes alike in both places.
#define TENCACHE_CUDA_FUNCTIONS(X) \
  X(cuInit)                        \
  X(cuDriverGetVersion)            \
  X(cuGetErrorName)                \
  X(cuGetErrorString)              \
  X(cuDeviceGetCount)              \
  X(cuDeviceGet)                   \
  X(cuDeviceGetName)               \
  X(cuDeviceTotalMem)              \
  X(cuDeviceGetAttribute)          \
  X(cuDeviceGetPCIBusId)           \
  X(cuDevicePrimaryCtxRetain)      \
  X(cuDevicePrimaryCtxRelease)     \
  X(cuCtxGetCurrent)               \
  X(cuCtxSetCurrent)               \
  X(cuMemGetInfo)                  \
  X(cuMemGetAllocationGranularity) \
  X(cuMemAddressReserve)           \
  X(cuMemAddressFree)              \
  X(cuMemCreate)                   \
  X(cuMemRelease)                  \
  X(cuMemMap)                      \
  X(cuMemUnmap)                    \
  X(cuMemSetAccess)                \
  X(cuMemHostRegister)             \
  X(cuMemHostUnregister)           \
  X(cuMemHostGetDevicePointer)     \
  X(cuModuleLoadData)              \
  X(cuModuleUnload)                \
  X(cuModuleGetFunction)           \
  X(cuLaunchKernel)                \
  X(cuStreamCreateWithPriority)    \
  X(cuStreamDestroy)               \
  X(cuStreamQuery)                 \
  X(cuStreamSynchronize)           \
  X(cuStreamWaitEvent)             \
  X(cuStreamIsCapturing)           \
  X(cuStreamWaitValue64)           \
  X(cuStreamWriteValue64)          \
  X(cuLaunchHostFunc)              \
  X(cuEventCreate)                 \
  X(cuEventDestroy)                \
  X(cuEventRecord)                 \
  X(cuEventQuery)                  \
  X(cuEventSynchronize)            \
  X(cuEventElapsedTime)            \
  X(cuMemcpyHtoDAsync)             \
  X(cuMemcpyDtoHAsync)             \
  X(cuMemcpyDtoDAsync)             \
  X(cuMemsetD8Async)               \
  X(cuThreadExchangeStreamCaptureMode)

/// The version of the interface that is requested, CUDA 12.0: no function above has changed its
/// parameters since. An older driver is refused.
inline constexpr int kDriverApiVersion = 12000;

struct DriverApi {
// The macro's argument is a name and cannot stand in parentheses.
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define TENCACHE_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  TENCACHE_CUDA_FUNCTIONS(TENCACHE_CUDA_MEMBER)
#undef TENCACHE_CUDA_MEMBER
};

/// Whether a GPU of NVIDIA is in the machine, with or without a driver, as the folders /dev and
/// /sys below `root` tell.
bool has_nvidia_device(const std::string& root);

/// Opens libcuda.so.1 and fills the table; the library stays open. Returns kUnavailable when there
/// is no driver, when it is too old or lacks a function, when cuInit fails (no GPU), where the
/// driver must not be called, or when the C library takes no more fork or exit handlers; the
/// message says which, for `tencache doctor`. Starts watching forks and exit
/// (platform/cuda/driver_use.h).
Result<DriverApi> load_driver();

/// The Status of a call: OK for CUDA_SUCCESS, else "<what>: CUDA_ERROR_... (text)." The code is
/// kOutOfMemory when memory has run out, kInvalidArgument for a value that the driver refuses,
/// kUnavailable for an unsupported request and for a driver or GPU that is not there or cannot
/// work, and kIoError for the rest. CUDA_ERROR_DEINITIALIZED ends the use of the driver, which is
/// then not even asked for a text.
Status cuda_status(const DriverApi& driver, CUresult result, std::string_view what);

}  // namespace tencache
