// SPDX-License-Identifier: Apache-2.0
//
// The boxed kernel of an operator on sparse tensors: runs the operator's kernel for sparse tensors
// of the CPU, over aliases of indices and values, in the current stream. The caller always waits,
// because how many elements a result has depends on data; PyTorch's own kernels wait for the same
// number. Dense arguments are written where they are. A sparse one that is written gets new indices
// and values, as from PyTorch's own. Kernels live for ever. Any thread may call one.
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
