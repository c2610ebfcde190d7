// SPDX-License-Identifier: Apache-2.0
#include "engine/gate/device_waits.h"

#include <bit>

namespace tencache {

OpTimer::Span* DeviceWaits::begin(StreamSet streams) {
  if (timer_ == nullptr || !std::has_single_bit(streams)) return nullptr;
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++begun_count_;
  }
  if (OpTimer::Span* wait = timer_->begin(0, number, streams)) return wait;
  settle();  // all spans may have been in use
  return timer_->begin(0, number, streams);
}

void DeviceWaits::end(OpTimer::Span* wait, uint64_t thread_ns, const LateFetches& late) {
  if (wait == nullptr) {
    count(thread_ns, late);
    return;
  }
  if (!timer_->end(*wait)) {
    timer_->drop(wait);
    count(thread_ns, late);
    return;
  }
  if (late.count > 0) {
    MutexLock lock(mutex_);
    undecided_[wait->begun_at] = late;
  }
  timer_->finish(wait);
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
