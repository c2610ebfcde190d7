// SPDX-License-Identifier: Apache-2.0
//
// SparseKernel runs a call with sparse tensors on the CPU. An argument of any other layout than
// dense and COO is refused with the operator's name. Calls come on any thread of the program. The
// CPU kernel runs on the stream's thread while the caller waits, so it may use the caller's stack.
#include "operators/sparse_kernel.h"

#include <ATen/native/SparseTensorUtils.h>
#include <c10/cuda/CUDAGuard.h>

#include "operators/results.h"
#include "operators/settings.h"

namespace emulated_gpu::operators {

namespace {

Tensor host_tensor(const Tensor& t) {
  if (!t.is_cuda()) return host_copy_of(t);
  if (t.layout() == at::kStrided) return alias_of(t);
  return at::_sparse_coo_tensor_unsafe(alias_of(t._indices()), alias_of(t._values()), t.sizes(),
                                       t.options().device(at::kCPU), t.is_coalesced());
}

void add_ranges(const Tensor& t, bool is_written, Ranges* ranges) {
  if (!t.is_cuda()) return;
  if (t.layout() == at::kStrided) {
    ranges->add(t, is_written);
    return;
  }
  ranges->add(t._indices(), is_written);
  ranges->add(t._values(), is_written);
}

}  // namespace

void SparseKernel::operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  const char* name = signature_.name.c_str();
  if (settings().is_logging) fprintf(stderr, "emulated GPU: %s of sparse tensors\n", name);
  const size_t count = signature_.written.size();
  const std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  std::optional<c10::DeviceIndex> device;
  Ranges ranges;
  OnePerTensor on_host(host_tensor);
  Stack host;
  for (size_t i = 0; i < count; ++i) {
    each_tensor(arguments[i], [&](const Tensor& t) {
      TORCH_CHECK_NOT_IMPLEMENTED(t.layout() == at::kStrided || t.layout() == at::kSparse,
                                  "emulated GPU: ", name, " has no stand-in for layout ",
                                  t.layout());
      if (t.is_cuda()) device = t.device().index();
      add_ranges(t, signature_.written[i], &ranges);
    });
    host.push_back(map_tensors(arguments[i], on_host));
  }
  const c10::cuda::CUDAGuard device_guard(device.value());
  const InsideOperator inside;
  const Stack host_arguments = host;
  run_and_wait(name, ranges, *device,
               [&] { op.redispatchBoxed(DispatchKeySet(DispatchKey::SparseCPU), &host); });
  for (size_t i = 0; i < count; ++i) {
    if (signature_.written[i]) put_back(arguments[i].toTensor(), host_arguments[i].toTensor());
  }
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < signature_.returned.size(); ++i) {
    stack->push_back(signature_.returned[i] ? arguments[*signature_.returned[i]]
                                            : map_tensors(host[i], [&](const Tensor& made) {
                                                return moved_to_device(name, made, *device);
                                              }));
  }
}

// Gives an argument the values that the CPU kernel wrote.
void SparseKernel::put_back(const Tensor& argument, const Tensor& host) const {
  const char* name = signature_.name.c_str();
  if (argument.layout() != at::kStrided) {
    const c10::DeviceIndex device = argument.device().index();
    at::sparse::get_sparse_impl(argument)->resize_(host.sparse_dim(), host.dense_dim(),
                                                   host.sizes());
    at::sparse::alias_into_sparse(argument, moved_to_device(name, host._indices(), device),
                                  moved_to_device(name, host._values(), device));
    argument._coalesced_(host.is_coalesced());
  } else if (argument.sizes() != host.sizes()) {
    argument.resize_(host.sizes());
    copy_to_device(name, argument, host);
  }
}

}  // namespace emulated_gpu::operators
