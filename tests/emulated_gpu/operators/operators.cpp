// The operators of the emulated GPU: for (nearly) every operator that has a CUDA kernel, a boxed
// kernel at the same dispatch key that queues the operator's CPU kernel in the current CUDA stream,
// over CPU tensors that alias the device memory. The program runs ahead of its "GPU" as with a real
// one: shapes of results come from the Meta kernel, memory of results from the CUDA allocator.
//
//   queued   results' shapes are known by the Meta kernel, or the operator only writes arguments
//   waited   there is no Meta kernel, or the shapes depend on data: queued, and waited for
//   own      copy_, native_dropout
//   kept     PyTorch's CUDA kernel stays: views, empty, set_, resize_, record_stream, item()
//   refused  there is no CPU kernel either: an error that names the operator
//
// A task holds no device tensor: who frees or moves one while a task uses it is found out, by wrong
// bits or by an illegal address. EMULATED_GPU_SYNC=1 waits after each operator. EMULATED_GPU_LOG=1 logs.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/copy_native.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "emulated_gpu.h"

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using at::Tensor;
using Stack = torch::jit::Stack;

const bool kSync = getenv("EMULATED_GPU_SYNC") != nullptr;
const bool kLog = getenv("EMULATED_GPU_LOG") != nullptr;

struct Counts {
  std::atomic<uint64_t> queued{0}, waited{0}, failed_meta{0}, made_meta{0};
};
struct OpInfo {
  std::string name;
  bool mutates_only = false;  // returns nothing but its own arguments, and none is out=
  bool has_out = false;
  bool has_meta = false;
  bool waits = false;         // always
  bool is_layer_norm_backward = false;
  int generator = -1;         // the argument's place
  std::vector<bool> written;  // by argument
  std::vector<int> returned;  // which argument each result is; -1: a fresh tensor
  Counts counts;
  // By what they follow from: the results of the Meta kernel, and its arguments where some are out=.
  struct Shapes {
    Stack results;
    std::vector<IValue> arguments;
  };
  std::mutex shapes_mutex;
  std::unordered_map<std::string, std::shared_ptr<const Shapes>> shapes;
};
std::vector<OpInfo*>& all_infos() {
  static auto* const infos = new std::vector<OpInfo*>;
  return *infos;
}

// No hooks of the program for what happens inside an operator.
struct InsideGuard {
  at::RecordFunctionGuard no_hooks{false};
  at::AutoDispatchBelowAutograd below;
};

size_t span_bytes(const Tensor& t) {
  if (t.numel() == 0) return 0;
  size_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += static_cast<size_t>((t.size(i) - 1) * t.stride(i));
  return (last + 1) * t.itemsize();
}

class Ranges {
 public:
  void add(const Tensor& t, bool is_written) {
    const size_t bytes = span_bytes(t);
    if (bytes != 0) all_.push_back({reinterpret_cast<uint64_t>(t.const_data_ptr()), bytes, is_written});
  }
  void add(const void* data, size_t bytes, bool is_written) {
    all_.push_back({reinterpret_cast<uint64_t>(data), bytes, is_written});
  }
  const std::vector<EmulatedRange>& all() const { return all_; }

 private:
  std::vector<EmulatedRange> all_;
};

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
  Tensor meta = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta).requires_grad(false));
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

// One TensorImpl becomes one other, however often it is named.
template <typename Make>
class Mapped {
 public:
  explicit Mapped(Make make) : make_(std::move(make)) {}
  Tensor operator()(const Tensor& t) {
    if (!t.defined()) return t;
    for (const auto& [from, to] : seen_) {
      if (from == t.unsafeGetTensorImpl()) return to;
    }
    seen_.emplace_back(t.unsafeGetTensorImpl(), make_(t));
    return seen_.back().second;
  }

 private:
  Make make_;
  std::vector<std::pair<c10::TensorImpl*, Tensor>> seen_;
};

template <typename Function>
IValue map_tensors(const IValue& value, Function&& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(change(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector()) {
      list.push_back(t.has_value() && t->defined() ? std::optional<Tensor>(change(*t)) : t);
    }
    return list;
  }
  return value;
}
template <typename Function>
void each_tensor(const IValue& value, Function&& use) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& t : value.toTensorVector()) {
      if (t.defined()) use(t);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector()) {
      if (t.has_value() && t->defined()) use(*t);
    }
  }
}

// What the shapes of results follow from, as text; false where there is a value that is not known.
struct ShapeKey {
  std::string text;
  template <typename T>
  void put(const T& value) { text.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void add(const Tensor& t) {
    if (!t.defined()) return put('u');
    put(t.is_cuda() ? 'c' : 'h');
    put(static_cast<int8_t>(t.scalar_type()));
    put(t.unsafeGetTensorImpl()->is_wrapped_number());
    put(static_cast<int8_t>(t.dim()));
    for (const int64_t size : t.sizes()) put(size);
    for (const int64_t stride : t.strides()) put(stride);
  }
  bool add(const IValue& value) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      put('[');
      for (const Tensor& t : value.toTensorVector()) add(t);
    } else if (value.isOptionalTensorList()) {
      put('(');
      for (const std::optional<Tensor>& t : value.toOptionalTensorVector()) add(t.has_value() ? *t : Tensor());
    } else if (value.isNone()) {
      put('n');
    } else if (value.isInt()) {
      put('i'), put(value.toInt());
    } else if (value.isDouble()) {
      put('d'), put(value.toDouble());
    } else if (value.isBool()) {
      put('b'), put(value.toBool());
    } else if (value.isIntList()) {
      put('I');
      for (const int64_t i : value.toIntVector()) put(i);
    } else if (value.isDoubleList()) {
      put('D');
      for (const double d : value.toDoubleVector()) put(d);
    } else if (value.isBoolList()) {
      put('B');
      for (const bool b : value.toBoolList()) put(b);
    } else if (value.isString()) {
      put('s'), text += value.toStringRef();
    } else if (value.isDevice() || value.isGenerator()) {
      put('v');
    } else if (value.isList()) {
      put('l');
      for (const IValue& item : value.toListRef()) {
        if (!add(item)) return false;
      }
    } else {
      return false;
    }
    put(';');
    return true;
  }
};

// Queues a callable as a kernel.
struct Work {
  std::string name;
  std::function<void()> run;
};
// How long tasks took, by name.
struct DeviceTime {
  uint64_t count = 0, total_ns = 0, max_ns = 0;
};
std::mutex device_times_mutex;
std::map<std::string, DeviceTime>& device_times() {
  static auto* const all = new std::map<std::string, DeviceTime>;
  return *all;
}
void queue(const char* name, const Ranges& ranges, std::function<void()> run, c10::DeviceIndex device) {
  auto* work = new Work{name, std::move(run)};
  const EmulatedTask task = {
      name,
      [](void* state) {
        auto* todo = static_cast<Work*>(state);
        try {
          const InsideGuard guard;
          const auto begin = std::chrono::steady_clock::now();
          todo->run();
          const uint64_t ns = static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count());
          const std::lock_guard lock(device_times_mutex);
          DeviceTime& time = device_times()[todo->name];
          ++time.count;
          time.total_ns += ns;
          time.max_ns = std::max(time.max_ns, ns);
        } catch (const std::exception& error) {
          fprintf(stderr, "emulated GPU: %s failed on the device: %s\n", todo->name.c_str(), error.what());
          emulated_gpu_device_failed();
        }
      },
      [](void* state) { delete static_cast<Work*>(state); }, work};
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  const CUresult result = emulated_gpu_launch(stream.stream(), &task, ranges.all().data(), ranges.all().size());
  C10_CUDA_CHECK(static_cast<cudaError_t>(result));
  if (kSync) stream.synchronize();
}

// Makes the CPU generator of one task when the task runs: while a CUDA graph is captured, seed and
// offset are in device memory, and another one with each replay.
using MakeGenerator = std::function<at::Generator()>;
MakeGenerator device_generator(const IValue& given, c10::DeviceIndex device, Ranges* ranges) {
  std::optional<at::Generator> generator;
  if (given.isGenerator()) generator = given.toGenerator();
  auto* cuda = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      generator, at::cuda::detail::getDefaultCUDAGenerator(device));
  at::PhiloxCudaState state;
  {
    const std::lock_guard<std::mutex> lock(cuda->mutex_);
    state = cuda->philox_cuda_state(4);
  }
  if (state.captured_) {
    ranges->add(state.seed_.ptr, sizeof(int64_t), false);
    ranges->add(state.offset_.ptr, sizeof(int64_t), false);
  }
  return [state] {
    const uint64_t first = state.captured_ ? static_cast<uint64_t>(*state.seed_.ptr) : state.seed_.val;
    const uint64_t second = state.captured_ ? static_cast<uint64_t>(*state.offset_.ptr) + state.offset_intragraph_
                                            : state.offset_.val;
    // The same seed and offset give the same numbers, as with Philox.
    uint64_t seed = first * 0x9E3779B97F4A7C15ull + second * 0xBF58476D1CE4E5B9ull;
    seed ^= seed >> 29;
    return at::detail::createCPUGenerator(seed);
  };
}

c10::DeviceIndex find_device(c10::ArrayRef<IValue> arguments) {
  c10::DeviceIndex device = -1;
  for (const IValue& value : arguments) {
    each_tensor(value, [&](const Tensor& t) {
      if (device < 0 && t.is_cuda()) device = t.device().index();
    });
    if (device >= 0) return device;
  }
  for (const IValue& value : arguments) {
    if (value.isDevice() && value.toDevice().is_cuda() && value.toDevice().has_index()) return value.toDevice().index();
  }
  return c10::cuda::current_device();
}

class Emulated final : public c10::OperatorKernel {
 public:
  explicit Emulated(OpInfo* info) : info_(*info) {}

  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
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

 private:
  // CUDA's kernel keeps the statistics of bfloat16 as float, the CPU's as bfloat16.
  static void narrow_statistics(Stack* host) {
    const at::ScalarType type = (*host)[1].toTensor().scalar_type();
    const IValue& weight = (*host)[5];
    if (weight.isTensor() && weight.toTensor().defined() && weight.toTensor().scalar_type() != type) return;
    for (const size_t place : {size_t{3}, size_t{4}}) (*host)[place] = (*host)[place].toTensor().to(type);
  }

  // What CUDA's kernels check themselves.
  void check_devices(const std::vector<IValue>& arguments, c10::DeviceIndex device) const {
    const bool takes_host_tensors = info_.name.find("index") != std::string::npos;
    for (const IValue& value : arguments) {
      each_tensor(value, [&](const Tensor& t) {
        const bool is_fine = t.is_cuda() ? t.device().index() == device : t.dim() == 0 || takes_host_tensors;
        TORCH_CHECK(is_fine, "Expected all tensors to be on the same device, but found at least two devices, ",
                    at::Device(at::kCUDA, device), " and ", t.device(), "!");
      });
    }
  }
  // The arguments for the CPU kernel; CPU tensors are copied, since the program may change them.
  Stack host_arguments(const std::vector<IValue>& arguments, c10::DeviceIndex device, Ranges* ranges,
                       bool with_out, MakeGenerator* generator) {
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
        result.push_back(map_tensors(value, [](const Tensor& t) { return at::empty({0}, t.options().device(at::kCPU)); }));
      } else {
        each_tensor(value, [&](const Tensor& t) {
          if (t.is_cuda()) ranges->add(t, info_.written[i]);
        });
        result.push_back(map_tensors(value, alias));
      }
    }
    return result;
  }
  static Tensor clone_of(const Tensor& t) {
    const c10::InferenceMode is_no_inference_tensor(false);
    Tensor clone = t.clone();
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) clone.unsafeGetTensorImpl()->set_wrapped_number(true);
    return clone;
  }
  bool is_out(size_t argument) const {
    return info_.has_out && info_.written[argument];
  }

  using Shapes = OpInfo::Shapes;
  std::shared_ptr<const Shapes> shapes(const OperatorHandle& op, const std::vector<IValue>& arguments) {
    ShapeKey key;
    bool is_known = true;
    for (const IValue& value : arguments) is_known = is_known && key.add(value);
    if (is_known) {
      const std::lock_guard lock(info_.shapes_mutex);
      const auto found = info_.shapes.find(key.text);
      if (found != info_.shapes.end()) return found->second;
    }
    auto made = std::make_shared<Shapes>();
    Mapped to_meta([](const Tensor& t) {
      // Python's numbers stay what they are: some Meta kernels are Python, which wants them so.
      return t.unsafeGetTensorImpl()->is_wrapped_number() && !t.is_cuda() ? t : meta_of(t);
    });
    for (const IValue& value : arguments) {
      made->arguments.push_back(value.isDevice() ? IValue(at::Device(at::kMeta))
                                : value.isGenerator() ? IValue()
                                                      : map_tensors(value, to_meta));
    }
    made->results = made->arguments;
    try {
      op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &made->results);
    } catch (const std::exception& error) {
      if (kLog) fprintf(stderr, "emulated GPU: no shapes for %s: %s\n", info_.name.c_str(), error.what());
      // Either there is no such kernel, or the program's call is wrong: waiting tells which.
      ++info_.counts.failed_meta;
      return nullptr;
    }
    ++info_.counts.made_meta;
    if (!info_.has_out) made->arguments.clear();
    if (is_known) {
      const std::lock_guard lock(info_.shapes_mutex);
      if (info_.shapes.size() > 10000) info_.shapes.clear();
      info_.shapes[key.text] = made;
    }
    return made;
  }

  bool try_queue(const OperatorHandle& op, const std::vector<IValue>& arguments, c10::DeviceIndex device,
                 std::vector<IValue>* results) {
    std::shared_ptr<const Shapes> meta;
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
    ++info_.counts.queued;
    queue(info_.name.c_str(), ranges,
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
  static void fit(const IValue& argument, const IValue& meta) {
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

  void wait_for(const OperatorHandle& op, const std::vector<IValue>& arguments, c10::DeviceIndex device,
                std::vector<IValue>* results) {
    ++info_.counts.waited;
    Ranges ranges;
    MakeGenerator generator;
    Stack host = host_arguments(arguments, device, &ranges, false, &generator);
    if (generator) host[static_cast<size_t>(info_.generator)] = generator();
    std::vector<IValue> outs;
    for (size_t i = 0; i < arguments.size(); ++i) outs.push_back(is_out(i) ? host[i] : IValue());
    std::exception_ptr error;
    queue(info_.name.c_str(), ranges,
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

  void put(const Tensor& target, const Tensor& made, c10::DeviceIndex device) {
    Ranges ranges;
    ranges.add(target, true);
    queue(info_.name.c_str(), ranges, [alias = alias_of(target), made]() mutable { alias.copy_(made); }, device);
  }

  OpInfo& info_;
};

// copy_: what PyTorch does by cudaMemcpyAsync it does here too; what it does by a kernel is a task.
Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  const bool is_on_one = self.is_cuda() && source.is_cuda() && self.device() == source.device();
  if (is_on_one && !self.is_same(source) && self.numel() != 0) {
    const bool is_plain = self.dtype() == source.dtype() && self.sizes() == source.sizes() &&
                          self.strides() == source.strides() && self.is_non_overlapping_and_dense() &&
                          self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
    if (!is_plain) {
      const c10::cuda::CUDAGuard device_guard(self.device().index());
      const InsideGuard inside;
      Tensor expanded = source.expand(self.sizes());
      Ranges ranges;
      ranges.add(self, true);
      ranges.add(expanded, false);
      queue("aten::copy_", ranges,
            [to = alias_of(self), from = alias_of(expanded)]() mutable { to.copy_(from); },
            self.device().index());
      return self;
    }
  }
  return at::native::copy_(self, source, non_blocking);
}

// Has no generator among its arguments.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
  const c10::cuda::CUDAGuard device_guard(input.device().index());
  const InsideGuard inside;
  const c10::DeviceIndex device = input.device().index();
  Tensor out(at::detail::empty_strided_cuda(input.sizes(), input.strides(), input.scalar_type(), input.device()));
  Tensor mask(at::detail::empty_strided_cuda(input.sizes(), input.strides(), at::kBool, input.device()));
  if (input.numel() == 0) return {out, mask};
  const bool is_training = !train.has_value() || *train;
  Ranges ranges;
  const MakeGenerator generator = device_generator(IValue(), device, &ranges);
  ranges.add(input, false);
  ranges.add(out, true);
  ranges.add(mask, true);
  queue("aten::native_dropout", ranges,
        [=, in = alias_of(input), out = alias_of(out), mask = alias_of(mask)]() mutable {
          if (!is_training) {
            out.copy_(in);
            mask.fill_(true);
            return;
          }
          mask.bernoulli_(1 - p, generator());
          out.copy_(in.mul(mask).mul_(p == 1 ? 0.0 : 1 / (1 - p)));
        },
        device);
  return {out, mask};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& igates, const Tensor& hgates, const Tensor& hx,
                                    const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh) {
  const InsideGuard inside;
  const bool has_bias = b_ih.has_value() && b_ih->defined();
  const std::vector<Tensor> i = (has_bias ? igates + *b_ih : igates).chunk(3, 1);
  const std::vector<Tensor> h = (has_bias ? hgates + *b_hh : hgates).chunk(3, 1);
  const Tensor r = (i[0] + h[0]).sigmoid(), z = (i[1] + h[1]).sigmoid();
  const Tensor n = (i[2] + r * h[2]).tanh();
  return {(hx - n) * z + n, at::cat({r, z, n, hx, h[2]}, 1)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad, const Tensor& workspace, bool has_bias) {
  const InsideGuard inside;
  const std::vector<Tensor> parts = workspace.chunk(5, 1);
  const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &hn = parts[4];
  const Tensor gn = grad * (1 - z) * (1 - n * n);
  const Tensor gz = grad * (hx - n) * z * (1 - z);
  const Tensor gr = gn * hn * r * (1 - r);
  const Tensor gi = at::cat({gr, gz, gn}, 1), gh = at::cat({gr, gz, gn * r}, 1);
  return {gi, gh, grad * z, has_bias ? gi.sum(0) : Tensor(), has_bias ? gh.sum(0) : Tensor()};
}

// CUDA's one has no CPU kernel.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x, at::IntArrayRef shape, const Tensor& rstd,
                                             const std::optional<Tensor>& weight, std::array<bool, 2> mask) {
  const InsideGuard inside;
  std::vector<int64_t> dims, others;
  for (int64_t i = 0; i < x.dim(); ++i) (i < x.dim() - static_cast<int64_t>(shape.size()) ? others : dims).push_back(i);
  const bool has_weight = weight.has_value() && weight->defined();
  const Tensor gx = has_weight ? grad * *weight : grad;
  const Tensor xhat = x * rstd;
  Tensor dx, dw;
  if (mask[0]) dx = ((gx - xhat * (gx * xhat).mean(dims, true)) * rstd).to(x.scalar_type());
  if (mask[1] && has_weight) dw = (others.empty() ? grad * xhat : (grad * xhat).sum(others)).to(weight->scalar_type());
  return {dx, dw};
}
std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, at::IntArrayRef shape, const std::optional<Tensor>& weight, std::optional<double> eps) {
  const InsideGuard inside;
  std::vector<int64_t> dims;
  for (int64_t i = x.dim() - static_cast<int64_t>(shape.size()); i < x.dim(); ++i) dims.push_back(i);
  const Tensor up = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const Tensor rstd = (up * up).mean(dims, true).add(eps.value_or(std::numeric_limits<float>::epsilon())).rsqrt();
  Tensor y = up * rstd;
  if (weight.has_value() && weight->defined()) y = y * *weight;
  return {y.to(x.scalar_type()), rstd};
}

void histc_kernel(const OperatorHandle& op, Stack* stack);

// What has no CPU kernel, in terms of operators that have one.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& igates, const Tensor& hgates, const Tensor& cx,
                                             const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh) {
  const InsideGuard inside;
  Tensor gates = igates + hgates;
  if (b_ih.has_value() && b_ih->defined()) gates = gates + *b_ih + *b_hh;
  const std::vector<Tensor> parts = gates.chunk(4, 1);
  const Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  const Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const InsideGuard inside;
  const auto has = [](const std::optional<Tensor>& t) { return t.has_value() && t->defined(); };
  const std::vector<Tensor> parts = workspace.chunk(4, 1);
  const Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const Tensor tcy = cy.tanh();
  Tensor gcx = has(grad_cy) ? *grad_cy : at::zeros_like(cy);
  Tensor go = at::zeros_like(cy);
  if (has(grad_hy)) {
    gcx = gcx + *grad_hy * o * (1 - tcy * tcy);
    go = *grad_hy * tcy * o * (1 - o);
  }
  const Tensor gates = at::cat({gcx * g * i * (1 - i), gcx * cx * f * (1 - f), gcx * i * (1 - g * g), go}, 1);
  return {gates, gcx * f, has_bias ? gates.sum(0) : Tensor()};
}

// CUDA's kernel takes whole numbers; the CPU's does not.
Tensor histc(const Tensor& self, int64_t bins, const c10::Scalar& min, const c10::Scalar& max) {
  const InsideGuard inside;
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", "");
  Stack stack = {at::isIntegralType(self.scalar_type(), true) ? self.to(at::kDouble) : self, bins, min, max};
  histc_kernel(op, &stack);
  const Tensor result = stack[0].toTensor();
  return result.to(self.scalar_type());
}

const std::unordered_set<std::string> kKept = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::resize_", "aten::set_", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::record_stream",
    "aten::_local_scalar_dense", "aten::is_set_to", "aten::_fused_sdp_choice", "aten::_efficientzerotensor",
    "aten::_use_cudnn_ctc_loss", "aten::_use_cudnn_ctc_loss.Tensor", "aten::is_pinned", "aten::_pin_memory",
    "aten::copy_", "aten::native_dropout", "aten::histc",
    "aten::_fused_rms_norm", "aten::_fused_rms_norm_backward", "aten::_thnn_fused_gru_cell", "aten::_thnn_fused_gru_cell_backward", "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_lstm_cell_backward_impl", "aten::_reshape_alias", "aten::as_strided"};
// Their shapes depend on data, or they give numbers.
const std::unordered_set<std::string> kWait = {
    "aten::nonzero", "aten::nonzero.out", "aten::masked_select", "aten::masked_select.out", "aten::equal",
    "aten::_unique2", "aten::_unique", "aten::unique_dim", "aten::unique_consecutive",
    "aten::unique_dim_consecutive", "aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::repeat_interleave.Tensor", "aten::bincount", "aten::_cummax_helper"};
// Composite, but their parts would choose a library of CUDA's by the device.
const std::vector<std::string> kAlso = {
    "aten::convolution", "aten::convolution_backward", "aten::_convolution", "aten::linalg_eig"};

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

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
        if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) same = static_cast<int>(i);
      }
    }
    if (same < 0) has_fresh = true;
    info->returned.push_back(same);
  }
  info->mutates_only = !has_fresh && !info->has_out;
  info->has_meta = op.hasComputedKernelForDispatchKey(DispatchKey::Meta);
  info->waits = kWait.contains(name);
  info->is_layer_norm_backward = name == "aten::native_layer_norm_backward";
  all_infos().push_back(info);
  return info;
}

void histc_kernel(const OperatorHandle& op, Stack* stack) {
  static Emulated kernel(describe(op, "aten::histc"));
  kernel(op, DispatchKeySet(DispatchKey::CUDA), stack);
}

struct Refused final : public c10::OperatorKernel {
  explicit Refused(std::string name) : name(std::move(name)) {}
  void operator()(const OperatorHandle&, DispatchKeySet, Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "emulated GPU: ", name, " has no CPU kernel, so the emulated GPU has none either");
  }
  std::string name;
};

class QuietWarnings : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

size_t overridden = 0, refused = 0, kept = 0;

void install() {
  QuietWarnings quiet;
  c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const auto implement = [&](const c10::OperatorName& name, const OperatorHandle& op) {
    const std::string full = c10::toString(name);
    const std::string local = full.substr(std::string("aten::").size());
    if (!op.hasComputedKernelForDispatchKey(DispatchKey::CPU)) {
      ++refused;
      library->impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refused>(full)));
      return;
    }
    ++overridden;
    library->impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Emulated>(describe(op, full))));
  };
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema() || !op->hasKernelForDispatchKey(DispatchKey::CUDA)) continue;
    const std::string full = c10::toString(name);
    if (kKept.contains(full) || is_view(op->schema())) {
      ++kept;
      continue;
    }
    implement(name, *op);
  }
  for (const std::string& full : kAlso) {
    const size_t dot = full.find('.');
    const c10::OperatorName name(full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1));
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && !op->hasKernelForDispatchKey(DispatchKey::CUDA) &&
        op->hasComputedKernelForDispatchKey(DispatchKey::CPU) &&
        !op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
      implement(name, *op);
    }
  }
  library->impl("copy_", torch::CppFunction(&copy));
  library->impl("histc", torch::CppFunction(&histc));
  library->impl("native_dropout", torch::CppFunction(&dropout));
  library->impl("_thnn_fused_lstm_cell", torch::CppFunction(&lstm_cell));
  library->impl("_fused_rms_norm", torch::CppFunction(&rms_norm));
  library->impl("_fused_rms_norm_backward", torch::CppFunction(&rms_norm_backward));
  library->impl("_thnn_fused_gru_cell", torch::CppFunction(&gru_cell));
  library->impl("_thnn_fused_gru_cell_backward", torch::CppFunction(&gru_cell_backward));
  library->impl("_thnn_fused_lstm_cell_backward_impl", torch::CppFunction(&lstm_cell_backward));
  if (kLog) fprintf(stderr, "emulated GPU: %zu operators emulated, %zu refused, %zu kept\n", overridden, refused, kept);
}

// Not a constructor function: that would run before the lists above exist.
const bool installed = (install(), true);

}  // namespace

// A kernel that no operator announces, as of an extension: data[i] *= factor in the current stream.
extern "C" __attribute__((visibility("default"))) int emulated_gpu_unannounced_scale(uint64_t address, uint64_t count, float factor) {
  struct State {
    float* data;
    uint64_t count;
    float factor;
  };
  const EmulatedTask task = {"emulated_gpu_unannounced_scale",
                        [](void* state) {
                          auto* todo = static_cast<State*>(state);
                          for (uint64_t i = 0; i < todo->count; ++i) todo->data[i] *= todo->factor;
                        },
                        [](void* state) { delete static_cast<State*>(state); },
                        new State{reinterpret_cast<float*>(address), count, factor}};
  const EmulatedRange range = {address, count * sizeof(float), 1};
  return emulated_gpu_launch(c10::cuda::getCurrentCUDAStream().stream(), &task, &range, 1);
}

// For reports: one line per operator, "name queued waited without-shapes".
extern "C" __attribute__((visibility("default"))) void emulated_gpu_report() {
  for (const OpInfo* info : all_infos()) {
    const uint64_t queued = info->counts.queued, waited = info->counts.waited;
    if (queued + waited == 0) continue;
    printf("%-50s queued %8lu waited %8lu shapes: made %8lu failed %8lu\n", info->name.c_str(), queued, waited,
           info->counts.made_meta.load(), info->counts.failed_meta.load());
  }
  for (const auto& [name, time] : device_times()) {
    printf("time %-45s %8lu tasks, %10.1f ms in all, %8.3f ms mean, %8.1f ms at most\n", name.c_str(), time.count,
           static_cast<double>(time.total_ns) / 1e6, static_cast<double>(time.total_ns) / 1e6 / static_cast<double>(time.count),
           static_cast<double>(time.max_ns) / 1e6);
  }
  printf("%zu operators emulated, %zu refused, %zu kept\n", overridden, refused, kept);
}
