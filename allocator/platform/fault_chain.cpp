// SPDX-License-Identifier: Apache-2.0
#include "platform/fault_chain.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

namespace tencache {
namespace {

constexpr size_t kSignalCount = 2;
constexpr std::array<int, kSignalCount> kNumbers = {SIGSEGV, SIGBUS};
// How many different actions a program may have in its life. The last place serves all later ones.
constexpr size_t kPlacesMax = 16;

/// An action of the program that ours has replaced. It is never freed, because a handler may be
/// reading it.
struct Replaced {
  struct sigaction action = {};
  std::atomic<bool> is_spent{false};  // its handler has run once, with SA_RESETHAND

  bool has_function() const { return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN; }
  bool has_flag(int flag) const { return (action.sa_flags & flag) != 0; }
};

struct Chain {
  std::atomic<FaultFilter> filter{nullptr};
  std::array<std::atomic<Replaced*>, kPlacesMax> places = {};
};

std::array<Chain, kSignalCount> g_chains;

// The default action ends the process. A fault repeats by itself when the handler returns; a signal
// that was sent has to be sent again.
void end_by_default(int number, bool is_sent) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(number, &action, nullptr);
  if (is_sent) raise(number);
}

// Does what the kernel would have done without us. It never returns where the program's handler
// leaves by siglongjmp, so nothing is set before the call that would have to be unset after it. The
// mask comes back with the context that the kernel saved.
void pass_on(Replaced& replaced, int number, siginfo_t* info, void* context) {
  const bool is_sent = info->si_code <= 0;
  const struct sigaction& action = replaced.action;
  if (is_sent && action.sa_handler == SIG_IGN) return;
  const bool is_spent = replaced.has_flag(SA_RESETHAND) &&
                        replaced.is_spent.exchange(true, std::memory_order_relaxed);
  if (!replaced.has_function() || is_spent) {
    end_by_default(number, is_sent);
    return;
  }
  sigset_t mask = action.sa_mask;
  if (!replaced.has_flag(SA_NODEFER)) sigaddset(&mask, number);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  if (replaced.has_flag(SA_SIGINFO)) {
    action.sa_sigaction(number, info, context);
  } else {
    action.sa_handler(number);
  }
}

template <size_t kChain, size_t kPlace>
void handle(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  Chain& chain = g_chains[kChain];
  const FaultFilter filter = chain.filter.load(std::memory_order_acquire);
  const bool is_done = filter != nullptr && filter(*info);
  errno = saved_errno;
  if (is_done) return;
  pass_on(*chain.places[kPlace].load(std::memory_order_acquire), number, info, context);
}

using Handler = void (*)(int, siginfo_t*, void*);
using Handlers = std::array<Handler, kPlacesMax>;

template <size_t kChain, size_t... kPlaces>
constexpr Handlers handlers_of(std::index_sequence<kPlaces...>) {
  return {&handle<kChain, kPlaces>...};
}

constexpr std::array<Handlers, kSignalCount> kHandlers = {
    handlers_of<0>(std::make_index_sequence<kPlacesMax>()),
    handlers_of<1>(std::make_index_sequence<kPlacesMax>()),
};

bool is_ours(size_t chain, const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) == 0) return false;
  return std::ranges::find(kHandlers[chain], action.sa_sigaction) != kHandlers[chain].end();
}

bool is_same(const struct sigaction& left, const struct sigaction& right) {
  if (left.sa_handler != right.sa_handler || left.sa_flags != right.sa_flags) return false;
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&left.sa_mask, number) != sigismember(&right.sa_mask, number)) return false;
  }
  return true;
}

// The place of that action, an old or a new one. REQUIRES: the lock of ensure_in_front() is held.
size_t place_of(Chain& chain, const struct sigaction& action) {
  size_t place = 0;
  for (; place < kPlacesMax; ++place) {
    const Replaced* replaced = chain.places[place].load(std::memory_order_relaxed);
    if (replaced == nullptr) break;
    if (is_same(replaced->action, action) && !replaced->is_spent.load()) return place;
  }
  place = std::min(place, kPlacesMax - 1);
  auto* const replaced = new Replaced;
  replaced->action = action;
  chain.places[place].store(replaced, std::memory_order_release);
  return place;
}

// The stack and the restart of system calls are those that the program's handler asks for. Where it
// has none, ours runs on the alternate stack and restarts system calls, so that an ignored signal
// disturbs none.
struct sigaction action_for(size_t chain, size_t place) {
  const Replaced& replaced = *g_chains[chain].places[place].load(std::memory_order_relaxed);
  struct sigaction ours = {};
  ours.sa_sigaction = kHandlers[chain][place];
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  ours.sa_flags |= replaced.has_function() ? replaced.action.sa_flags & (SA_ONSTACK | SA_RESTART)
                                           : SA_ONSTACK | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  return ours;
}

Status failure(const char* what, int number) {
  const int error_number = errno;
  return status_from_errno(error_number,
                           std::string(what) + " the handler of signal " + std::to_string(number));
}

}  // namespace

Status FaultChain::ensure_in_front(FaultSignal signal, FaultFilter filter) {
  const auto index = static_cast<size_t>(signal);
  const int number = kNumbers[index];
  Chain& chain = g_chains[index];
  struct sigaction found = {};
  if (sigaction(number, nullptr, &found) != 0) return failure("reading", number);
  if (is_ours(index, found)) return Status::ok();
  static std::mutex install_mutex;
  std::lock_guard<std::mutex> lock(install_mutex);
  chain.filter.store(filter, std::memory_order_release);
  if (sigaction(number, nullptr, &found) != 0) return failure("reading", number);
  // The place is ready before ours is in front of it, so that no signal finds it empty. Another
  // thread may install a handler between the two calls; then that one gets a place, too.
  while (!is_ours(index, found)) {
    const struct sigaction ours = action_for(index, place_of(chain, found));
    struct sigaction replaced = {};
    if (sigaction(number, &ours, &replaced) != 0) return failure("installing", number);
    if (is_same(replaced, found)) break;
    found = replaced;
  }
  return Status::ok();
}

}  // namespace tencache
