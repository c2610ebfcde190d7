// SPDX-License-Identifier: Apache-2.0
#include "platform/write_barrier.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <forward_list>
#include <mutex>

namespace tencache {
namespace {

// A window lasts for a hash and a remap: microseconds to a few milliseconds.
constexpr long kWaitNs = 20'000;
// One address cannot fault this often in a row once its window is over. If it does, our view of the
// mapping is wrong, and a crash is better than a hang.
constexpr uint32_t kRetriesMax = 1'000'000;

// Written once by configure() before any window opens; the handler reads them.
std::atomic<uintptr_t> g_arena_base{0};
std::atomic<uint64_t> g_arena_bytes{0};
std::atomic<FaultJudge> g_judge{nullptr};

// The handler that ours replaced: one of the actions that remember_previous() holds.
std::atomic<const struct sigaction*> g_previous{nullptr};
std::atomic<uint64_t> g_waited{0};
std::atomic<uintptr_t> g_last_retry_address{0};
std::atomic<uint32_t> g_retries{0};
// The thread that runs the previous handler. A second fault of that thread means that the previous
// handler called back into ours (it restored what it found), so the default action ends it.
std::atomic<pid_t> g_chaining_thread{0};

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

void restore_default_action() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGSEGV, &action, nullptr);
}

void chain(int signal_number, siginfo_t* info, void* context) {
  const struct sigaction* previous = g_previous.load(std::memory_order_acquire);
  const pid_t thread = this_thread();
  const bool nested = g_chaining_thread.load(std::memory_order_relaxed) == thread;
  const bool has_function =
      previous != nullptr && previous->sa_handler != SIG_DFL && previous->sa_handler != SIG_IGN;
  if (nested || !has_function) {
    restore_default_action();
    // A fault repeats by itself when the handler returns; a sent signal has to be sent again.
    if (info->si_code <= 0) raise(signal_number);
    return;
  }
  g_chaining_thread.store(thread, std::memory_order_relaxed);
  if ((previous->sa_flags & SA_SIGINFO) != 0) {
    previous->sa_sigaction(signal_number, info, context);
  } else {
    previous->sa_handler(signal_number);
  }
  g_chaining_thread.store(0, std::memory_order_relaxed);
}

bool retry_is_plausible(uintptr_t address) {
  if (g_last_retry_address.exchange(address, std::memory_order_relaxed) != address) {
    g_retries.store(0, std::memory_order_relaxed);
    return true;
  }
  return g_retries.fetch_add(1, std::memory_order_relaxed) < kRetriesMax;
}

void handle_fault(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const FaultJudge judge = g_judge.load(std::memory_order_acquire);
  const bool ours = info->si_code == SEGV_ACCERR && judge != nullptr &&
                    address - g_arena_base.load(std::memory_order_relaxed) <
                        g_arena_bytes.load(std::memory_order_relaxed);
  if (ours) {
    FaultVerdict verdict = judge(info->si_addr);
    if (verdict == FaultVerdict::kWait) {
      g_waited.fetch_add(1, std::memory_order_relaxed);
      g_retries.store(0, std::memory_order_relaxed);  // windows come and go: no standstill
    }
    while (verdict == FaultVerdict::kWait) {
      const struct timespec pause = {0, kWaitNs};
      nanosleep(&pause, nullptr);
      verdict = judge(info->si_addr);
    }
    if (verdict == FaultVerdict::kRetry && retry_is_plausible(address)) {
      errno = saved_errno;
      return;
    }
  }
  chain(signal_number, info, context);
  errno = saved_errno;
}

// Called with the lock of ensure_installed(). Earlier actions (a few) are never freed, because
// another thread's handler may be reading one.
void remember_previous(const struct sigaction& action) {
  static auto* const seen = new std::forward_list<struct sigaction>;
  g_previous.store(&seen->emplace_front(action), std::memory_order_release);
}

bool is_our_action(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &handle_fault;
}

}  // namespace

void WriteBarrier::configure(const void* arena_base, uint64_t arena_bytes, FaultJudge judge) {
  g_arena_base.store(reinterpret_cast<uintptr_t>(arena_base), std::memory_order_relaxed);
  g_arena_bytes.store(arena_bytes, std::memory_order_relaxed);
  g_judge.store(judge, std::memory_order_release);
}

Status WriteBarrier::ensure_installed() {
  struct sigaction current = {};
  if (sigaction(SIGSEGV, nullptr, &current) != 0) {
    return status_from_errno(errno, "reading the SIGSEGV handler");
  }
  if (is_our_action(current)) return Status::ok();
  static std::mutex install_mutex;
  std::lock_guard<std::mutex> lock(install_mutex);
  struct sigaction ours = {};
  ours.sa_sigaction = &handle_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  // Publish the newcomer as previous before ours is in front, so that no fault finds it missing.
  if (sigaction(SIGSEGV, nullptr, &current) != 0) {
    return status_from_errno(errno, "reading the SIGSEGV handler");
  }
  if (is_our_action(current)) return Status::ok();
  remember_previous(current);
  struct sigaction replaced = {};
  if (sigaction(SIGSEGV, &ours, &replaced) != 0) {
    return status_from_errno(errno, "installing the SIGSEGV handler");
  }
  // Another thread may have installed one between the two calls.
  if (replaced.sa_handler != current.sa_handler) remember_previous(replaced);
  return Status::ok();
}

uint64_t WriteBarrier::waited_count() { return g_waited.load(std::memory_order_relaxed); }

}  // namespace tencache
