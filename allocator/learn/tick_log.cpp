// SPDX-License-Identifier: Apache-2.0
#include "learn/tick_log.h"

#include <algorithm>

namespace tencache {
namespace {

// The most allocations of one tick.
constexpr size_t kBirthsMax = size_t{1} << 16;

}  // namespace

void TickLog::append(const std::vector<ThreadEvents>& threads) {
  struct ThreadEvent {
    uint32_t thread;
    const Event* event;
  };
  size_t count = 0;
  for (const ThreadEvents& thread : threads) count += thread.events.size();
  std::vector<ThreadEvent> merged;
  merged.reserve(count);
  const uint64_t lost_before = lost_count_;
  for (const ThreadEvents& thread : threads) {
    lost_count_ += thread.lost_count;
    for (const Event& event : thread.events) merged.push_back({thread.thread_index, &event});
  }
  if (lost_count_ > lost_before) clear();
  const auto time_of = [](const ThreadEvent& entry) { return entry.event->at; };
  // The events of one thread are in order, and mostly only one thread has any.
  if (!std::ranges::is_sorted(merged, {}, time_of)) {
    std::ranges::stable_sort(merged, {}, time_of);
  }
  for (const ThreadEvent& entry : merged) take(entry.thread, *entry.event);
}

// Adds the times to their ticks. A tick that waited for memory has its time in parts. Ticks begin
// in the order of their numbers, except where the events of a thread came later. The times of those
// exceptions may be lost; others of the same op will come.
void TickLog::append_times(std::span<const OpTime> times) {
  for (const OpTime& time : times) {
    auto found = std::ranges::lower_bound(ticks_, time.begun_at, {}, &LoggedTick::begun_at);
    while (found != ticks_.end() && found->begun_at == time.begun_at && found->op != time.op) {
      ++found;
    }
    if (found == ticks_.end() || found->begun_at != time.begun_at) continue;
    found->device_ns = found->device_ns.value_or(0) + time.ns;
  }
}

void TickLog::take(uint32_t thread, const Event& event) {
  switch (event.kind) {
    case EventKind::kOpBegin:
      open_[thread] = {event.op, event.at, false, 0};
      return;
    case EventKind::kRead:
    case EventKind::kWrite:
      take_access(open_[thread], event);
      return;
    case EventKind::kAllocate: {
      if (ticks_.empty()) return;
      std::vector<uint64_t>& births = ticks_.back().births;
      // A program that allocates on and on and names none of it has nothing to learn from.
      if (births.size() == kBirthsMax) return clear();
      lives_[event.extent_id] = {event.bytes, end() - 1, static_cast<uint32_t>(births.size()),
                                 kUnknownTick};
      births.push_back(event.extent_id);
      return;
    }
    case EventKind::kFree: {
      if (ticks_.empty()) return;
      ExtentLife& life = lives_[event.extent_id];
      life.bytes = event.bytes;
      life.freed = end() - 1;
      ticks_.back().deaths.push_back(event.extent_id);
      return;
    }
    case EventKind::kStep:
      // A mark before the first tick ends a step of which nothing is known.
      if (ticks_.empty()) return;
      if (marks_.empty() || marks_.back() != end()) marks_.push_back(end());
      return;
    case EventKind::kWait:
      if (!ticks_.empty()) ticks_.back().wait_ns += event.bytes;
      return;
    case EventKind::kOpEnd:
      return;
  }
}

void TickLog::take_access(OpenOp& open, const Event& event) {
  if (!open.is_tick) {
    if (ticks_.size() == kTicksMax) forget_oldest();
    open.is_tick = true;
    open.number = end();
    ticks_.push_back(
        {.digest = TickDigest(open.op).value(), .op = open.op, .begun_at = open.begun_at});
  }
  if (open.number < first_) return;
  const bool is_write = event.kind == EventKind::kWrite;
  LoggedTick& tick = ticks_[open.number - first_];
  tick.digest = TickDigest::extend(tick.digest, is_write);
  tick.accesses.push_back({event.extent_id, event.bytes, is_write});
}

const ExtentLife* TickLog::life(uint64_t extent_id) const {
  const auto found = lives_.find(extent_id);
  return found == lives_.end() ? nullptr : &found->second;
}

bool TickLog::is_older(uint64_t extent_id, uint64_t since) const {
  const ExtentLife* known = life(extent_id);
  if (known == nullptr) return true;
  return known->freed == kUnknownTick && (known->born == kUnknownTick || known->born < since);
}

std::span<const uint64_t> TickLog::births(uint64_t tick) const {
  if (tick < first_ || tick >= end()) return {};
  return ticks_[tick - first_].births;
}

std::span<const uint64_t> TickLog::deaths(uint64_t tick) const {
  if (tick < first_ || tick >= end()) return {};
  return ticks_[tick - first_].deaths;
}

// Forgets the oldest tick, and the extents that died in it: none of the ticks that are left names
// them.
void TickLog::forget_oldest() {
  for (const uint64_t extent_id : ticks_.front().deaths) lives_.erase(extent_id);
  for (const uint64_t extent_id : ticks_.front().births) {
    const auto found = lives_.find(extent_id);
    if (found != lives_.end()) found->second.born = kUnknownTick;
  }
  ticks_.pop_front();
  ++first_;
  while (!marks_.empty() && marks_.front() < first_) marks_.pop_front();
}

void TickLog::clear() {
  first_ = end();
  ticks_.clear();
  marks_.clear();
  lives_.clear();
  open_.clear();
}

}  // namespace tencache
