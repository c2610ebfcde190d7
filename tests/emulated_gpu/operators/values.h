// SPDX-License-Identifier: Apache-2.0
//
// Functions that visit the tensors in an argument or result of a boxed call. Such a value may be a
// tensor, a list of tensors or a list with gaps. each_tensor shows every tensor that is defined.
// map_tensors makes the same value of other tensors; a value without tensors stays as it is.
// OnePerTensor lets a tensor that is named twice become one other tensor, since kernels may tell by
// identity whether an argument is also their result. All of it belongs to the calling thread.
#pragma once
#include <ATen/ATen.h>
#include <torch/library.h>

#include <utility>
#include <vector>

namespace emulated_gpu::operators {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using Stack = torch::jit::Stack;

inline bool has(const std::optional<Tensor>& t) { return t.has_value() && t->defined(); }

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
      if (has(t)) use(*t);
    }
  }
}

template <typename Function>
IValue map_tensors(const IValue& value, Function&& change) {
  if (value.isTensor()) return value.toTensor().defined() ? change(value.toTensor()) : Tensor();
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector())
      list.push_back(t.defined() ? change(t) : Tensor());
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& t : value.toOptionalTensorVector())
      list.push_back(has(t) ? std::optional<Tensor>(change(*t)) : t);
    return list;
  }
  return value;
}

std::vector<Tensor> tensors_of(const IValue& value);

template <typename Make>
class OnePerTensor {
 public:
  explicit OnePerTensor(Make make) : make_(std::move(make)) {}
  Tensor operator()(const Tensor& t) {
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

}  // namespace emulated_gpu::operators
