// SPDX-License-Identifier: Apache-2.0
#include "platform/write_barrier.h"

#include <signal.h>
#include <time.h>

#include <atomic>

#include "platform/fault_chain.h"

namespace tencache {
namespace {

// How long a waiting thread sleeps before it asks again whether the window is over. A window lasts
// for a hash and a remap: microseconds to a few milliseconds.
constexpr long kWaitNs = 20'000;
// One address cannot fault this often in a row once its window is over. If it does, our view of the
// mapping is wrong, and a crash is better than a hang.
constexpr uint32_t kRetriesMax = 1'000'000;

// configure() writes these once, before any window opens; the handler reads them.
std::atomic<uintptr_t> g_guarded_base{0};
std::atomic<uint64_t> g_guarded_bytes{0};
std::atomic<FaultJudge> g_judge{nullptr};

std::atomic<uint64_t> g_waited{0};
std::atomic<uintptr_t> g_last_retry_address{0};
std::atomic<uint32_t> g_retries{0};

bool retry_is_plausible(uintptr_t address) {
  if (g_last_retry_address.exchange(address, std::memory_order_relaxed) != address) {
    g_retries.store(0, std::memory_order_relaxed);
    return true;
  }
  return g_retries.fetch_add(1, std::memory_order_relaxed) < kRetriesMax;
}

bool wait_for_window(const siginfo_t& info) {
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  const FaultJudge judge = g_judge.load(std::memory_order_acquire);
  const bool is_refused_in_arena = info.si_code == SEGV_ACCERR && judge != nullptr &&
                                   address - g_guarded_base.load(std::memory_order_relaxed) <
                                       g_guarded_bytes.load(std::memory_order_relaxed);
  if (!is_refused_in_arena) return false;
  FaultVerdict verdict = judge(info.si_addr);
  if (verdict == FaultVerdict::kWait) {
    g_waited.fetch_add(1, std::memory_order_relaxed);
    g_retries.store(0, std::memory_order_relaxed);  // windows come and go: no standstill
  }
  while (verdict == FaultVerdict::kWait) {
    const struct timespec pause = {0, kWaitNs};
    nanosleep(&pause, nullptr);
    verdict = judge(info.si_addr);
  }
  return verdict == FaultVerdict::kRetry && retry_is_plausible(address);
}

}  // namespace

void WriteBarrier::configure(const void* arena_base, uint64_t arena_bytes, FaultJudge judge) {
  g_guarded_base.store(reinterpret_cast<uintptr_t>(arena_base), std::memory_order_relaxed);
  g_guarded_bytes.store(arena_bytes, std::memory_order_relaxed);
  g_judge.store(judge, std::memory_order_release);
}

Status WriteBarrier::ensure_installed() {
  return FaultChain::ensure_in_front(FaultSignal::kSegmentation, &wait_for_window);
}

uint64_t WriteBarrier::waited_count() { return g_waited.load(std::memory_order_relaxed); }

}  // namespace tencache
