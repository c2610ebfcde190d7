// SPDX-License-Identifier: Apache-2.0
//
// What the gate knows of an operator, computed once from its schema: which arguments may hold
// tensors and how each is accessed, and what kind of operator it is.
//
// The hot path asks by the address of the name that a RecordFunction event carries. For an operator
// of the dispatcher that is the name inside its registered schema, so the address is as good as an
// identity for as long as the operator stays registered. Each thread has a small direct-mapped
// cache from that address to the info; behind it stands a map under a lock. Events that are no
// operators (autograd nodes, custom Functions, "detach" of the autograd engine) carry a name of
// their own and are never cached, because their addresses come and go.
//
// Invariants: (1) an OperatorInfo is never destroyed; (2) when an operator is deregistered its
// address leaves the map before its schema is destroyed, and a version number makes every thread's
// cache forget; (3) for an event, the answer at its end is the answer at its start.
//
// Threads: any. The hot path is one atomic load, a hash and a compare.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/tencache.h"
#include "thread_state.h"

namespace tencache::shim {

/// One argument that may hold tensors.
struct TensorArgument {
  uint32_t index;
  uint32_t mode;  // TENCACHE_READ, TENCACHE_READ | TENCACHE_WRITE, or TENCACHE_NAME
};

struct OperatorInfo {
  std::string name;           // with the overload: "aten::add_.Tensor"
  uint32_t number = 0;        // tencache_register_op(name)
  size_t argument_count = 0;  // SIZE_MAX when the schema leaves it open
  std::vector<TensorArgument> tensor_arguments;
  /// The schema does not say enough: every argument counts as read and written.
  bool walks_everything = false;
  /// Its kernel only calls other operators (composite_operators.h): these pass the gate, not it.
  bool is_composite = false;
  /// A kernel of list_split.h opens the gate itself, chunk by chunk.
  bool is_split = false;
  /// A collective (namespace c10d or _c10d_functional): other threads may go on after it returned.
  bool is_collective = false;
  /// Returns a custom class, which may keep its inputs: these stay resident for ever. Cleared when
  /// a kernel of collectives.h holds the inputs for as long as the returned Work needs them.
  std::atomic<bool> keeps_inputs{false};
};

/// What a schema says, without number and without is_composite. Pure.
void describe_operator(const c10::FunctionSchema& schema, OperatorInfo* info);

/// Whether values of the type may hold tensors.
bool may_hold_tensors(const c10::Type& type);

/// The info of a registered operator's schema, made when it is asked for the first time.
OperatorInfo& operator_info(const c10::FunctionSchema& schema);

/// Starts to follow deregistrations. Before any event is looked up; once.
void install_operator_table();

/// For fork_guard.h: the table's lock, taken and given back around a fork.
void lock_operator_table();
void unlock_operator_table();

/// Operators known so far.
size_t operator_count();

namespace detail {

// Raised by each deregistration, under the table's lock. Starts at 1, so that a fresh cache is of
// none.
extern std::atomic<uint64_t> operator_table_version;

const OperatorInfo* find_operator_slow(const at::RecordFunction& event, const char* name);

}  // namespace detail

/// The operator behind an event; nullptr when the event is no operator of the dispatcher.
inline const OperatorInfo* find_operator(const at::RecordFunction& event) {
  const char* name = event.name();
  const uint64_t version = detail::operator_table_version.load(std::memory_order_acquire);
  const OperatorInfo* info = thread_state().operators.find(name, version);
  if (info != nullptr) [[likely]] {
    return info;
  }
  return detail::find_operator_slow(event, name);
}

}  // namespace tencache::shim
