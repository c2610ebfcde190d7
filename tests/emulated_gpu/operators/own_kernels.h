// SPDX-License-Identifier: Apache-2.0
// The operators with a kernel of their own: copy_, native_dropout, the LSTM and GRU cells, rms_norm
// and histc. Their CPU kernels are missing, or take other arguments than CUDA's. Any thread may
// call.
#pragma once
#include <torch/library.h>

namespace tencache {

void register_own_kernels(torch::Library* library);

}  // namespace tencache
