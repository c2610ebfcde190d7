// SPDX-License-Identifier: Apache-2.0
#include "thread_state.h"

namespace tencache::shim::detail {
namespace {

// The owner destroys the thread's state when the thread ends. It is separate from the pointer, so
// that reading the pointer needs no guard. An op that runs in a later thread-local destructor makes
// a new state, which is left to the process.
struct ThreadStateOwner {
  bool is_registered = false;
  ~ThreadStateOwner() {
    delete thread_state_pointer;
    thread_state_pointer = nullptr;
  }
};
thread_local ThreadStateOwner owner;

}  // namespace

// In a unity build, uses below get the model that this definition names.
constinit thread_local ThreadState* thread_state_pointer
    __attribute__((tls_model("initial-exec"))) = nullptr;

__attribute__((noinline, cold)) ThreadState& make_thread_state() {
  owner.is_registered = true;  // this use registers its destructor
  thread_state_pointer = new ThreadState;
  return *thread_state_pointer;
}

}  // namespace tencache::shim::detail
