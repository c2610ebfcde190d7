// SPDX-License-Identifier: Apache-2.0
//
// The tensor walk turns the boxed arguments of an op into the accesses that the gate is told about.
// It follows Tensor, Tensor[], Tensor?[], optionals, tuples, dicts and nested lists. It opens
// tensors that keep bytes outside their own storage: sparse COO, sparse compressed, strided nested
// and per-channel-quantised ones. Tensors without memory of their own (undefined, meta, functorch
// wrappers, wrapper subclasses, opaque mkldnn) add nothing: the op they are dispatched to announces
// whatever they stand for.
//
// Invariants: (1) a storage's address is read without materialising copy-on-write, without throwing
// and, for dense tensors, without touching a reference count; (2) an address outside the arena (on
// the cuda backend, of all open GPUs) is never stored; (3) an AccessList keeps its memory, so a
// thread allocates once and not per op.
//
// Threads: an AccessList belongs to one thread; the functions may run on any.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "abi/tencache.h"

namespace tencache::shim {

struct OperatorInfo;

/// What one op accesses.
class AccessList {
 public:
  AccessList() = default;
  ~AccessList();
  AccessList(const AccessList&) = delete;
  AccessList& operator=(const AccessList&) = delete;

  void clear() { count_ = 0; }
  void add(const void* address, uint32_t mode) {
    if (count_ == capacity_) [[unlikely]] {
      grow();
    }
    (grown_ != nullptr ? grown_ : inline_)[count_++] = {address, mode};
  }

  const tencache_access* data() const { return grown_ != nullptr ? grown_ : inline_; }
  uint32_t count() const { return count_; }

 private:
  static constexpr uint32_t kInlineCount = 48;

  void grow();

  uint32_t count_ = 0;
  uint32_t capacity_ = kInlineCount;
  tencache_access* grown_ = nullptr;
  tencache_access inline_[kInlineCount] = {};
};

/// Finds the arena. Call once, after tencache_start() and before anything walks.
void install_tensor_walk();

/// Adds the memory of one tensor.
void add_tensor(const at::TensorImpl* tensor, uint32_t mode, AccessList& accesses);

/// Adds the memory of all tensors inside a value of any type.
void add_value(const c10::IValue& value, uint32_t mode, AccessList& accesses);

/// Adds what an op with these arguments accesses, each as its schema says.
void add_arguments(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                   AccessList& accesses);

/// Returns the address of the tensor's storage, or nullptr if it has none. Materialises nothing.
const void* storage_address(const at::TensorImpl* tensor);

}  // namespace tencache::shim
