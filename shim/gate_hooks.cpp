// SPDX-License-Identifier: Apache-2.0
#include "gate_hooks.h"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>

#include "abi/tencache.h"
#include "collectives.h"
#include "operator_table.h"
#include "tensor_walk.h"
#include "thread_state.h"

#ifndef NDEBUG
#error "Compile the shim with -DNDEBUG: libtorch's RecordFunction has another layout without it."
#endif

namespace tencache::shim {
namespace {

constexpr char kStepPrefix[] = "Optimizer.step#";

// install_gate_hooks() writes the handle once, then reads is_armed. arm_gate_hooks() writes
// is_armed, then reads the handle, on any thread.
std::atomic<at::CallbackHandle> gate_handle{at::INVALID_CALLBACK_HANDLE};
std::atomic<bool> is_armed{false};

// Whether the callbacks open and close the gate for the operator. A composite operator leaves the
// gate to the operators it calls. A split one opens the gate in its own kernel. If a split one is
// called with that kernel's key excluded, it never reaches the kernel and is an operator like any
// other. The exclusion is scoped, so the answer is the same at the operator's end.
bool passes_gate(const OperatorInfo& info) {
  if (info.is_composite) return false;
  return !info.is_split || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::BackendSelect);
}

// Keeps the inputs of an operator resident after it, because its result may go on using them.
__attribute__((noinline, cold)) void keep_inputs(const OperatorInfo& info,
                                                 const AccessList& accesses) {
  tencache_keep_resident(accesses.data(), accesses.count());
  if (!info.is_collective) return;
  // This is a collective that was registered after the others. From its next call on it has a
  // kernel that holds its inputs only while they are in use.
  try {
    install_collectives();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // PyTorch refused the kernel, so the inputs of this operator stay resident after each call.
  }
}

void open_gate(const OperatorInfo& info, const at::RecordFunction& event) {
  AccessList& accesses = cleared_thread_accesses();
  // A boxed call shows its whole stack, with the arguments as the last values: functorch keeps the
  // tensors' wrappers below them.
  const auto stack = event.inputs();
  const size_t count = std::min(stack.size(), info.argument_count);
  add_arguments(info, {stack.end() - count, count}, accesses);
  tencache_gate_open(info.number, accesses.data(), accesses.count());
  if (info.keeps_inputs.load(std::memory_order_relaxed)) [[unlikely]] {
    keep_inputs(info, accesses);
  }
}

std::unique_ptr<at::ObserverContext> on_operator_start(const at::RecordFunction& event) noexcept {
  const OperatorInfo* info = find_operator(event);
  if (info != nullptr && passes_gate(*info)) {
    open_gate(*info, event);
  }
  return nullptr;
}

void on_operator_end(const at::RecordFunction& event, at::ObserverContext*) noexcept {
  const OperatorInfo* info = find_operator(event);
  if (info != nullptr && passes_gate(*info)) {
    tencache_gate_close();
  }
}

std::unique_ptr<at::ObserverContext> on_user_scope(const at::RecordFunction& event) noexcept {
  if (std::strncmp(event.name(), kStepPrefix, sizeof(kStepPrefix) - 1) == 0) {
    // An optimizer that steps in the middle of a backward pass is one of many, one for each
    // parameter, and marks no step of the program.
    if (torch::autograd::get_current_graph_task_id() == -1) tencache_mark_step();
    release_completed_collectives();
  }
  return nullptr;
}

}  // namespace

void install_gate_hooks() {
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(on_operator_start, on_operator_end)
                                .needsInputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  at::disableCallback(handle);
  at::addGlobalCallback(
      at::RecordFunctionCallback(on_user_scope).scopes({at::RecordScope::USER_SCOPE}));
  gate_handle.store(handle);
  // The runtime may have armed before there was a handle to enable.
  if (is_armed.load()) at::reenableCallback(handle);
}

void arm_gate_hooks() {
  is_armed.store(true);
  const at::CallbackHandle handle = gate_handle.load();
  if (handle != at::INVALID_CALLBACK_HANDLE) at::reenableCallback(handle);
}

}  // namespace tencache::shim
