// SPDX-License-Identifier: Apache-2.0
// How a boxed call becomes a task. A task holds no device tensor: whoever frees or moves one while
// a task uses it is found out by wrong bits or an illegal address. CPU arguments are copied, since
// the program may change them. EMULATED_GPU_LOG=1 logs each call. Any thread may call; tasks run on
// the streams' threads.
#include "operators/emulated_kernel.h"

#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <unordered_set>

#include "operators/shape_key.h"

namespace tencache {

namespace {

const bool kLog = getenv("EMULATED_GPU_LOG") != nullptr;

// Their shapes depend on data, or they give numbers.
const std::unordered_set<std::string> kWait = {"aten::nonzero",
                                               "aten::nonzero.out",
                                               "aten::masked_select",
                                               "aten::masked_select.out",
                                               "aten::equal",
                                               "aten::_unique2",
                                               "aten::_unique",
                                               "aten::unique_dim",
                                               "aten::unique_consecutive",
                                               "aten::unique_dim_consecutive",
                                               "aten::_embedding_bag",
                                               "aten::_embedding_bag_forward_only",
                                               "aten::repeat_interleave.Tensor",
                                               "aten::bincount",
                                               "aten::_cummax_helper"};

c10::DeviceIndex find_device(c10::ArrayRef<IValue> arguments) {
  c10::DeviceIndex device = -1;
  for (const IValue& value : arguments) {
    each_tensor(value, [&](const Tensor& t) {
      if (device < 0 && t.is_cuda()) device = t.device().index();
    });
    if (device >= 0) return device;
  }
  for (const IValue& value : arguments) {
    if (value.isDevice() && value.toDevice().is_cuda() && value.toDevice().has_index())
      return value.toDevice().index();
  }
  return c10::cuda::current_device();
}

}  // namespace

OpInfo* describe(const OperatorHandle& op, const std::string& name) {
  const c10::FunctionSchema& schema = op.schema();
  auto* info = new OpInfo;
  info->name = name;
  bool has_fresh = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    info->written.push_back(is_written);
    if (argument.is_out()) info->has_out = true;
    if (argument.name() == "generator") info->generator = static_cast<int>(i);
  }
  for (const c10::Argument& result : schema.returns()) {
    int same = -1;
    if (result.alias_info() != nullptr) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
        if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets())
          same = static_cast<int>(i);
      }
    }
    if (same < 0) has_fresh = true;
    info->returned.push_back(same);
  }
  info->mutates_only = !has_fresh && !info->has_out;
  info->has_meta = op.hasComputedKernelForDispatchKey(DispatchKey::Meta);
  info->waits = kWait.contains(name);
  info->is_layer_norm_backward = name == "aten::native_layer_norm_backward";
  return info;
}

void EmulatedKernel::operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(count), stack->end());
  const c10::DeviceIndex device = find_device(arguments);
  check_devices(arguments, device);
  const c10::cuda::CUDAGuard device_guard(device);
  const InsideGuard inside;
  if (kLog) fprintf(stderr, "emulated GPU: %s\n", info_.name.c_str());
  std::vector<IValue> results;
  bool is_done = false;
  if (!info_.waits) is_done = try_queue(op, arguments, device, &results);
  if (!is_done) wait_for(op, arguments, device, &results);
  torch::jit::drop(*stack, count);
  for (IValue& result : results) stack->push_back(std::move(result));
}

// CUDA's kernel keeps the statistics of bfloat16 as float, the CPU's as bfloat16.
void EmulatedKernel::narrow_statistics(Stack* host) {
  const at::ScalarType type = (*host)[1].toTensor().scalar_type();
  const IValue& weight = (*host)[5];
  if (weight.isTensor() && weight.toTensor().defined() && weight.toTensor().scalar_type() != type)
    return;
  for (const size_t place : {size_t{3}, size_t{4}})
    (*host)[place] = (*host)[place].toTensor().to(type);
}

// What CUDA's kernels check themselves.
void EmulatedKernel::check_devices(const std::vector<IValue>& arguments,
                                   c10::DeviceIndex device) const {
  const bool takes_host_tensors = info_.name.find("index") != std::string::npos;
  for (const IValue& value : arguments) {
    each_tensor(value, [&](const Tensor& t) {
      const bool is_fine =
          t.is_cuda() ? t.device().index() == device : t.dim() == 0 || takes_host_tensors;
      TORCH_CHECK(is_fine,
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  at::Device(at::kCUDA, device), " and ", t.device(), "!");
    });
  }
}
// The arguments for the CPU kernel; CPU tensors are copied, since the program may change them.
Stack EmulatedKernel::host_arguments(const std::vector<IValue>& arguments, c10::DeviceIndex device,
                                     Ranges* ranges, bool with_out, MakeGenerator* generator) {
  Mapped alias([](const Tensor& t) { return t.is_cuda() ? alias_of(t) : clone_of(t); });
  Stack result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const IValue& value = arguments[i];
    if (static_cast<int>(i) == info_.generator) {
      *generator = device_generator(value, device, ranges);
      result.emplace_back();
    } else if (value.isDevice()) {
      result.emplace_back(at::Device(at::kCPU));
    } else if (is_out(i) && !with_out) {
      result.push_back(map_tensors(
          value, [](const Tensor& t) { return at::empty({0}, t.options().device(at::kCPU)); }));
    } else {
      each_tensor(value, [&](const Tensor& t) {
        if (t.is_cuda()) ranges->add(t, info_.written[i]);
      });
      result.push_back(map_tensors(value, alias));
    }
  }
  return result;
}
Tensor EmulatedKernel::clone_of(const Tensor& t) {
  const c10::InferenceMode is_no_inference_tensor(false);
  Tensor clone = t.clone();
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    clone.unsafeGetTensorImpl()->set_wrapped_number(true);
  return clone;
}
bool EmulatedKernel::is_out(size_t argument) const {
  return info_.has_out && info_.written[argument];
}

std::shared_ptr<const OpInfo::Shapes> EmulatedKernel::shapes(const OperatorHandle& op,
                                                             const std::vector<IValue>& arguments) {
  ShapeKey key;
  bool is_known = true;
  for (const IValue& value : arguments) is_known = is_known && key.add(value);
  if (is_known) {
    const std::lock_guard lock(info_.shapes_mutex);
    const auto found = info_.shapes.find(key.text);
    if (found != info_.shapes.end()) return found->second;
  }
  auto made = std::make_shared<OpInfo::Shapes>();
  Mapped to_meta([](const Tensor& t) {
    // Python's numbers stay what they are: some Meta kernels are Python, which wants them so.
    return t.unsafeGetTensorImpl()->is_wrapped_number() && !t.is_cuda() ? t : meta_of(t);
  });
  for (const IValue& value : arguments) {
    made->arguments.push_back(value.isDevice()      ? IValue(at::Device(at::kMeta))
                              : value.isGenerator() ? IValue()
                                                    : map_tensors(value, to_meta));
  }
  made->results = made->arguments;
  try {
    op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &made->results);
  } catch (const std::exception& error) {
    if (kLog)
      fprintf(stderr, "emulated GPU: no shapes for %s: %s\n", info_.name.c_str(), error.what());
    // Either there is no such kernel, or the program's call is wrong: waiting tells which.
    return nullptr;
  }
  if (!info_.has_out) made->arguments.clear();
  if (is_known) {
    const std::lock_guard lock(info_.shapes_mutex);
    if (info_.shapes.size() > 10000) info_.shapes.clear();
    info_.shapes[key.text] = made;
  }
  return made;
}

bool EmulatedKernel::try_queue(const OperatorHandle& op, const std::vector<IValue>& arguments,
                               c10::DeviceIndex device, std::vector<IValue>* results) {
  std::shared_ptr<const OpInfo::Shapes> meta;
  const bool is_list = !arguments.empty() && arguments[0].isTensorList();
  if (!(info_.mutates_only && (is_list || !info_.has_meta))) {
    if (!info_.has_meta) return false;
    meta = shapes(op, arguments);
    if (meta == nullptr) return false;
  }
  if (info_.has_out) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_out(i)) fit(arguments[i], meta->arguments[i]);
    }
  }
  // Fresh results.
  std::vector<Tensor> fresh;
  const auto make = [&](const Tensor& like) -> Tensor {
    if (!like.defined()) return like;
    Tensor made(at::detail::empty_strided_cuda(like.sizes(), like.strides(), like.scalar_type(),
                                               at::Device(at::kCUDA, device)));
    fresh.push_back(made);
    return made;
  };
  for (size_t i = 0; i < info_.returned.size(); ++i) {
    if (info_.returned[i] >= 0) {
      results->push_back(arguments[static_cast<size_t>(info_.returned[i])]);
    } else if (meta->results[i].isTensor() || meta->results[i].isTensorList()) {
      results->push_back(map_tensors(meta->results[i], make));
    } else {
      results->clear();
      return false;  // a number
    }
  }
  Ranges ranges;
  MakeGenerator generator;
  const Stack made_host = host_arguments(arguments, device, &ranges, true, &generator);
  std::vector<Tensor> targets;
  for (const Tensor& t : fresh) {
    ranges.add(t, true);
    targets.push_back(alias_of(t));
  }
  queue(
      info_.name.c_str(), ranges,
      [op, made_host, generator, targets = std::move(targets), this]() mutable {
        Stack host = made_host;  // a graph runs it again
        if (generator) host[static_cast<size_t>(info_.generator)] = generator();
        if (info_.is_layer_norm_backward) narrow_statistics(&host);
        op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &host);
        size_t next = 0;
        for (size_t i = 0; i < info_.returned.size(); ++i) {
          if (info_.returned[i] >= 0) continue;
          each_tensor(host[i], [&](const Tensor& made) {
            TORCH_CHECK(next < targets.size(), "more results than the Meta kernel said");
            Tensor& target = targets[next++];
            if (made.numel() == 0 && target.numel() != 0) {
              target.zero_();  // what only CUDA's kernel gives (statistics in eval mode)
              return;
            }
            // Types differ where CUDA's kernel keeps more bits (statistics of bfloat16 norms).
            TORCH_CHECK(made.sizes() == target.sizes(), "the Meta kernel said ", target.sizes(),
                        ", the CPU kernel gives ", made.sizes());
            target.copy_(made);
          });
        }
      },
      device);
  return true;
}

// Gives an out= argument the shape of the result.
void EmulatedKernel::fit(const IValue& argument, const IValue& meta) {
  std::vector<Tensor> metas;
  each_tensor(meta, [&](const Tensor& t) { metas.push_back(t); });
  size_t next = 0;
  each_tensor(argument, [&](const Tensor& t) {
    const Tensor& like = metas[next++];
    if (t.sizes() != like.sizes()) {
      t.resize_(like.sizes());
      if (t.strides() != like.strides()) t.as_strided_(like.sizes(), like.strides());
    }
  });
}

void EmulatedKernel::wait_for(const OperatorHandle& op, const std::vector<IValue>& arguments,
                              c10::DeviceIndex device, std::vector<IValue>* results) {
  Ranges ranges;
  MakeGenerator generator;
  Stack host = host_arguments(arguments, device, &ranges, false, &generator);
  if (generator) host[static_cast<size_t>(info_.generator)] = generator();
  std::vector<IValue> outs;
  for (size_t i = 0; i < arguments.size(); ++i) outs.push_back(is_out(i) ? host[i] : IValue());
  std::exception_ptr error;
  queue(
      info_.name.c_str(), ranges,
      [&] {
        try {
          op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &host);
        } catch (...) {
          error = std::current_exception();
        }
      },
      device);
  C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(device).stream()));
  if (error) std::rethrow_exception(error);
  const auto to_device = [&](const Tensor& made) -> Tensor {
    if (!made.defined()) return made;
    Tensor target(at::detail::empty_strided_cuda(made.sizes(), made.strides(), made.scalar_type(),
                                                 at::Device(at::kCUDA, device)));
    put(target, made, device);
    return target;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_out(i)) continue;
    fit(arguments[i], outs[i]);
    std::vector<Tensor> made;
    each_tensor(outs[i], [&](const Tensor& t) { made.push_back(t); });
    size_t next = 0;
    each_tensor(arguments[i], [&](const Tensor& t) { put(t, made[next++], device); });
  }
  for (size_t i = 0; i < info_.returned.size(); ++i) {
    results->push_back(info_.returned[i] >= 0 ? arguments[static_cast<size_t>(info_.returned[i])]
                                              : map_tensors(host[i], to_device));
  }
}

void EmulatedKernel::put(const Tensor& target, const Tensor& made, c10::DeviceIndex device) {
  Ranges ranges;
  ranges.add(target, true);
  queue(
      info_.name.c_str(), ranges, [alias = alias_of(target), made]() mutable { alias.copy_(made); },
      device);
}

}  // namespace tencache
