// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_errors.h"

namespace tencache {
namespace {

struct ErrorText {
  CUresult result;
  const char* name;
  const char* text;
};

#define TENCACHE_CUDA_ERROR(name, text) \
  { name, #name, text }
constexpr ErrorText kErrorTexts[] = {
    TENCACHE_CUDA_ERROR(CUDA_SUCCESS, "no error"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU,
                        "no kernel image is available for execution on the device"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_ILLEGAL_STATE,
                        "the operation cannot be performed in the present state"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                        "part or all of the requested memory range is already mapped"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                        "pointer does not correspond to a registered memory region"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                        "system has unsupported display driver / cuda driver combination"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        "operation not permitted when stream is capturing"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                        "operation failed due to a previous error during capture"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                        "operation would result in a merge of separate capture sequences"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                        "capture was not ended in the same stream as it began"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                        "dependency created on uncaptured work in another stream"),
    TENCACHE_CUDA_ERROR(
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        "operation would make the legacy stream depend on a capturing blocking stream"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_CAPTURED_EVENT,
                        "operation not permitted on an event last recorded in a capturing stream"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                        "attempt to terminate a thread-local capture sequence from another thread"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef TENCACHE_CUDA_ERROR

CUresult find_text(CUresult result, const char** text, const char* ErrorText::*wanted) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = nullptr;
  for (const ErrorText& error : kErrorTexts) {
    if (error.result == result) *text = error.*wanted;
  }
  return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult simulated_error_name(CUresult result, const char** text) {
  return find_text(result, text, &ErrorText::name);
}

CUresult simulated_error_string(CUresult result, const char** text) {
  return find_text(result, text, &ErrorText::text);
}

}  // namespace tencache
