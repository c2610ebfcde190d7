// SPDX-License-Identifier: Apache-2.0
//
// The gate's knowledge of an operator, computed once from its schema: which arguments may hold
// tensors, how each is accessed, and what kind of operator it is.
//
// The hot path looks up the address of the name that a RecordFunction event carries. For an
// operator of the dispatcher that name lies in its registered schema, so the address identifies the
// operator while it stays registered. Each thread has a small direct-mapped cache from that address
// to the info, backed by a map under a lock. Events that are not operators (autograd nodes, custom
// Functions, "detach" of the autograd engine) carry names of their own. They are never cached,
// because their addresses come and go.
//
// Invariants: (1) an OperatorInfo is never destroyed; (2) when an operator is deregistered, its
// address leaves the map before its schema is destroyed, and a new version makes every thread's
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
  static constexpr uint32_t kAnything = UINT32_MAX;

  uint32_t index;
  uint32_t mode;  // TENCACHE_READ, TENCACHE_READ | TENCACHE_WRITE, or TENCACHE_NAME
  /// The index of an optional argument; a call that passes None for it only reads this list. With
  /// kAnything the mode always holds.
  uint32_t written_with = kAnything;
};

struct OperatorInfo {
  std::string name;           // with the overload: "aten::add_.Tensor"
  uint32_t number = 0;        // tencache_register_op(name)
  size_t argument_count = 0;  // SIZE_MAX if the schema leaves it open
  std::vector<TensorArgument> tensor_arguments;
  /// True if the schema does not say enough: then every argument counts as read and written.
  bool walks_everything = false;
  /// True if the operator's kernel only calls other operators (composite_operators.h), which pass
  /// the gate in its place.
  bool is_composite = false;
  /// True if a kernel of list_split.h opens the gate itself, chunk by chunk.
  bool is_split = false;
  /// True for a collective (namespace c10d or _c10d_functional): other threads may still work after
  /// it returned.
  bool is_collective = false;
  /// True if the operator returns a custom class, which may keep the operator's inputs, so these
  /// stay resident for ever. False once a kernel of collectives.h holds the inputs for as long as
  /// the returned Work needs them.
  std::atomic<bool> keeps_inputs{false};
};

/// Fills in what the schema says: everything but number, is_composite and is_split. Pure.
void describe_operator(const c10::FunctionSchema& schema, OperatorInfo* info);

/// Whether values of the type may hold tensors.
bool may_hold_tensors(const c10::Type& type);

/// The info for a registered operator's schema, made on the first call.
OperatorInfo& operator_info(const c10::FunctionSchema& schema);

/// Starts to follow deregistrations. Call once, before any event is looked up.
void install_operator_table();

/// For fork_guard.h: these take and release the table's lock around a fork.
void lock_operator_table();
void unlock_operator_table();

/// How many operators are known so far.
size_t operator_count();

namespace detail {

// The version of the table. The deregistration of an operator of the table raises it, under the
// table's lock. It starts at 1, so that a fresh cache matches no version.
extern std::atomic<uint64_t> operator_table_version;

const OperatorInfo* find_operator_slow(const at::RecordFunction& event, const char* name);

}  // namespace detail

/// The operator behind an event; nullptr if the event is not an operator of the dispatcher.
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
