// SPDX-License-Identifier: Apache-2.0
//
// The write barrier: alone over a page with a judge of the test's, and in an engine whose protected
// windows are hit by a thread that writes without a gate. Foreign faults reach the handler that was
// there before; without one they kill the process.
#include "platform/write_barrier.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/racy_access.h"
#include "base/sanitizers.h"
#include "platform/access_barrier.h"
#include "platform/address_arena.h"
#include "support/child_process.h"
#include "support/eventually.h"
#include "support/test_engine.h"

// The sanitizers' own handler would turn the deaths that are tested here into reports.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __asan_default_options() { return "handle_segv=0"; }
extern "C" const char* __tsan_default_options() { return "handle_segv=0"; }

namespace tencache {
namespace {

std::atomic<FaultVerdict> g_verdict{FaultVerdict::kForeign};

FaultVerdict judge(const void*) { return g_verdict.load(); }

/// A page that nobody may touch, outside the addresses of the barrier. It is not null, because
/// UndefinedBehaviorSanitizer reports uses of null before the processor does.
char* forbidden_page() {
  static void* const page =
      mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return static_cast<char*>(page);
}

/// A fixture that owns a read-only page inside the addresses of the barrier.
class WriteBarrierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* mapped = mmap(nullptr, kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    page_ = static_cast<char*>(mapped);
    g_verdict.store(FaultVerdict::kForeign);
    WriteBarrier::configure(page_, kPageBytes, &judge);
    signal(SIGSEGV, SIG_DFL);
    ASSERT_TRUE(WriteBarrier::ensure_installed().is_ok());
  }
  void TearDown() override {
    signal(SIGSEGV, SIG_DFL);
    WriteBarrier::configure(nullptr, 0, nullptr);
    munmap(page_, kPageBytes);
  }
  void make_writable() { ASSERT_EQ(mprotect(page_, kPageBytes, PROT_READ | PROT_WRITE), 0); }

  char* page_ = nullptr;
};
using WriteBarrierDeathTest = WriteBarrierTest;

TEST_F(WriteBarrierTest, WriteWaitsForTheEndOfTheWindow) {
  g_verdict.store(FaultVerdict::kWait);
  const uint64_t waited_before = WriteBarrier::waited_count();
  std::atomic<bool> has_written{false};
  int errno_after = 0;
  std::jthread writer([&] {
    errno = 4711;
    *const_cast<volatile char*>(page_) = 5;
    errno_after = errno;
    has_written.store(true);
  });
  while (WriteBarrier::waited_count() == waited_before) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(has_written.load());
  {
    const RacyReads reads;
    EXPECT_EQ(page_[0], 0);
  }
  make_writable();
  g_verdict.store(FaultVerdict::kRetry);
  writer.join();
  EXPECT_EQ(page_[0], 5);
  EXPECT_EQ(errno_after, 4711);
  EXPECT_EQ(WriteBarrier::waited_count(), waited_before + 1);
}

TEST_F(WriteBarrierTest, WriteThatComesLateIsRepeatedWithoutWaiting) {
  // The judge finds the window over when it is asked; the page becomes writable a little later.
  g_verdict.store(FaultVerdict::kRetry);
  const uint64_t waited_before = WriteBarrier::waited_count();
  std::jthread opener([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    make_writable();
  });
  *const_cast<volatile char*>(page_) = 6;
  EXPECT_EQ(page_[0], 6);
  EXPECT_EQ(WriteBarrier::waited_count(), waited_before);
}

TEST_F(WriteBarrierDeathTest, ForeignFaultInsideTheArenaKills) {
  EXPECT_EXIT(*const_cast<volatile char*>(page_) = 1, ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(WriteBarrierDeathTest, RetryThatNeverSucceedsKills) {
  g_verdict.store(FaultVerdict::kRetry);
  EXPECT_EXIT(*const_cast<volatile char*>(page_) = 1, ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(WriteBarrierDeathTest, FaultElsewhereKills) {
  volatile char* nowhere = forbidden_page();
  g_verdict.store(FaultVerdict::kRetry);
  EXPECT_EXIT(*nowhere = 1, ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(WriteBarrierDeathTest, SentSignalKills) {
  EXPECT_EXIT(kill(getpid(), SIGSEGV); pause(), ::testing::KilledBySignal(SIGSEGV), "");
}

void exit_with_info(int, siginfo_t* info, void*) {
  _exit(info->si_addr == forbidden_page() ? 42 : 43);
}
void exit_plainly(int) { _exit(44); }

void install(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ASSERT_EQ(sigaction(SIGSEGV, &action, nullptr), 0);
}

TEST_F(WriteBarrierDeathTest, NewcomerIsChainedAndOursIsInFrontAgain) {
  install(&exit_with_info);
  ASSERT_TRUE(WriteBarrier::ensure_installed().is_ok());
  struct sigaction front = {};
  ASSERT_EQ(sigaction(SIGSEGV, nullptr, &front), 0);
  EXPECT_NE(front.sa_sigaction, &exit_with_info);
  volatile char* nowhere = forbidden_page();
  EXPECT_EXIT(*nowhere = 1, ::testing::ExitedWithCode(42), "");
  EXPECT_EXIT(*const_cast<volatile char*>(page_) = 1, ::testing::ExitedWithCode(43), "");
  // Our handler still waits for the end of a window.
  g_verdict.store(FaultVerdict::kRetry);
  make_writable();
  *const_cast<volatile char*>(page_) = 7;
  EXPECT_EQ(page_[0], 7);
}

TEST_F(WriteBarrierDeathTest, NewcomerWithAPlainHandlerIsChained) {
  signal(SIGSEGV, &exit_plainly);
  ASSERT_TRUE(WriteBarrier::ensure_installed().is_ok());
  volatile char* nowhere = forbidden_page();
  EXPECT_EXIT(*nowhere = 1, ::testing::ExitedWithCode(44), "");
}

TEST_F(WriteBarrierDeathTest, IgnoredSignalStillKillsWhenItIsAFault) {
  signal(SIGSEGV, SIG_IGN);
  ASSERT_TRUE(WriteBarrier::ensure_installed().is_ok());
  volatile char* nowhere = forbidden_page();
  EXPECT_EXIT(*nowhere = 1, ::testing::KilledBySignal(SIGSEGV), "");
}

// faulthandler restores the handler it found, which may be ours, and raises the signal again.
struct sigaction g_found = {};
void restore_and_raise(int number, siginfo_t*, void*) {
  static const char kText[] = "newcomer was here\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(1);
  sigaction(SIGSEGV, &g_found, nullptr);
  raise(number);
}

TEST_F(WriteBarrierDeathTest, NewcomerThatFallsBackToOursEndsTheProcess) {
  if (kHasThreadSanitizer) {
    GTEST_SKIP()
        << "ThreadSanitizer holds back a signal that is raised inside a handler, for ever here";
  }
  ASSERT_EQ(sigaction(SIGSEGV, nullptr, &g_found), 0);
  install(&restore_and_raise);
  ASSERT_TRUE(WriteBarrier::ensure_installed().is_ok());
  volatile char* nowhere = forbidden_page();
  EXPECT_EXIT(*nowhere = 1, ::testing::KilledBySignal(SIGSEGV), "newcomer was here");
}

// ---- In an engine --------------------------------------------------------------------------

/// Writes a rising number to both ends of a large extent, without a gate, while the extent is
/// evicted and fetched: no write may be lost. It writes in bursts; an eviction can succeed in the
/// pauses. Returns how often the extent was cold.
int hammer(TestEngine& engine, uint64_t bytes, int rounds, bool blocks_signals = false) {
  char* address = engine.allocate(bytes);
  fill_pattern(address, bytes, 1);
  std::atomic<bool> is_over{false};
  std::atomic<bool> is_paused{false};
  std::atomic<uint64_t> last{0};
  std::jthread writer([&] {
    if (blocks_signals) {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_BLOCK, &all, nullptr);
    }
    volatile auto* first_word = reinterpret_cast<uint64_t*>(address);
    volatile auto* last_word = reinterpret_cast<uint64_t*>(address + bytes - 8);
    while (!is_over.load()) {
      if (is_paused.load()) {
        std::this_thread::yield();
        continue;
      }
      const uint64_t next = last.load(std::memory_order_relaxed) + 1;
      *first_word = next;
      *last_word = next;
      if (*first_word != next || *last_word != next) ADD_FAILURE() << "a write was lost";
      last.store(next);
    }
  });
  int cold = 0;
  for (int round = 0; round < rounds; ++round) {
    is_paused.store(round % 2 == 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    cold += engine.evict(address) ? 1 : 0;
    is_paused.store(false);
    // The writer goes on while the extent is cold, so that the fetch has pages to merge.
    const uint64_t so_far = last.load();
    EXPECT_TRUE(eventually([&] { return last.load() > so_far + 2; }));
    engine.use({address});
  }
  is_over.store(true);
  writer.join();
  uint64_t ends[2];
  memcpy(&ends[0], address, 8);
  memcpy(&ends[1], address + bytes - 8, 8);
  EXPECT_EQ(ends[0], last.load());
  EXPECT_EQ(ends[1], last.load());
  for (uint64_t offset = 8; offset < bytes - 8; offset += 8) {
    const uint64_t expected = 0x9e3779b97f4a7c15u + offset;
    EXPECT_EQ(memcmp(address + offset, &expected, 8), 0) << offset;
    if (::testing::Test::HasFailure()) break;
  }
  engine.free(address);
  return cold;
}

TEST(WriteBarrierEngineTest, StrayWritesInProtectedWindowsWaitAndLand) {
  TestEngine engine;
  const uint64_t waited_before = WriteBarrier::waited_count();
  for (int tries = 0; tries < 10 && WriteBarrier::waited_count() == waited_before; ++tries) {
    EXPECT_GT(hammer(engine, 32 * kMiB, 10), 0);
  }
  EXPECT_GT(WriteBarrier::waited_count(), waited_before) << "no write met a window";
  EXPECT_EQ(engine.check_books(), "");
}

// A thread that blocks the signal reaches no handler: a window that needs one would end the
// process.
TEST(WriteBarrierEngineTest, WriterThatBlocksTheSignalLives) {
  TestEngine engine([](CpuEngineConfig& config) { config.userfaultfd = Choice::kAuto; });
  for (int time = 0; time < 3; ++time) {
    EXPECT_GT(hammer(engine, 32 * kMiB, 10, /*blocks_signals=*/true), 0);
  }
  EXPECT_EQ(engine.check_books(), "");
}

// Nobody may move pages away here, but write-protection needs no privilege.
TEST(WriteBarrierEngineTest, WriterThatBlocksTheSignalLivesWithoutPrivileges) {
  const int outcome = run_in_child([] {
    if (!AccessBarrier::open_unprivileged().is_ok()) _exit(kSkipped);
    if (getuid() == 0 && setuid(65534) != 0) _exit(kSkipped);
    prctl(PR_SET_DUMPABLE, 1);  // or its files in /proc would be root's
    if (AccessBarrier::open().is_ok()) _exit(kSkipped);
    TestEngine engine([](CpuEngineConfig& config) { config.userfaultfd = Choice::kAuto; });
    const uint64_t waited_before = WriteBarrier::waited_count();
    EXPECT_GT(hammer(engine, 32 * kMiB, 10, /*blocks_signals=*/true), 0);
    EXPECT_EQ(WriteBarrier::waited_count(), waited_before);
  });
  if (outcome == kSkipped) GTEST_SKIP() << "no userfaultfd for user code, or no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

TEST(WriteBarrierEngineTest, EvictionPutsOursInFrontOfANewcomer) {
  TestEngine engine;
  char* address = engine.allocate(kMiB);
  ASSERT_TRUE(engine.evict(address));
  install(&exit_with_info);
  engine.use({address});
  struct sigaction front = {};
  ASSERT_EQ(sigaction(SIGSEGV, nullptr, &front), 0);
  EXPECT_NE(front.sa_sigaction, &exit_with_info);
  EXPECT_GT(hammer(engine, 8 * kMiB, 5), 0);
  volatile char* nowhere = forbidden_page();
  EXPECT_EXIT(*nowhere = 1, ::testing::ExitedWithCode(42), "");
  signal(SIGSEGV, SIG_DFL);
}

TEST(WriteBarrierEngineDeathTest, UseAfterTheMemoryWasGivenBackKills) {
  TestEngine engine;
  char* address = engine.allocate(kMiB);
  engine.free(address);
  ASSERT_GT(engine->heap().drop_cached(kMiB), 0u);
  ASSERT_TRUE(WriteBarrier::ensure_installed().is_ok());
  EXPECT_EXIT(*const_cast<volatile char*>(address) = 1, ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace tencache
