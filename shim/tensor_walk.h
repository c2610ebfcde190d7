// SPDX-License-Identifier: Apache-2.0
//
// The tensor walk: from the boxed arguments of an op to the accesses that the gate is told about.
// It follows Tensor, Tensor[], Tensor?[], optionals, tuples, dicts and nested lists, and opens the
// tensors that keep bytes outside their own storage: sparse COO, sparse compressed, strided nested
// and per-channel-quantised ones. Tensors without memory of their own (undefined, meta, functorch
// wrappers, wrapper subclasses, opaque mkldnn) add nothing: whatever they stand for is announced by
// the op they are dispatched to.
//
// Invariants: (1) a storage's address is read without materialising copy-on-write, without throwing
// and, for dense tensors, without touching a reference count; (2) an address outside the arena (of
// all GPUs that are open, on the cuda backend) is never stored; (3) an AccessList keeps its memory,
// so that a thread allocates once and not per op.
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

/// Takes note of the arena. After tencache_start(), before anything walks; once.
void install_tensor_walk();

/// Adds the memory of one tensor.
void add_tensor(const at::TensorImpl* tensor, uint32_t mode, AccessList& accesses);

/// Adds the memory of all tensors inside the value, of whatever type it is.
void add_value(const c10::IValue& value, uint32_t mode, AccessList& accesses);

/// Adds what an op with these arguments accesses, each argument in the way its schema says.
void add_arguments(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                   AccessList& accesses);

/// The address of the tensor's storage, nullptr where it has none. Nothing is materialised.
const void* storage_address(const at::TensorImpl* tensor);

}  // namespace tencache::shim
