// SPDX-License-Identifier: Apache-2.0
//
// The seats and mailboxes in shared memory, futexes as doorbells, and pidfds, which become readable
// when their process has ended, even if nobody has waited for it yet.
#include "meeting.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "errors.h"

namespace emulated_gpu::nccl {

namespace {

// A waiting thread that is not rung checks this often whether the others are alive.
constexpr timespec kLookAfter = {.tv_sec = 0, .tv_nsec = 100'000'000};

size_t mailbox_index(Lane lane, int from, int to, int count) {
  const auto ranks = static_cast<size_t>(count);
  return (static_cast<size_t>(lane) * ranks + static_cast<size_t>(from)) * ranks +
         static_cast<size_t>(to);
}

}  // namespace

struct alignas(64) Meeting::Seat {
  std::atomic<int32_t> process;  // 0 before the rank has come
  std::atomic<int32_t> count;    // number of ranks, as this one was told
  std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> arrivals;
  std::atomic<uint32_t> has_left;
  Vote vote;
};

namespace {

constexpr size_t kSeatBytes = 128;

size_t seats_bytes(int count) { return static_cast<size_t>(count) * kSeatBytes; }
size_t meeting_bytes(int count) {
  const auto ranks = static_cast<size_t>(count);
  return seats_bytes(count) + kLaneCount * ranks * ranks * sizeof(Mailbox);
}

}  // namespace

Meeting::Meeting(const Place& place, int rank, int count)
    : place_(place),
      rank_(rank),
      count_(count),
      memory_(place, meeting_bytes(count)),
      processes_(static_cast<size_t>(count), -1) {}

Meeting::~Meeting() {
  leave();
  for (const int process : processes_) {
    if (process >= 0) close(process);
  }
}

Meeting::Seat& Meeting::seat(int rank) const {
  static_assert(sizeof(Seat) <= kSeatBytes);
  auto* seats = static_cast<char*>(memory_.data());
  return *reinterpret_cast<Seat*>(seats + static_cast<size_t>(rank) * kSeatBytes);
}

Vote& Meeting::vote(int rank) { return seat(rank).vote; }

Mailbox& Meeting::mailbox(Lane lane, int from, int to) {
  auto* boxes = static_cast<char*>(memory_.data()) + seats_bytes(count_);
  return reinterpret_cast<Mailbox*>(boxes)[mailbox_index(lane, from, to, count_)];
}

ncclResult_t Meeting::join() {
  if (memory_.data() == nullptr) {
    return fail(ncclSystemError, "rank %d finds no shared memory of process %d: %s", rank_,
                place_.process, strerror(errno));
  }
  seat(rank_).count = count_;
  if (int32_t nobody = 0; !seat(rank_).process.compare_exchange_strong(nobody, getpid())) {
    return fail(ncclInvalidUsage, "rank %d has come twice", rank_);
  }
  for (int other = 0; other < count_; ++other) ring(other);
  const auto have_all_come = [this] {
    for (int other = 0; other < count_; ++other) {
      int& process = processes_[static_cast<size_t>(other)];
      const int32_t number = seat(other).process.load();
      if (number == 0) return false;
      if (process < 0) process = static_cast<int>(syscall(SYS_pidfd_open, number, 0));
    }
    return true;
  };
  const ncclResult_t result =
      wait_until("the other ranks of a new communicator", have_all_come,
                 [this](int other) { return seat(other).process.load() != 0; });
  close_place(place_);
  for (int other = 0; result == ncclSuccess && other < count_; ++other) {
    if (seat(other).count != count_) {
      return fail(ncclInvalidUsage, "rank %d was told %d ranks, rank %d %d", rank_, count_, other,
                  seat(other).count.load());
    }
  }
  return result;
}

ncclResult_t Meeting::pass_barrier() {
  const uint32_t arrivals = ++seat(rank_).arrivals;
  for (int other = 0; other < count_; ++other) ring(other);
  const auto has_arrived = [&](int other) { return seat(other).arrivals.load() >= arrivals; };
  return wait_until(
      "the other ranks of a split",
      [&] {
        for (int other = 0; other < count_; ++other) {
          if (!has_arrived(other)) return false;
        }
        return true;
      },
      [&](int other) { return !has_arrived(other); });
}

void Meeting::ring(int rank) {
  std::atomic<uint32_t>& doorbell = seat(rank).doorbell;
  ++doorbell;
  syscall(SYS_futex, &doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

ncclResult_t Meeting::wait_until(const char* what, const std::function<bool()>& is_done,
                                 const std::function<bool(int)>& is_needed) {
  std::atomic<uint32_t>& doorbell = seat(rank_).doorbell;
  for (;;) {
    // The doorbell is read before the look, so that a ring after the look ends the sleep.
    const uint32_t seen = doorbell.load();
    if (is_done()) return ncclSuccess;
    if (is_aborted()) return ncclInternalError;
    if (const int gone = find_gone(is_needed); gone >= 0) {
      // The work that the rank did before it went counts.
      if (is_done()) return ncclSuccess;
      return fail(ncclRemoteError, "rank %d waits for %s, but rank %d (process %d) has gone", rank_,
                  what, gone, seat(gone).process.load());
    }
    syscall(SYS_futex, &doorbell, FUTEX_WAIT, seen, &kLookAfter, nullptr, 0);
  }
}

void Meeting::abort() {
  is_aborted_ = true;
  leave();
}

void Meeting::leave() {
  if (memory_.data() == nullptr || seat(rank_).has_left.exchange(1) != 0) return;
  for (int other = 0; other < count_; ++other) ring(other);
}

bool Meeting::is_gone(int rank) {
  if (seat(rank).has_left.load() != 0) return true;
  const int process = processes_[static_cast<size_t>(rank)];
  if (process < 0) return seat(rank).process.load() != 0;  // it ended before it could be opened
  pollfd readable = {.fd = process, .events = POLLIN, .revents = 0};
  return poll(&readable, 1, 0) == 1;
}

int Meeting::find_gone(const std::function<bool(int)>& is_needed) {
  for (int other = 0; other < count_; ++other) {
    if (other != rank_ && is_needed(other) && is_gone(other)) return other;
  }
  return -1;
}

}  // namespace emulated_gpu::nccl
