// SPDX-License-Identifier: Apache-2.0
#include "tensor_walk.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "operator_table.h"

namespace tencache::shim {
namespace {

// Dense tensors have none of these keys. The others keep tensors inside, which the walk opens.
constexpr c10::DispatchKeySet kKeysWithInnerTensors({
    c10::DispatchKey::Quantized,
    c10::DispatchKey::Sparse,
    c10::DispatchKey::SparseCsr,
    c10::DispatchKey::NestedTensor,
});

constexpr tencache_arena kNowhere = {0, 0};
// install_tensor_walk() writes `arena` once, before any hook or kernel is installed. The arena
// grows when a GPU is opened, so read its base before its size (abi/tencache.h).
const tencache_arena* arena = &kNowhere;

inline void add_address(const void* address, uint32_t mode, AccessList& accesses) {
  const uintptr_t base = __atomic_load_n(&arena->base, __ATOMIC_ACQUIRE);
  const size_t bytes = __atomic_load_n(&arena->bytes, __ATOMIC_RELAXED);
  if (reinterpret_cast<uintptr_t>(address) - base < bytes) {
    accesses.add(address, mode);
  }
}

void add_inner(const at::Tensor& tensor, uint32_t mode, AccessList& accesses) {
  add_tensor(tensor.unsafeGetTensorImpl(), mode, accesses);
}

// Adds the memory of the tensors that this one keeps inside. We check the class by dynamic_cast,
// because a Python wrapper subclass may carry the layout or key of a class that it is not.
__attribute__((noinline)) void add_inner_tensors(const at::TensorImpl* tensor, uint32_t mode,
                                                 AccessList& accesses) {
  if (const auto* sparse = dynamic_cast<const at::SparseTensorImpl*>(tensor)) {
    add_inner(sparse->indices(), mode, accesses);
    add_inner(sparse->values(), mode, accesses);
  } else if (const auto* compressed = dynamic_cast<const at::SparseCsrTensorImpl*>(tensor)) {
    add_inner(compressed->compressed_indices(), mode, accesses);
    add_inner(compressed->plain_indices(), mode, accesses);
    add_inner(compressed->values(), mode, accesses);
  } else if (const auto* nested = dynamic_cast<const at::native::NestedTensorImpl*>(tensor)) {
    add_inner(nested->get_nested_sizes(), mode, accesses);
    add_inner(nested->get_nested_strides(), mode, accesses);
    add_inner(nested->get_storage_offsets(), mode, accesses);
  } else if (const auto* quantized = dynamic_cast<const at::QTensorImpl*>(tensor)) {
    // quantizer() is not const, although it only copies a pointer.
    const auto quantizer = const_cast<at::QTensorImpl*>(quantized)->quantizer();
    if (const auto* channels =
            dynamic_cast<const at::PerChannelAffineQuantizer*>(quantizer.get())) {
      add_inner(channels->scales(), mode, accesses);
      add_inner(channels->zero_points(), mode, accesses);
    }
  }
}

// Only lists are written or not according to another argument, so a single tensor need not ask.
uint32_t mode_in_call(const TensorArgument& argument, std::span<const c10::IValue> arguments) {
  const bool is_only_read =
      argument.written_with < arguments.size() && arguments[argument.written_with].isNone();
  return is_only_read ? uint32_t{TENCACHE_READ} : argument.mode;
}

}  // namespace

void install_tensor_walk() { arena = tencache_get_arena(); }

AccessList::~AccessList() { std::free(grown_); }

void AccessList::grow() {
  const uint32_t capacity = std::max(capacity_, kInlineCount) * 2;
  auto* larger = static_cast<tencache_access*>(std::malloc(capacity * sizeof(tencache_access)));
  if (larger == nullptr) throw std::bad_alloc();
  std::memcpy(larger, data(), count_ * sizeof(tencache_access));
  std::free(grown_);
  grown_ = larger;
  capacity_ = capacity;
}

const void* storage_address(const at::TensorImpl* tensor) {
  // We skip has_storage(): it is a virtual call and says no more than the null pointer does.
  c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  // Use the accessor without checks: data() throws for fake tensors, mutable_data() copies.
  return storage == nullptr ? nullptr : storage->_mutable_data_ptr_no_checks().get();
}

void add_tensor(const at::TensorImpl* tensor, uint32_t mode, AccessList& accesses) {
  add_address(storage_address(tensor), mode, accesses);
  if ((tensor->key_set().raw_repr() & kKeysWithInnerTensors.raw_repr()) != 0) [[unlikely]] {
    add_inner_tensors(tensor, mode, accesses);
  }
}

void add_value(const c10::IValue& value, uint32_t mode, AccessList& accesses) {
  if (value.isTensor()) {
    add_tensor(value.unsafeToTensorImpl(), mode, accesses);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      // A list holds elements of one type: if the first holds no tensors, none does.
      if (element.isInt() || element.isDouble() || element.isBool() || element.isString()) break;
      add_value(element, mode, accesses);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      add_value(element, mode, accesses);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      add_value(entry.key(), mode, accesses);
      add_value(entry.value(), mode, accesses);
    }
  }
}

void add_arguments(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                   AccessList& accesses) {
  if (info.walks_everything) [[unlikely]] {
    for (const c10::IValue& argument : arguments) {
      add_value(argument, TENCACHE_READ | TENCACHE_WRITE, accesses);
    }
    return;
  }
  for (const TensorArgument& argument : info.tensor_arguments) {
    if (argument.index >= arguments.size()) [[unlikely]] {
      return;
    }
    const c10::IValue& value = arguments[argument.index];
    if (value.isTensor()) [[likely]] {
      add_tensor(value.unsafeToTensorImpl(), argument.mode, accesses);
    } else if (!value.isNone()) {
      add_value(value, mode_in_call(argument, arguments), accesses);
    }
  }
}

}  // namespace tencache::shim
