// SPDX-License-Identifier: Apache-2.0
// How CPU aliases and Meta twins of device tensors are made. Neither touches the memory itself.
// They are no inference tensors, since tasks write to them outside of that mode. Any thread may
// call.
#include "operators/aliases.h"

namespace tencache {

size_t span_bytes(const Tensor& t) {
  if (t.numel() == 0) return 0;
  size_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += static_cast<size_t>((t.size(i) - 1) * t.stride(i));
  return (last + 1) * t.itemsize();
}

Tensor alias_of(const Tensor& t) {
  const c10::InferenceMode is_no_inference_tensor(false);  // tasks write to it outside of that mode
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
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

}  // namespace tencache
