// SPDX-License-Identifier: Apache-2.0
#include "engine/gate/event_timer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {

EventTimer::~EventTimer() {
  if (!may_call_driver()) return;
  const CallScope scope(gpu_.driver(), gpu_.context());
  if (!scope.status().is_ok()) return;
  MutexLock lock(mutex_);
  for (const std::unique_ptr<EventSpan>& span : spans_) {
    for (const CUevent event : {span->begun, span->ended}) {
      if (event != nullptr) (void)gpu_.driver().cuEventDestroy(event);
    }
  }
}

OpTimer::Span* EventTimer::begin(const Span& of) {
  if (!StreamNumbers::is_one_stream(of.streams)) return nullptr;
  EventSpan* span = take_free();
  if (span == nullptr) return nullptr;
  static_cast<Span&>(*span) = of;
  if (streams_.record(span->begun, of.streams)) return span;
  drop(span);
  return nullptr;
}

bool EventTimer::end(Span& span) {
  auto& events = static_cast<EventSpan&>(span);
  return streams_.record(events.ended, events.streams);
}

void EventTimer::finish(Span* span) {
  MutexLock lock(mutex_);
  finished_.push_back(static_cast<EventSpan*>(span));
}

void EventTimer::drop(Span* span) {
  MutexLock lock(mutex_);
  free_.push_back(static_cast<EventSpan*>(span));
}

EventTimer::EventSpan* EventTimer::take_free() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      EventSpan* span = free_.back();
      free_.pop_back();
      return span;
    }
    if (spans_.size() == kSpansMax) return nullptr;
  }
  auto made = std::make_unique<EventSpan>();
  const bool has_events = ensure_events(*made);
  MutexLock lock(mutex_);
  spans_.push_back(std::move(made));  // the destructor frees it, even with only one event
  return has_events ? spans_.back().get() : nullptr;
}

// Makes the two events of a span that has none. Returns false where the driver refuses one.
bool EventTimer::ensure_events(EventSpan& span) const {
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  if (!scope.status().is_ok()) return false;
  return driver.cuEventCreate(&span.begun, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
         driver.cuEventCreate(&span.ended, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
}

std::vector<OpTime> EventTimer::take_finished() {
  std::deque<EventSpan*> under_way;
  {
    MutexLock lock(mutex_);
    under_way.swap(finished_);
  }
  std::vector<OpTime> times;
  if (under_way.empty()) return times;
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  std::deque<EventSpan*> later;
  std::vector<EventSpan*> done;
  StreamSet behind = kNoStreams;  // streams with an earlier span that they have not reached
  for (EventSpan* span : under_way) {
    float milliseconds = 0;
    CUresult result = CUDA_ERROR_NOT_READY;
    if (scope.status().is_ok() && (behind & span->streams) == 0) {
      result = driver.cuEventElapsedTime(&milliseconds, span->begun, span->ended);
    }
    if (result == CUDA_ERROR_NOT_READY) {
      behind |= span->streams;
      later.push_back(span);
      continue;
    }
    done.push_back(span);
    if (result != CUDA_SUCCESS) continue;
    const double ns = std::max(0.0, static_cast<double>(milliseconds) * 1e6);
    times.push_back({span->begun_at, span->op, static_cast<uint64_t>(std::llround(ns))});
  }
  MutexLock lock(mutex_);
  free_.insert(free_.end(), done.begin(), done.end());
  finished_.insert(finished_.begin(), later.begin(), later.end());
  return times;
}

}  // namespace tencache
