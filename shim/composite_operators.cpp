// SPDX-License-Identifier: Apache-2.0
#include "composite_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace tencache::shim {
namespace {

// These operators are registered as composite, but their kernels read or write bytes themselves. A
// name without an overload stands for all overloads.
constexpr std::array<std::string_view, 26> kByteTouchers = {
    // They read how many sequences of a packed batch each step has.
    "aten::lstm.data",
    "aten::gru.data",
    "aten::rnn_tanh.data",
    "aten::rnn_relu.data",
    "aten::_pack_padded_sequence_backward",
    "aten::_pad_packed_sequence",
    // They read lengths or indices from a tensor.
    "aten::ctc_loss.Tensor",
    "aten::tensor_split.tensor_indices_or_sections",
    // Without gradients max_pool1d calls its kernel directly; the fallback loops over addresses.
    "aten::max_pool1d",
    "aten::_grid_sampler_2d_cpu_fallback_backward",
    // They loop over accessors.
    "aten::_sobol_engine_draw",
    "aten::_sobol_engine_ff_",
    "aten::_sobol_engine_initialize_state_",
    "aten::_sobol_engine_scramble_",
    "aten::_rowwise_prune",
    // Quantisation, and packing and multiplication by FBGEMM.
    "aten::choose_qparams_optimized",
    "aten::_saturate_weight_to_fp16",
    "aten::fbgemm_linear_fp16_weight",
    "aten::fbgemm_linear_fp16_weight_fp32_activation",
    "aten::fbgemm_linear_int8_weight",
    "aten::fbgemm_linear_int8_weight_fp32_activation",
    "aten::fbgemm_linear_quantize_weight",
    "aten::fbgemm_pack_gemm_matrix_fp16",
    "aten::fbgemm_pack_quantized_matrix",
    "aten::_wrapped_linear_prepack",
    "aten::_wrapped_quantized_linear_prepacked",
};

// For dense tensors, the dispatcher prefers kernels at these keys to the composite one.
constexpr std::array kPreferredKeys = {
    c10::DispatchKey::CPU,
    c10::DispatchKey::CUDA,
    c10::DispatchKey::AutogradCPU,
    c10::DispatchKey::AutogradCUDA,
    c10::DispatchKey::CompositeExplicitAutograd,
    c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
};

bool is_listed(const c10::FunctionSchema& schema) {
  const std::string overload = schema.name() + "." + schema.overload_name();
  return std::any_of(kByteTouchers.begin(), kByteTouchers.end(), [&](std::string_view listed) {
    return listed == schema.name() || listed == overload;
  });
}

}  // namespace

bool only_calls_operators(const c10::FunctionSchema& schema) {
  if (!schema.name().starts_with("aten::") || is_listed(schema)) return false;
  const auto op = c10::Dispatcher::singleton().findOp(schema.operator_name());
  if (!op.has_value()) return false;
  return op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         std::none_of(kPreferredKeys.begin(), kPreferredKeys.end(),
                      [&](c10::DispatchKey key) { return op->hasKernelForDispatchKey(key); });
}

}  // namespace tencache::shim
