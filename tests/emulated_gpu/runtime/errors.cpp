// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "driver_table.h"

namespace emulated_gpu::runtime {

namespace {

thread_local cudaError_t last = cudaSuccess;

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
// Errors that the emulation returns, and errors that torch or the suites provoke on a real GPU.
#define EMULATED_ERROR(name, text) \
  { name, #name, text }
constexpr ErrorText kErrorTexts[] = {
    EMULATED_ERROR(cudaSuccess, "no error"),
    EMULATED_ERROR(cudaErrorInvalidValue, "invalid argument"),
    EMULATED_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    EMULATED_ERROR(cudaErrorInitializationError, "initialization error"),
    EMULATED_ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    EMULATED_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    EMULATED_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    EMULATED_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    EMULATED_ERROR(cudaErrorStubLibrary, "CUDA driver is a stub library"),
    EMULATED_ERROR(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    EMULATED_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    EMULATED_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    EMULATED_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    EMULATED_ERROR(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    EMULATED_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    EMULATED_ERROR(cudaErrorNoKernelImageForDevice,
                   "no kernel image is available for execution on the device"),
    EMULATED_ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    EMULATED_ERROR(cudaErrorOperatingSystem,
                   "OS call failed or operation not supported on this OS"),
    EMULATED_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    EMULATED_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    EMULATED_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    EMULATED_ERROR(cudaErrorNotReady, "device not ready"),
    EMULATED_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    EMULATED_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    EMULATED_ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    EMULATED_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                   "part or all of the requested memory range is already mapped"),
    EMULATED_ERROR(cudaErrorHostMemoryNotRegistered,
                   "pointer does not correspond to a registered memory region"),
    EMULATED_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    EMULATED_ERROR(cudaErrorNotPermitted, "operation not permitted"),
    EMULATED_ERROR(cudaErrorNotSupported, "operation not supported"),
    EMULATED_ERROR(cudaErrorSystemDriverMismatch,
                   "system has unsupported display driver / cuda driver combination"),
    EMULATED_ERROR(cudaErrorStreamCaptureUnsupported,
                   "operation not permitted when stream is capturing"),
    EMULATED_ERROR(cudaErrorStreamCaptureInvalidated,
                   "operation failed due to a previous error during capture"),
    EMULATED_ERROR(cudaErrorStreamCaptureMerge,
                   "operation would result in a merge of separate capture sequences"),
    EMULATED_ERROR(cudaErrorStreamCaptureUnmatched,
                   "capture was not ended in the same stream as it began"),
    EMULATED_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    EMULATED_ERROR(cudaErrorStreamCaptureIsolation,
                   "dependency created on uncaptured work in another stream"),
    EMULATED_ERROR(cudaErrorStreamCaptureImplicit,
                   "operation would make the legacy stream depend on a capturing blocking stream"),
    EMULATED_ERROR(cudaErrorCapturedEvent,
                   "operation not permitted on an event last recorded in a capturing stream"),
    EMULATED_ERROR(cudaErrorStreamCaptureWrongThread,
                   "attempt to terminate a thread-local capture sequence from another thread"),
    EMULATED_ERROR(cudaErrorUnknown, "unknown error"),
};
#undef EMULATED_ERROR

constexpr ErrorText kUnknown = {cudaErrorUnknown, "unrecognized error code",
                                "unrecognized error code"};
const ErrorText& text_of(cudaError_t error) {
  for (const ErrorText& found : kErrorTexts) {
    if (found.error == error) return found;
  }
  return kUnknown;
}

// The text of cudaErrorLaunchFailure once the context has failed. It lives for ever.
std::atomic<const std::string*> failure_text = nullptr;

void say_refused(const std::string& what) {
  fprintf(stderr, "emulated GPU: %s is not emulated\n", what.c_str());
  if (getenv("EMULATED_GPU_ABORT") != nullptr) abort();
}

}  // namespace

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last = error;
  return error;
}
cudaError_t note(CUresult result) { return note(static_cast<cudaError_t>(result)); }

cudaError_t refuse(const std::string& what) {
  say_refused(what);
  return note(cudaErrorNotSupported);
}

cudaError_t refuse_kernel(const std::string& what) {
  say_refused(what);
  fail_device(what + " is not emulated");
  return note(cudaErrorLaunchFailure);
}

void fail_device(const std::string& why) {
  auto* text = new std::string(std::string(text_of(cudaErrorLaunchFailure).text) + ": " + why);
  const std::string* none = nullptr;
  if (!failure_text.compare_exchange_strong(none, text)) delete text;
  driver().fail(CUDA_ERROR_LAUNCH_FAILED);
}

}  // namespace emulated_gpu::runtime

using namespace emulated_gpu::runtime;

EMULATED_PUBLIC cudaError_t cudaPeekAtLastError() { return last; }
EMULATED_PUBLIC cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }
EMULATED_PUBLIC const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
EMULATED_PUBLIC const char* cudaGetErrorString(cudaError_t error) {
  const std::string* failed = error == cudaErrorLaunchFailure ? failure_text.load() : nullptr;
  return failed != nullptr ? failed->c_str() : text_of(error).text;
}
