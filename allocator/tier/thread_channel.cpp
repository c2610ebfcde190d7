// SPDX-License-Identifier: Apache-2.0
//
// The channel for machines and containers that refuse io_uring: `threads` threads that pread and
// pwrite one request at a time. As in the io_uring channel, the calling thread cuts, judges and
// reports (tier/piece_sequence.h), and the threads only move bytes, so both channels behave alike.
//
// Each request checks whether the descriptor still stands for the file, before and after its call
// (300 ns of some 250 us). What remains: the program closes the number and gets it for a file of
// its own within the nanoseconds between the check and the call. Then the process ends after that
// request. (The io_uring channel holds the file itself.) Whoever makes the channel has a FileHold.
//
// Threads: transfer() on one thread at a time; mutex_ guards the two queues and is never held
// across I/O. The threads start at the first transfer and leave signals to the program's own
// threads. A limit on processes may allow only some of them, or none: then the calling thread moves
// the pieces, one after another, and the next transfer tries to start threads again. In a forked
// child the threads do not exist; DiskTier leaks the channel there, and the destructor joins none.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/kept_fd.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/service_thread.h"
#include "tier/bounce_ring.h"
#include "tier/io_channel.h"
#include "tier/piece_sequence.h"

namespace tencache {
namespace {

constexpr unsigned kWindowPerThread = 2;  // as in the io_uring channel

struct Request {
  IoDirection direction = IoDirection::kRead;
  Piece* piece = nullptr;  // nobody changes it meanwhile
};

struct Completion {
  Piece* piece = nullptr;
  int64_t answer = 0;  // bytes, or -errno
};

class ThreadChannel final : public IoChannel {
 public:
  ThreadChannel(int fd, unsigned threads)
      : fd_(fd),
        file_(FileIdentity::of(fd)),
        thread_count_(threads),
        window_(std::min(size_t{threads} * kWindowPerThread, kWindowPiecesMax)) {}
  ~ThreadChannel() override;

  TransferResult transfer(IoDirection direction, std::span<const IoSegment> segments,
                          PieceObserver* observer) override TENCACHE_EXCLUDES(mutex_);
  const char* name() const override { return "threads"; }

 private:
  void start_threads();
  void run_thread() TENCACHE_EXCLUDES(mutex_);
  int64_t move(const Request& request) const;
  void push(IoDirection direction, Piece& piece) TENCACHE_EXCLUDES(mutex_);
  bool pop(Completion& completion, bool waits) TENCACHE_EXCLUDES(mutex_);

  const int fd_;
  const FileIdentity file_;
  const unsigned thread_count_;
  const size_t window_;                      // pieces
  pid_t owner_pid_ = 0;                      // process of the threads; start_threads() sets it
  std::vector<std::thread> threads_;         // start_threads() fills it
  std::unique_ptr<BounceRing> bounce_ring_;  // made by the first transfer that needs it

  Mutex mutex_;
  CondVar requested_;
  CondVar completed_;
  std::deque<Request> requests_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<Completion> completions_ TENCACHE_GUARDED_BY(mutex_);
  bool is_ending_ TENCACHE_GUARDED_BY(mutex_) = false;
};

ThreadChannel::~ThreadChannel() {
  if (threads_.empty()) return;
  if (getpid() != owner_pid_) {
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  {
    MutexLock lock(mutex_);
    is_ending_ = true;
    requested_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadChannel::start_threads() {
  const SignalsBlocked blocked;
  owner_pid_ = getpid();
  try {
    while (threads_.size() < thread_count_) threads_.emplace_back([this] { run_thread(); });
  } catch (const std::system_error& error) {
    TENCACHE_LOG_DEBUG("%zu of %u threads for the spill file: %s", threads_.size(), thread_count_,
                       error.what());
  }
}

TransferResult ThreadChannel::transfer(IoDirection direction, std::span<const IoSegment> segments,
                                       PieceObserver* observer) {
  if (threads_.empty()) start_threads();
  if (bounce_ring_ == nullptr && has_segment_without_memory(segments)) {
    const Status made = BounceRing::create(window_).move_to(&bounce_ring_);
    if (!made.is_ok()) return {made, false, 0};
  }
  PieceSequence sequence(direction, segments, window_, observer, bounce_ring_.get());
  while (sequence.is_active()) {
    Piece* piece = nullptr;
    while (sequence.in_flight() < thread_count_ && (piece = sequence.next()) != nullptr) {
      push(direction, *piece);
    }
    bool waits = !sequence.report_one();
    Completion completion;
    while (sequence.in_flight() > 0 && pop(completion, waits)) {
      if (sequence.settle(*completion.piece, completion.answer)) push(direction, *completion.piece);
      waits = false;
    }
  }
  return sequence.take_result();
}

void ThreadChannel::push(IoDirection direction, Piece& piece) {
  const Request request = {direction, &piece};
  if (threads_.empty()) {
    const Completion completion = {&piece, move(request)};
    MutexLock lock(mutex_);
    completions_.push_back(completion);
    return;
  }
  MutexLock lock(mutex_);
  requests_.push_back(request);
  requested_.notify_one();
}

bool ThreadChannel::pop(Completion& completion, bool waits) {
  MutexLock lock(mutex_);
  while (waits && completions_.empty()) completed_.wait(mutex_);
  if (completions_.empty()) return false;
  completion = completions_.front();
  completions_.pop_front();
  return true;
}

void ThreadChannel::run_thread() {
  for (;;) {
    Request request;
    {
      MutexLock lock(mutex_);
      while (requests_.empty() && !is_ending_) requested_.wait(mutex_);
      if (requests_.empty()) return;
      request = requests_.front();
      requests_.pop_front();
    }
    const int64_t answer = move(request);
    MutexLock lock(mutex_);
    completions_.push_back({request.piece, answer});
    completed_.notify_one();
  }
}

/// Returns the bytes moved, or -errno.
int64_t ThreadChannel::move(const Request& request) const {
  file_.require(fd_, kSpillFile);
  const Piece& piece = *request.piece;
  const auto offset = static_cast<off_t>(piece.rest_offset());
  const ssize_t moved = request.direction == IoDirection::kRead
                            ? pread(fd_, piece.rest_memory(), piece.rest_bytes(), offset)
                            : pwrite(fd_, piece.rest_memory(), piece.rest_bytes(), offset);
  const int64_t answer = moved < 0 ? -int64_t{errno} : moved;
  file_.require(fd_, kSpillFile);
  return answer;
}

}  // namespace

std::unique_ptr<IoChannel> make_thread_channel(int fd, unsigned threads) {
  TENCACHE_CHECK(threads > 0);
  return std::make_unique<ThreadChannel>(fd, threads);
}

}  // namespace tencache
