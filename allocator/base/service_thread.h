// SPDX-License-Identifier: Apache-2.0
//
// How the library's own threads are started. They block every signal except SIGABRT and those that
// report a fault of the thread itself. A handler of the program that ran on one of them could wait
// for work that only this thread can do, and programs expect their signals on their own threads.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <thread>
#include <utility>

namespace tencache {

/// A scope that blocks the signals which the program handles on its own threads. Threads started
/// meanwhile inherit the mask. SIGABRT and the signals that report a fault of the running
/// instruction stay open.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, signal);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t saved_;
};

/// Starts a thread that does `work`. `name` has at most 15 characters; tools like top show it. The
/// thread's short waits end in time: by default, Linux lets each take 50 us longer. Throws
/// std::system_error where the process may have no more threads.
template <typename Work>
std::thread start_service_thread(const char* name, Work work) {
  const SignalsBlocked blocked;
  std::thread thread([work = std::move(work)]() mutable {
    prctl(PR_SET_TIMERSLACK, 1UL);
    work();
  });
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace tencache
