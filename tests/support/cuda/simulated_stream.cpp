// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace tencache {
namespace {

// A stream whose work takes its time finds out at least this often whether the context has failed.
constexpr uint64_t kFailureSeenNs = 10'000'000;

thread_local bool on_stream = false;

}  // namespace

void Marker::complete(uint64_t time_ns) {
  MutexLock lock(mutex_);
  time_ns_ = time_ns;
  completed_.notify_all();
}

bool Marker::is_complete() const {
  MutexLock lock(mutex_);
  return time_ns_.has_value();
}

uint64_t Marker::wait() const {
  MutexLock lock(mutex_);
  while (!time_ns_.has_value()) completed_.wait(mutex_);
  return *time_ns_;
}

uint64_t CopyEngine::take(uint64_t begin_ns, uint64_t bytes) {
  if (bytes_per_s_ == 0) return begin_ns + latency_ns_;
  const double transfer_ns = static_cast<double>(bytes) / static_cast<double>(bytes_per_s_) * 1e9;
  MutexLock lock(mutex_);
  free_at_ns_ = std::max(begin_ns, free_at_ns_) + latency_ns_ + static_cast<uint64_t>(transfer_ns);
  return free_at_ns_;
}

SimulatedStream::SimulatedStream(const StickyFailure& failure, int device, StreamKind kind,
                                 size_t queued_kernels_max)
    : failure_(failure),
      device_(device),
      kind_(kind),
      queued_kernels_max_(queued_kernels_max),
      thread_([this] { run(); }) {}

SimulatedStream::~SimulatedStream() {
  stop();
  thread_.join();
}

void SimulatedStream::take_kernel_room() {
  MutexLock lock(mutex_);
  while (unfinished_kernels_ >= queued_kernels_max_) has_room_.wait(mutex_);
  ++unfinished_kernels_;
}

void SimulatedStream::push(Action action, std::shared_ptr<Marker> marker, WorkKind kind) {
  MutexLock lock(mutex_);
  queue_.push_back({std::move(action), std::move(marker), kind, now_ns()});
  ++unfinished_;
  changed_.notify_all();
}

size_t SimulatedStream::unfinished() const {
  MutexLock lock(mutex_);
  return unfinished_;
}

void SimulatedStream::wait_until_idle() {
  MutexLock lock(mutex_);
  while (unfinished_ > 0) idle_.wait(mutex_);
}

Standing SimulatedStream::standing(uint64_t lettings_go) const {
  MutexLock lock(mutex_);
  if (unfinished_ == 0) return Standing::kIdle;
  if (lettings_go < held_until_) return Standing::kIsHeld;
  const bool waits = awaited_ != nullptr && !awaited_->is_complete();
  return waits ? Standing::kWaitsForEvent : Standing::kGoesOn;
}

StreamTimes SimulatedStream::times() const {
  MutexLock lock(mutex_);
  return times_;
}

void SimulatedStream::reset_times() {
  MutexLock lock(mutex_);
  times_ = {};
  kernel_ended_ns_ = 0;
}

void SimulatedStream::count_kernel(uint64_t pushed_ns, uint64_t begin_ns, uint64_t end_ns) {
  ++times_.kernels;
  times_.busy_ns += end_ns - begin_ns;
  if (kernel_ended_ns_ != 0) {
    const uint64_t queued_ns = std::max(kernel_ended_ns_, pushed_ns);
    times_.starved_ns += queued_ns - kernel_ended_ns_;
    times_.stalled_ns += begin_ns - queued_ns;
  }
  kernel_ended_ns_ = end_ns;
}

void SimulatedStream::stop() {
  MutexLock lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
}

bool SimulatedStream::pause_until(uint64_t time_ns) {
  MutexLock lock(mutex_);
  while (!is_dropping()) {
    const uint64_t now = now_ns();
    if (now >= time_ns) return true;
    changed_.wait_for(mutex_, std::chrono::nanoseconds(std::min(time_ns - now, kFailureSeenNs)));
  }
  return false;
}

uint64_t SimulatedStream::wait_for(const std::shared_ptr<const Marker>& moment) {
  {
    MutexLock lock(mutex_);
    awaited_ = moment;
  }
  const uint64_t time_ns = moment->wait();
  MutexLock lock(mutex_);
  awaited_ = nullptr;
  return time_ns;
}

void SimulatedStream::note_held(uint64_t until) {
  MutexLock lock(mutex_);
  held_until_ = until;
}

bool SimulatedStream::is_on_stream() { return on_stream; }

std::optional<SimulatedStream::Work> SimulatedStream::next_work() {
  MutexLock lock(mutex_);
  while (queue_.empty()) {
    if (is_stopped_) return std::nullopt;
    changed_.wait(mutex_);
  }
  Work work = std::move(queue_.front());
  queue_.pop_front();
  if (is_dropping()) work.action = nullptr;
  return work;
}

void SimulatedStream::run() {
  on_stream = true;
  while (std::optional<Work> work = next_work()) {
    time_ns_ = std::max(time_ns_, work->pushed_ns);
    const uint64_t begin_ns = time_ns_;
    const bool is_kernel = work->action && work->kind == WorkKind::kKernel;
    if (work->action) time_ns_ = std::max(time_ns_, work->action(*this, begin_ns));
    // This destroys everything that the action holds before anybody sees that the action has ended.
    work->action = nullptr;
    // A thread that sees the marker complete finds the stream idle too, and the other way round.
    MutexLock lock(mutex_);
    if (is_kernel) count_kernel(work->pushed_ns, begin_ns, time_ns_);
    if (work->marker != nullptr) work->marker->complete(time_ns_);
    if (work->kind == WorkKind::kKernel) {
      --unfinished_kernels_;
      has_room_.notify_all();
    }
    --unfinished_;
    if (unfinished_ == 0) idle_.notify_all();
  }
}

}  // namespace tencache
