// SPDX-License-Identifier: Apache-2.0
//
// EmulatedKernel turns a boxed call into a task, in one of two ways. try_queue makes the results
// first and queues the CPU kernel, which fills them. run_and_copy runs the CPU kernel, waits, and
// makes the results from its output. Arguments on the host are copied, since the program may change
// them before the task runs. Calls come on any thread of the program; tasks run on the streams'
// threads and touch nothing of a kernel but its signature.
#include "operators/emulated_kernel.h"

#include <c10/cuda/CUDAGuard.h>

#include "operators/results.h"
#include "operators/settings.h"

namespace emulated_gpu::operators {

namespace {

c10::DeviceIndex device_of(const std::vector<IValue>& arguments) {
  std::optional<c10::DeviceIndex> device;
  for (const IValue& value : arguments) {
    each_tensor(value, [&](const Tensor& t) {
      if (!device && t.is_cuda()) device = t.device().index();
    });
    if (device) return *device;
  }
  for (const IValue& value : arguments) {
    if (value.isDevice() && value.toDevice().is_cuda() && value.toDevice().has_index())
      return value.toDevice().index();
  }
  return c10::cuda::current_device();
}

// Gives an out= argument the shape of the result.
void fit(const IValue& argument, const IValue& result) {
  const std::vector<Tensor> outs = tensors_of(argument), likes = tensors_of(result);
  for (size_t i = 0; i < outs.size(); ++i) {
    if (outs[i].sizes() == likes[i].sizes()) continue;
    outs[i].resize_(likes[i].sizes());
    if (outs[i].strides() != likes[i].strides())
      outs[i].as_strided_(likes[i].sizes(), likes[i].strides());
  }
}

// The tensor that the CPU kernel writes in place of an out= argument. Some kernels resize it on the
// way, which no alias of device memory can do.
Tensor out_on_host(const Tensor& t) {
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
}

}  // namespace

void EmulatedKernel::operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  ++calls_;
  const size_t count = signature_.written.size();
  Call call = {op, {stack->end() - static_cast<int64_t>(count), stack->end()}, 0};
  call.device = device_of(call.arguments);
  check_arguments(call);
  const c10::cuda::CUDAGuard device_guard(call.device);
  const InsideOperator inside;
  if (settings().is_logging) fprintf(stderr, "emulated GPU: %s\n", signature_.name.c_str());
  std::vector<IValue> results;
  if (signature_.special.is_waited_for || !try_queue(&call, &results))
    results = run_and_copy(&call);
  torch::jit::drop(*stack, count);
  for (IValue& result : results) stack->push_back(std::move(result));
}

// CUDA's kernels check the devices of their arguments themselves; a CPU kernel cannot.
void EmulatedKernel::check_arguments(const Call& call) const {
  const auto is_fine = [&](const Tensor& t) {
    if (t.is_cuda()) return t.device().index() == call.device;
    return t.dim() == 0 || signature_.special.takes_host_tensors;
  };
  for (const IValue& value : call.arguments) {
    each_tensor(value, [&](const Tensor& t) {
      check_supported(signature_.name.c_str(), t);
      TORCH_CHECK(is_fine(t),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  at::Device(at::kCUDA, call.device), " and ", t.device(), "!");
    });
  }
}

// Returns false where the results cannot be made before the kernel ran.
bool EmulatedKernel::try_queue(Call* call, std::vector<IValue>* results) {
  std::shared_ptr<const Shapes> shapes;
  const bool is_list = !call->arguments.empty() && call->arguments[0].isTensorList();
  // The shapes of tensors written in place are known, but the Meta kernel checks the call at once.
  if (signature_.has_meta && !(signature_.is_in_place() && is_list)) {
    shapes = shapes_.find(call->op, call->arguments);
    if (shapes == nullptr) return false;
  } else if (!signature_.is_in_place()) {
    return false;
  }
  std::vector<Tensor> fresh;
  std::optional<std::vector<IValue>> made = make_results(*call, shapes.get(), &fresh);
  if (!made) return false;
  *results = std::move(*made);
  queue_with_results(call, fresh);
  return true;
}

// Returns nothing where a result is a number.
std::optional<std::vector<IValue>> EmulatedKernel::make_results(const Call& call,
                                                                const Shapes* shapes,
                                                                std::vector<Tensor>* fresh) const {
  for (size_t i = 0; i < signature_.returned.size(); ++i) {
    if (signature_.returned[i]) continue;
    const IValue& like = shapes->results[i];
    if (!like.isTensor() && !like.isTensorList()) return std::nullopt;
    each_tensor(like, [&](const Tensor& t) { check_supported(signature_.name.c_str(), t); });
  }
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (signature_.is_out[i]) fit(call.arguments[i], shapes->arguments[i]);
  }
  std::vector<IValue> results;
  for (size_t i = 0; i < signature_.returned.size(); ++i) {
    results.push_back(signature_.returned[i]
                          ? call.arguments[*signature_.returned[i]]
                          : map_tensors(shapes->results[i], [&](const Tensor& like) {
                              return fresh->emplace_back(device_tensor_like(like, call.device));
                            }));
  }
  return results;
}

void EmulatedKernel::queue_with_results(Call* call, const std::vector<Tensor>& fresh) {
  Stack arguments = host_arguments(call);
  std::vector<std::pair<Tensor, Tensor>> outs;  // a target, and what the CPU kernel writes
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!signature_.is_out[i]) continue;
    const std::vector<Tensor> made = tensors_of(arguments[i]);
    const std::vector<Tensor> given = tensors_of(call->arguments[i]);
    for (size_t k = 0; k < given.size(); ++k) {
      call->ranges.add(given[k], true);
      outs.emplace_back(alias_of(given[k]), made[k]);
    }
  }
  std::vector<Tensor> targets;
  for (const Tensor& t : fresh) {
    call->ranges.add(t, true);
    targets.push_back(alias_of(t));
  }
  queue(signature_.name.c_str(), call->ranges, call->device,
        [this, op = call->op, arguments = std::move(arguments), generator = call->generator,
         outs = std::move(outs), targets = std::move(targets)]() mutable {
          Stack host = arguments;  // a copy, because a graph runs it again
          run_on_host(op, generator, &host);
          for (const auto& [target, made] : outs) target.copy_(made);
          fill(host, &targets);
        });
}

std::vector<IValue> EmulatedKernel::run_and_copy(Call* call) {
  Stack host = host_arguments(call);
  const Stack arguments = host;
  run_and_wait(signature_.name.c_str(), call->ranges, call->device,
               [&] { run_on_host(call->op, call->generator, &host); });
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!signature_.is_out[i]) continue;
    fit(call->arguments[i], arguments[i]);
    const std::vector<Tensor> outs = tensors_of(call->arguments[i]),
                              made = tensors_of(arguments[i]);
    for (size_t k = 0; k < outs.size(); ++k)
      copy_to_device(signature_.name.c_str(), outs[k], made[k]);
  }
  std::vector<IValue> results;
  for (size_t i = 0; i < signature_.returned.size(); ++i) {
    results.push_back(signature_.returned[i]
                          ? call->arguments[*signature_.returned[i]]
                          : map_tensors(host[i], [&](const Tensor& made) {
                              return moved_to_device(signature_.name.c_str(), made, call->device);
                            }));
  }
  return results;
}

// Makes the arguments of the CPU kernel.
Stack EmulatedKernel::host_arguments(Call* call) const {
  OnePerTensor on_host([](const Tensor& t) { return t.is_cuda() ? alias_of(t) : host_copy_of(t); });
  Stack result;
  for (size_t i = 0; i < call->arguments.size(); ++i) {
    const IValue& value = call->arguments[i];
    if (i == signature_.generator) {
      call->generator = next_generator(value, call->device, &call->ranges);
      result.emplace_back();
    } else if (value.isDevice()) {
      result.emplace_back(at::Device(at::kCPU));
    } else if (signature_.is_out[i]) {
      result.push_back(map_tensors(value, out_on_host));
    } else {
      each_tensor(value, [&](const Tensor& t) {
        if (t.is_cuda()) call->ranges.add(t, signature_.written[i]);
      });
      result.push_back(map_tensors(value, on_host));
    }
  }
  return result;
}

// Runs the CPU kernel, which leaves the results where the arguments were.
void EmulatedKernel::run_on_host(const OperatorHandle& op, const MakeGenerator& generator,
                                 Stack* host) const {
  if (generator) (*host)[*signature_.generator] = generator();
  if (signature_.special.adapt != nullptr) signature_.special.adapt(host);
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), host);
}

void EmulatedKernel::fill(const Stack& host, std::vector<Tensor>* targets) const {
  const SpecialCase& special = signature_.special;
  const bool may_have_other_types = special.widens_statistics || special.adapt != nullptr;
  auto target = targets->begin();
  for (size_t i = 0; i < signature_.returned.size(); ++i) {
    if (signature_.returned[i]) continue;
    each_tensor(host[i], [&](const Tensor& made) {
      TORCH_CHECK(target != targets->end(), "more results than the Meta kernel said");
      if (special.may_leave_empty && made.numel() == 0) {
        target->zero_();  // PyTorch reads them in training only
      } else {
        TORCH_CHECK(made.sizes() == target->sizes(), "the Meta kernel said ", target->sizes(),
                    ", the CPU kernel gives ", made.sizes());
        TORCH_CHECK(may_have_other_types || made.scalar_type() == target->scalar_type(),
                    "the Meta kernel said ", target->scalar_type(), ", the CPU kernel gives ",
                    made.scalar_type());
        target->copy_(made);
      }
      ++target;
    });
  }
  TORCH_CHECK(target == targets->end(), "fewer results than the Meta kernel said");
}

}  // namespace emulated_gpu::operators
