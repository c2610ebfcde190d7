// SPDX-License-Identifier: Apache-2.0
//
// copy_: PyTorch's calls of cudaMemcpyAsync are the same calls here; its copy kernels are tasks. So
// copies between host and device, between devices and of whole blocks reach the driver as they do
// on a real GPU, while a copy that changes type or strides on one device is a kernel there and
// here. Any thread may call.
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>

#include "operators/own_kernels.h"
#include "operators/tasks.h"

namespace emulated_gpu::operators {

namespace {

// The condition of PyTorch's own copy_ for a plain cudaMemcpyAsync on one device.
bool is_plain_copy(const Tensor& self, const Tensor& source) {
  return self.dtype() == source.dtype() && self.sizes() == source.sizes() &&
         self.strides() == source.strides() && self.is_non_overlapping_and_dense() &&
         self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
}

bool needs_kernel(const Tensor& self, const Tensor& source) {
  return self.is_cuda() && source.is_cuda() && self.device() == source.device() &&
         !self.is_same(source) && self.numel() != 0 && !is_plain_copy(self, source);
}

}  // namespace

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (!needs_kernel(self, source)) return at::native::copy_(self, source, non_blocking);
  const c10::cuda::CUDAGuard device_guard(self.device().index());
  const InsideOperator inside;
  const Tensor expanded = source.expand(self.sizes());
  Ranges ranges;
  ranges.add(self, true);
  ranges.add(expanded, false);
  queue("aten::copy_", ranges, self.device().index(),
        [to = alias_of(self), from = alias_of(expanded)]() mutable { to.copy_(from); });
  return self;
}

}  // namespace emulated_gpu::operators
