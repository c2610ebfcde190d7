// SPDX-License-Identifier: Apache-2.0
//
// The shim's state of one thread: the cache of operators and the list that gathers accesses. A
// thread makes it on first use and destroys it when it ends.
//
// The pointer to it is a thread-local of the initial-exec model, so that reading it is one
// instruction and not a call. It takes eight bytes of the room that the loader reserves for
// libraries loaded late.
#pragma once

#include "operator_cache.h"
#include "tensor_walk.h"

namespace tencache::shim {

struct ThreadState {
  OperatorCache operators;
  AccessList accesses;
};

namespace detail {

extern constinit thread_local ThreadState* thread_state_pointer
    __attribute__((tls_model("initial-exec")));

ThreadState& make_thread_state();

}  // namespace detail

inline ThreadState& thread_state() {
  ThreadState* state = detail::thread_state_pointer;
  return state != nullptr ? *state : detail::make_thread_state();
}

/// The calling thread's list, emptied. It is valid until the thread calls this function again: use
/// it to gather accesses and open the gate, not across an op.
inline AccessList& cleared_thread_accesses() {
  AccessList& accesses = thread_state().accesses;
  accesses.clear();
  return accesses;
}

}  // namespace tencache::shim
