// SPDX-License-Identifier: Apache-2.0
//
// How results are copied to the device. A sparse tensor comes out as PyTorch's own kernel leaves
// it: coalesced where the CPU's is, and of the same layout. Its parts are taken as they are, since
// the CPU kernel made them. Any thread may call.
#include "operators/results.h"

namespace emulated_gpu::operators {

void copy_to_device(const char* name, const Tensor& target, const Tensor& made) {
  Ranges ranges;
  ranges.add(target, true);
  queue(name, ranges, target.device().index(),
        [alias = alias_of(target), made] { alias.copy_(made); });
}

Tensor moved_to_device(const char* name, const Tensor& made, c10::DeviceIndex device) {
  check_supported(name, made);
  const auto moved = [&](const Tensor& part) { return moved_to_device(name, part, device); };
  const at::TensorOptions options = made.options().device(at::Device(at::kCUDA, device));
  switch (made.layout()) {
    case at::kStrided: {
      const Tensor target = device_tensor_like(made, device);
      copy_to_device(name, target, made);
      return target;
    }
    case at::kSparse:
      return at::_sparse_coo_tensor_unsafe(moved(made._indices()), moved(made._values()),
                                           made.sizes(), options, made.is_coalesced());
    case at::kSparseCsr:
    case at::kSparseBsr:
      return at::_sparse_compressed_tensor_unsafe(moved(made.crow_indices()),
                                                  moved(made.col_indices()), moved(made.values()),
                                                  made.sizes(), options);
    case at::kSparseCsc:
    case at::kSparseBsc:
      return at::_sparse_compressed_tensor_unsafe(moved(made.ccol_indices()),
                                                  moved(made.row_indices()), moved(made.values()),
                                                  made.sizes(), options);
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "emulated GPU: ", name, " gives a tensor of layout ",
                                  made.layout(), ", which the emulated GPU cannot hold");
  }
}

}  // namespace emulated_gpu::operators
