// SPDX-License-Identifier: Apache-2.0
//
// The tables of operators with special treatment. A row is here because CUDA's kernel of that name
// differs from the CPU's, never to make a test pass. Rows for operators that a version of torch
// lacks are harmless. The tables never change.
#include "operators/special_cases.h"

#include <algorithm>

namespace emulated_gpu::operators {

namespace {

// CUDA's kernel holds the statistics of bfloat16 as float. The CPU's accepts that only where the
// weight is float too.
void narrow_statistics(Stack* arguments) {
  constexpr size_t kInput = 1, kMean = 3, kReciprocalDeviation = 4, kWeight = 5;
  const at::ScalarType type = (*arguments)[kInput].toTensor().scalar_type();
  const IValue& weight = (*arguments)[kWeight];
  if (weight.isTensor() && weight.toTensor().defined() && weight.toTensor().scalar_type() != type)
    return;
  for (const size_t place : {kMean, kReciprocalDeviation})
    (*arguments)[place] = (*arguments)[place].toTensor().to(type);
}

// CUDA's kernel takes whole numbers; the CPU's does not.
void widen_integers(Stack* arguments) {
  const Tensor self = arguments->front().toTensor();
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/true))
    arguments->front() = self.to(at::kDouble);
}

constexpr SpecialCase kSpecialCases[] = {
    {.name = "aten::_batch_norm_with_update", .widens_statistics = true},
    {.name = "aten::_compute_linear_combination.out", .adds_to_out = true},
    {.name = "aten::_cummax_helper", .is_waited_for = true},
    {.name = "aten::_embedding_bag", .is_waited_for = true},
    {.name = "aten::_embedding_bag_forward_only", .is_waited_for = true},
    {.name = "aten::_index_put_impl_", .takes_host_tensors = true},
    {.name = "aten::_native_batch_norm_legit", .may_leave_empty = true, .widens_statistics = true},
    {.name = "aten::_native_batch_norm_legit.no_stats", .widens_statistics = true},
    {.name = "aten::_to_sparse", .is_waited_for = true},
    {.name = "aten::_to_sparse.sparse_dim", .is_waited_for = true},
    {.name = "aten::_to_sparse_bsc", .is_waited_for = true},
    {.name = "aten::_to_sparse_bsr", .is_waited_for = true},
    {.name = "aten::_to_sparse_csc", .is_waited_for = true},
    {.name = "aten::_to_sparse_csr", .is_waited_for = true},
    {.name = "aten::_unique", .is_waited_for = true},
    {.name = "aten::_unique2", .is_waited_for = true},
    {.name = "aten::bincount", .is_waited_for = true},
    {.name = "aten::equal", .is_waited_for = true},
    {.name = "aten::histc", .adapt = widen_integers},
    {.name = "aten::index.Tensor", .takes_host_tensors = true},
    {.name = "aten::index.Tensor_out", .takes_host_tensors = true},
    {.name = "aten::masked_select", .is_waited_for = true},
    {.name = "aten::masked_select.out", .is_waited_for = true},
    {.name = "aten::native_batch_norm", .may_leave_empty = true, .widens_statistics = true},
    {.name = "aten::native_layer_norm", .widens_statistics = true},
    {.name = "aten::native_layer_norm_backward", .adapt = narrow_statistics},
    {.name = "aten::nonzero", .is_waited_for = true},
    {.name = "aten::nonzero.out", .is_waited_for = true},
    // The Meta kernels of these two give a plain tensor.
    {.name = "aten::quantize_per_tensor", .is_waited_for = true},
    {.name = "aten::quantize_per_tensor.tensor_qparams", .is_waited_for = true},
    {.name = "aten::repeat_interleave.Tensor", .is_waited_for = true},
    {.name = "aten::unique_consecutive", .is_waited_for = true},
    {.name = "aten::unique_dim", .is_waited_for = true},
    {.name = "aten::unique_dim_consecutive", .is_waited_for = true},
};

constexpr std::string_view kKept[] = {
    "aten::_efficientzerotensor",
    "aten::_embedding_bag_backward",
    "aten::_fused_sdp_choice",
    "aten::_local_scalar_dense",
    "aten::_pin_memory",
    "aten::_reshape_alias",
    "aten::_use_cudnn_ctc_loss",
    "aten::_use_cudnn_ctc_loss.Tensor",
    "aten::_use_miopen_ctc_loss",
    "aten::_use_miopen_ctc_loss.Tensor",
    "aten::as_strided",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::is_pinned",
    "aten::is_set_to",
    "aten::record_stream",
    "aten::resize_",
    "aten::set_",
    "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset",
    "aten::set_.source_Tensor",
};

constexpr std::string_view kComposite[] = {
    "aten::_convolution", "aten::convolution", "aten::convolution_backward",
    "aten::linalg_eig",   "aten::mode.values",
};

// Everything else at the key SparseCUDA is composed of operators on indices and values.
constexpr std::string_view kSparse[] = {
    "aten::_coalesce",
    "aten::_sparse_log_softmax",
    "aten::_sparse_log_softmax_backward_data",
    "aten::_sparse_mask_projection",
    "aten::_sparse_softmax",
    "aten::_sparse_softmax_backward_data",
    "aten::_sparse_sparse_matmul",
    "aten::_sparse_sum_backward",
    "aten::add.out",
    "aten::addmm",
    "aten::addmm.out",
    "aten::addmm_",
    "aten::bmm",
    "aten::bmm.out",
    "aten::hspmm",
    "aten::hspmm.out",
    "aten::index_select",
    "aten::mul.out",
    "aten::sparse_mask",
    "aten::sspaddmm.out",
};

}  // namespace

SpecialCase special_case_of(std::string_view name) {
  const auto* found = std::ranges::find(kSpecialCases, name, &SpecialCase::name);
  return found != std::end(kSpecialCases) ? *found : SpecialCase{};
}

bool is_kept(std::string_view name) { return std::ranges::find(kKept, name) != std::end(kKept); }

std::span<const std::string_view> composite_operators() { return kComposite; }

std::span<const std::string_view> sparse_operators() { return kSparse; }

}  // namespace emulated_gpu::operators
