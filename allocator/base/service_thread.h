// SPDX-License-Identifier: Apache-2.0
//
// Starts the library's own threads. They block every signal: a handler of the program that ran
// there could wait for something that only this thread can bring about, and programs expect their
// signals on their own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tencache {

/// `name` has at most 15 characters; tools like top show it.
template <typename Work>
std::thread start_service_thread(const char* name, Work work) {
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::thread thread(std::move(work));
  pthread_setname_np(thread.native_handle(), name);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return thread;
}

}  // namespace tencache
