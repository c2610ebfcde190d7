// SPDX-License-Identifier: Apache-2.0
//
// How the stand-ins of device tensors are made. They preserve what a kernel can see beyond sizes
// and strides: the bits for conjugates and negatives, and whether a tensor was a number in the
// program's text, which decides the type of results. Any thread may call.
#include "operators/aliases.h"

#include <ATen/cuda/EmptyTensor.h>

namespace emulated_gpu::operators {

namespace {

void keep_number(const Tensor& from, const Tensor& to) {
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

}  // namespace

std::vector<Tensor> tensors_of(const IValue& value) {
  std::vector<Tensor> all;
  each_tensor(value, [&](const Tensor& t) { all.push_back(t); });
  return all;
}

void check_supported(const char* name, const Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(!t.is_quantized() && !t.is_nested(), "emulated GPU: ", name,
                              " has no stand-in for quantized and nested tensors");
}

size_t span_bytes(const Tensor& t) {
  if (t.numel() == 0) return 0;
  size_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += static_cast<size_t>((t.size(i) - 1) * t.stride(i));
  return (last + 1) * t.itemsize();
}

Tensor alias_of(const Tensor& t) {
  const c10::InferenceMode no_inference_tensor(false);
  void* data = t.numel() == 0 ? nullptr : const_cast<void*>(t.const_data_ptr());
  Tensor alias = at::for_blob(data, t.sizes())
                     .strides(t.strides())
                     .options(at::TensorOptions().dtype(t.dtype()).device(at::kCPU))
                     .target_device(at::kCPU)
                     .make_tensor();
  if (t.is_conj()) alias._set_conj(true);
  if (t.is_neg()) alias._set_neg(true);
  return alias;
}

Tensor meta_of(const Tensor& t) {
  Tensor meta =
      at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta).requires_grad(false));
  keep_number(t, meta);
  return meta;
}

Tensor host_copy_of(const Tensor& t) {
  const c10::InferenceMode no_inference_tensor(false);
  Tensor copy = t.clone();
  keep_number(t, copy);
  return copy;
}

Tensor device_tensor_like(const Tensor& t, c10::DeviceIndex device) {
  return Tensor(at::detail::empty_strided_cuda(t.sizes(), t.strides(), t.scalar_type(),
                                               at::Device(at::kCUDA, device)));
}

}  // namespace emulated_gpu::operators
