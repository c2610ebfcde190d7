// SPDX-License-Identifier: Apache-2.0
//
// The boxed kernel of an operator on sparse tensors. It runs the operator's sparse CPU kernel in
// the current stream, over aliases of indices and values. The caller always waits, because the
// number of elements of a result depends on data; PyTorch's own kernels wait for the same number.
// Dense arguments are written in place. A sparse one that is written gets new indices and values,
// as from PyTorch's own kernels. Kernels live for ever. Any thread may call one.
#pragma once
#include "operators/signature.h"

namespace emulated_gpu::operators {

class SparseKernel final : public c10::OperatorKernel {
 public:
  explicit SparseKernel(const OperatorHandle& op) : signature_(op) {}
  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack);

 private:
  void put_back(const Tensor& argument, const Tensor& host) const;

  const Signature signature_;
};

}  // namespace emulated_gpu::operators
