// SPDX-License-Identifier: Apache-2.0
#include "engine/gate/device_waits.h"

namespace tencache {

DeviceWaits::Wait DeviceWaits::begin(StreamSet streams) {
  Wait wait;
  wait.waits = this;
  wait.span = begin_span(streams);
  return wait;
}

OpTimer::Span* DeviceWaits::begin_span(StreamSet streams) {
  if (timer_ == nullptr || !has_one_bit(streams)) return nullptr;
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++begun_count_;
  }
  const OpTimer::Span of = {.streams = streams, .begun_at = number};
  if (OpTimer::Span* span = timer_->begin(of)) return span;
  settle();  // all spans may have been in use
  return timer_->begin(of);
}

// Ends the part of the wait that has begun, and begins the next. Where the timer refuses, the one
// that has begun goes on.
void DeviceWaits::begin_part(Wait* wait) {
  if (wait->span == nullptr || wait->late.count == 0 || wait->parts_left == 1) return;
  OpTimer::Span* next = begin_span(wait->span->streams);
  if (next == nullptr) return;
  if (!timer_->end(*wait->span)) {
    timer_->drop(next);
    return;
  }
  finish(wait->span, wait->late);
  wait->span = next;
  wait->late = {};
  --wait->parts_left;
}

void DeviceWaits::end(const Wait& wait, uint64_t thread_ns) {
  if (wait.span != nullptr && timer_->end(*wait.span)) {
    finish(wait.span, wait.late);
    return;
  }
  if (wait.span != nullptr) timer_->drop(wait.span);
  count(thread_ns, wait.late);
}

void DeviceWaits::finish(OpTimer::Span* span, const LateFetches& late) {
  if (late.count > 0) {
    MutexLock lock(mutex_);
    undecided_[span->begun_at] = late;
  }
  timer_->finish(span);
}

void DeviceWaits::settle() {
  if (timer_ == nullptr) return;
  for (const OpTime& wait : timer_->take_finished()) {
    LateFetches late;
    {
      MutexLock lock(mutex_);
      if (const auto entry = undecided_.extract(wait.begun_at)) late = entry.mapped();
    }
    count(wait.ns, late);
  }
}

void DeviceWaits::count(uint64_t device_ns, const LateFetches& late) const {
  // Without a timer, every late fetch counts as waited for, however short the wait.
  if (timer_ == nullptr || device_ns >= timer_->resolution_ns()) {
    add(stats_.stall_ns, device_ns);
    add(stats_.late_fetches, late.count);
    return;
  }
  add(stats_.early_fetches, late.count);
  add(stats_.early_fetched_bytes, late.bytes);
}

}  // namespace tencache
