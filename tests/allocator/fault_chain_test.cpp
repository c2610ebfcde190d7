// SPDX-License-Identifier: Apache-2.0
//
// The chain of fault handlers, in children of the test: whatever the program's handler asks of the
// kernel (a mask, its own stack, once only, nothing at all), and however it leaves, it gets with
// ours in front what it gets without.
#include "platform/fault_chain.h"

#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/sanitizers.h"
#include "platform/address_arena.h"

// The sanitizers' own handler would turn the deaths that are tested here into reports.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:handle_sigbus=0:use_sigaltstack=0";
}
extern "C" const char* __tsan_default_options() { return "handle_segv=0:handle_sigbus=0"; }

namespace tencache {
namespace {

bool filter_nothing(const siginfo_t&) { return false; }

/// A page that nobody may touch.
volatile char* forbidden_page() {
  static void* const page =
      mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return static_cast<volatile char*>(page);
}

void go_in_front() {
  if (!FaultChain::ensure_in_front(FaultSignal::kSegmentation, &filter_nothing).is_ok()) _exit(99);
  if (!FaultChain::ensure_in_front(FaultSignal::kBus, &filter_nothing).is_ok()) _exit(99);
}

void install(int number, void (*handler)(int, siginfo_t*, void*), int flags,
             std::initializer_list<int> mask = {}) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  for (const int masked : mask) sigaddset(&action.sa_mask, masked);
  if (sigaction(number, &action, nullptr) != 0) _exit(98);
}

/// A fixture for tests whose body ends its process, once with our handler in front and once without
/// it. The outcomes must be the same.
class FaultChainDeathTest : public ::testing::TestWithParam<bool> {
 protected:
  static void after_installing() {
    if (GetParam()) go_in_front();
  }
};
INSTANTIATE_TEST_SUITE_P(Chain, FaultChainDeathTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "OursInFront" : "Stock"; });

// ---- Handlers that leave by siglongjmp ------------------------------------------------------

sigjmp_buf g_way_out;
void leave(int, siginfo_t*, void*) { siglongjmp(g_way_out, 1); }

bool can_read(volatile char* address) {
  if (sigsetjmp(g_way_out, 1) != 0) return false;
  (void)*address;
  return true;
}

TEST_P(FaultChainDeathTest, HandlerThatLeavesIsCalledEachTime) {
  const auto body = [] {
    for (const int flags : {0, SA_NODEFER, SA_ONSTACK}) {
      install(SIGSEGV, &leave, flags);
      after_installing();
      for (int time = 0; time < 100; ++time) {
        if (can_read(forbidden_page())) _exit(1);
      }
    }
    _exit(42);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

TEST_P(FaultChainDeathTest, HandlerThatWasLeftCanStillDie) {
  const auto body = [] {
    install(SIGSEGV, &leave, 0);
    after_installing();
    if (can_read(forbidden_page())) _exit(1);
    signal(SIGSEGV, SIG_DFL);
    after_installing();
    *forbidden_page() = 1;
    _exit(2);
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGSEGV), "");
}

// ---- Masks and nesting ----------------------------------------------------------------------

constexpr const char* kOtherMask = "ThreadSanitizer calls handlers from one of its own, masked";

int g_depth = 0;
void fault_again(int, siginfo_t*, void*) {
  if (++g_depth == 3) _exit(42);
  *forbidden_page() = 1;
}

TEST_P(FaultChainDeathTest, FaultInAHandlerThatDefersKills) {
  const auto body = [] {
    install(SIGSEGV, &fault_again, 0);
    after_installing();
    *forbidden_page() = 1;
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_P(FaultChainDeathTest, FaultInAHandlerThatDoesNotDeferIsHandled) {
  if (kHasThreadSanitizer) GTEST_SKIP() << kOtherMask;
  const auto body = [] {
    install(SIGSEGV, &fault_again, SA_NODEFER);
    after_installing();
    *forbidden_page() = 1;
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

void tell_mask(int, siginfo_t*, void* context) {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  const auto* before = &static_cast<ucontext_t*>(context)->uc_sigmask;
  _exit(sigismember(&now, SIGALRM) + 2 * sigismember(&now, SIGSEGV) +
        4 * sigismember(before, SIGALRM) + 8 * sigismember(before, SIGUSR2) +
        16 * sigismember(&now, SIGUSR2));
}

TEST_P(FaultChainDeathTest, HandlerRunsWithItsMask) {
  if (kHasThreadSanitizer) GTEST_SKIP() << kOtherMask;
  const auto body = [](int flags) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    install(SIGSEGV, &tell_mask, flags, {SIGALRM});
    after_installing();
    *forbidden_page() = 1;
  };
  EXPECT_EXIT(body(0), ::testing::ExitedWithCode(1 + 2 + 8 + 16), "");
  EXPECT_EXIT(body(SA_NODEFER), ::testing::ExitedWithCode(1 + 8 + 16), "");
}

volatile char* g_repaired = nullptr;
void repair(int, siginfo_t*, void*) {
  mprotect(const_cast<char*>(g_repaired), kPageBytes, PROT_READ | PROT_WRITE);
  errno = 4711;
}

TEST_P(FaultChainDeathTest, HandlerThatRepairsGoesOnWithTheMaskOfBefore) {
  if (kHasThreadSanitizer) GTEST_SKIP() << kOtherMask;
  const auto body = [] {
    g_repaired = forbidden_page();
    install(SIGSEGV, &repair, 0, {SIGALRM});
    after_installing();
    errno = 1;
    *g_repaired = 1;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    const bool is_open = sigismember(&now, SIGALRM) == 0 && sigismember(&now, SIGSEGV) == 0;
    _exit(is_open && errno == 4711 ? 42 : 1);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

// ---- Other flags ----------------------------------------------------------------------------

alignas(64) std::array<char, 64 * 1024> g_stack;
void tell_stack(int, siginfo_t*, void*) {
  char here = 0;
  char* volatile address = &here;
  const bool is_other = address >= g_stack.data() && address < g_stack.data() + g_stack.size();
  _exit(is_other ? 42 : 43);
}

TEST_P(FaultChainDeathTest, HandlerRunsOnTheStackItAsksFor) {
  if (kHasSanitizer) GTEST_SKIP() << "the sanitizers move variables to another stack";
  const auto body = [](int flags) {
    stack_t stack = {};
    stack.ss_sp = g_stack.data();
    stack.ss_size = g_stack.size();
    sigaltstack(&stack, nullptr);
    install(SIGSEGV, &tell_stack, flags);
    after_installing();
    *forbidden_page() = 1;
  };
  EXPECT_EXIT(body(SA_ONSTACK), ::testing::ExitedWithCode(42), "");
  EXPECT_EXIT(body(0), ::testing::ExitedWithCode(43), "");
}

TEST_P(FaultChainDeathTest, HandlerForOnceServesOnce) {
  const auto body = [] {
    install(SIGSEGV, &leave, static_cast<int>(SA_RESETHAND));
    after_installing();
    if (can_read(forbidden_page())) _exit(1);
    if (write(STDERR_FILENO, "once\n", 5) < 0) _exit(1);
    if (can_read(forbidden_page())) _exit(1);
    _exit(2);
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGSEGV), "once");
}

// ---- Signals that were sent -----------------------------------------------------------------

TEST_P(FaultChainDeathTest, SentSignalThatIsIgnoredChangesNothing) {
  const auto body = [](int number) {
    signal(number, SIG_IGN);
    after_installing();
    kill(getpid(), number);
    raise(number);
    _exit(42);
  };
  EXPECT_EXIT(body(SIGSEGV), ::testing::ExitedWithCode(42), "");
  EXPECT_EXIT(body(SIGBUS), ::testing::ExitedWithCode(42), "");
}

TEST_P(FaultChainDeathTest, SentSignalWithoutHandlerKills) {
  const auto body = [](int number) {
    signal(number, SIG_DFL);
    after_installing();
    kill(getpid(), number);
    for (;;) pause();
  };
  EXPECT_EXIT(body(SIGSEGV), ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(body(SIGBUS), ::testing::KilledBySignal(SIGBUS), "");
}

TEST_P(FaultChainDeathTest, FaultThatIsIgnoredKills) {
  const auto body = [] {
    signal(SIGSEGV, SIG_IGN);
    after_installing();
    *forbidden_page() = 1;
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGSEGV), "");
}

void tell_sender(int, siginfo_t* info, void*) {
  _exit(info->si_code == SI_QUEUE && info->si_value.sival_int == 7 ? 42 : 43);
}

TEST_P(FaultChainDeathTest, HandlerLearnsWhoSentIt) {
  const auto body = [] {
    install(SIGSEGV, &tell_sender, 0);
    after_installing();
    sigval value = {};
    value.sival_int = 7;
    sigqueue(getpid(), SIGSEGV, value);
    for (;;) pause();
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

// ---- Newcomers that know of ours ------------------------------------------------------------

struct sigaction g_found = {};
int g_calls = 0;

void call_what_was_found(int number, siginfo_t* info, void* context) {
  if (++g_calls > 1) _exit(44);
  g_found.sa_sigaction(number, info, context);
  _exit(43);
}

TEST_P(FaultChainDeathTest, NewcomerThatCallsWhatItFoundReachesTheOneBefore) {
  const auto body = [] {
    install(
        SIGSEGV, [](int, siginfo_t*, void*) { _exit(42); }, 0);
    after_installing();
    sigaction(SIGSEGV, nullptr, &g_found);
    install(SIGSEGV, &call_what_was_found, SA_NODEFER);
    after_installing();
    *forbidden_page() = 1;
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

void restore_and_return(int number, siginfo_t*, void*) {
  if (++g_calls > 1) _exit(44);
  sigaction(number, &g_found, nullptr);
}

TEST_P(FaultChainDeathTest, NewcomerThatRestoresWhatItFoundReachesTheOneBefore) {
  const auto body = [] {
    install(
        SIGSEGV, [](int, siginfo_t*, void*) { _exit(42); }, 0);
    after_installing();
    sigaction(SIGSEGV, nullptr, &g_found);
    install(SIGSEGV, &restore_and_return, 0);
    after_installing();
    *forbidden_page() = 1;
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

TEST_P(FaultChainDeathTest, ManyNewcomersAreServed) {
  const auto body = [] {
    for (int number = 0; number < 1000; ++number) {
      // Another mask makes another action.
      install(SIGSEGV, &leave, 0, {1 + number % 31});
      after_installing();
      if (can_read(forbidden_page())) _exit(1);
    }
    _exit(42);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

// ---- Ours -----------------------------------------------------------------------------------

bool open_page(const siginfo_t& info) {
  if (info.si_addr != const_cast<char*>(forbidden_page())) return false;
  errno = 5;
  return mprotect(info.si_addr, kPageBytes, PROT_READ | PROT_WRITE) == 0;
}

TEST(FaultChainFilterDeathTest, WhatIsOursDoesNotReachTheProgram) {
  const auto body = [] {
    install(
        SIGSEGV, [](int, siginfo_t*, void*) { _exit(1); }, 0);
    if (!FaultChain::ensure_in_front(FaultSignal::kSegmentation, &open_page).is_ok()) _exit(99);
    errno = 4711;
    *forbidden_page() = 1;
    _exit(errno == 4711 ? 42 : 2);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace tencache
