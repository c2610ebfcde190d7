// SPDX-License-Identifier: Apache-2.0
//
// The table of the operators that have a kernel of our own. Each row makes the dispatcher's wrapper
// of a plain function, which checks the function's type against the operator's schema when it is
// installed. The table never changes. The thread that loads the library reads it.
#include "operators/own_kernels.h"

namespace emulated_gpu::operators {

namespace {

template <auto function>
torch::CppFunction wrapped() {
  return torch::CppFunction(TORCH_FN(function));
}

constexpr OwnKernel kOwnKernels[] = {
    {"_fused_rms_norm", wrapped<&rms_norm>},
    {"_fused_rms_norm_backward", wrapped<&rms_norm_backward>},
    {"_thnn_fused_gru_cell", wrapped<&gru_cell>},
    {"_thnn_fused_gru_cell_backward", wrapped<&gru_cell_backward>},
    {"_thnn_fused_lstm_cell", wrapped<&lstm_cell>},
    {"_thnn_fused_lstm_cell_backward_impl", wrapped<&lstm_cell_backward>},
    {"copy_", wrapped<&copy>},
    {"native_dropout", wrapped<&native_dropout>},
};

}  // namespace

std::span<const OwnKernel> own_kernels() { return kOwnKernels; }

}  // namespace emulated_gpu::operators
