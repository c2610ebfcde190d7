// SPDX-License-Identifier: Apache-2.0
//
// The names and texts of the driver's errors, as cuGetErrorName and cuGetErrorString give them, for
// the errors that the simulated driver returns or a test plans. They need no driver, since a real
// one explains its errors before cuInit too. The texts are constant. Threads: any.
#pragma once

#include <cuda.h>

namespace tencache {

/// For an unknown error, returns CUDA_ERROR_INVALID_VALUE and gives a null text.
CUresult simulated_error_name(CUresult result, const char** text);
CUresult simulated_error_string(CUresult result, const char** text);

}  // namespace tencache
