// SPDX-License-Identifier: Apache-2.0
//
// What the shim keeps per thread: the cache of operators and the list that accesses are gathered
// in. Made when a thread comes by for the first time, destroyed when the thread ends.
//
// The pointer to it is thread-local of the initial-exec model, so that reading it is one
// instruction and not a call: eight bytes of the room that the loader keeps for libraries loaded
// late.
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

/// The calling thread's list, empty. It holds until the thread's next call of this function, so it
/// serves to gather and to open the gate, not across an op.
inline AccessList& cleared_thread_accesses() {
  AccessList& accesses = thread_state().accesses;
  accesses.clear();
  return accesses;
}

}  // namespace tencache::shim
