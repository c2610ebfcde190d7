// SPDX-License-Identifier: Apache-2.0
// Stand-ins for device tensors: CPU tensors over the same memory, for the CPU's kernels, and Meta
// tensors of the same shape, for the shapes of results. An alias does not own the memory: the
// device tensor must live until the task ran, as with a real kernel. Ranges tell the driver which
// memory a task uses. All functions may be called on any thread; objects belong to one thread.
#pragma once
#include <ATen/ATen.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "emulated_gpu.h"

namespace tencache {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using Stack = torch::jit::Stack;

size_t span_bytes(const Tensor& t);
Tensor alias_of(const Tensor& t);
Tensor meta_of(const Tensor& t);

class Ranges {
 public:
  void add(const Tensor& t, bool is_written) {
    const size_t bytes = span_bytes(t);
    if (bytes != 0)
      all_.push_back({reinterpret_cast<uint64_t>(t.const_data_ptr()), bytes, is_written});
  }
  void add(const void* data, size_t bytes, bool is_written) {
    all_.push_back({reinterpret_cast<uint64_t>(data), bytes, is_written});
  }
  const std::vector<EmulatedRange>& all() const { return all_; }

 private:
  std::vector<EmulatedRange> all_;
};

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

}  // namespace tencache
