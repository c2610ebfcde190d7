// SPDX-License-Identifier: Apache-2.0
#include "learn/recorder.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace tencache {
namespace {

// The names of as many freed extents are kept as a ring has events.
constexpr size_t kEndedNamesMax = kRingEvents;

}  // namespace

std::string_view event_kind_name(EventKind kind) {
  static constexpr std::array<std::string_view, 8> kNames = {"op_begin", "op_end", "read", "write",
                                                             "allocate", "free",   "step", "wait"};
  const auto number = static_cast<size_t>(kind);
  return number < kNames.size() ? kNames[number] : "unknown";
}

EventRing::EventRing(uint32_t thread_index, const EventRing* older)
    : thread_index_(thread_index),
      older_(older),
      // With calloc() the untouched pages of a ring that is never filled cost nothing.
      words_(static_cast<uint64_t*>(calloc(kRingEvents * kWordsPerEvent, sizeof(uint64_t)))) {
  TENCACHE_CHECK(words_ != nullptr, "no memory for an event ring");
}

std::vector<Event> EventRing::events_since(uint64_t position, uint64_t* lost_count) const {
  const uint64_t end = count_.load(std::memory_order_acquire);
  const uint64_t begin = std::max(position, end > kRingEvents ? end - kRingEvents : 0);
  std::vector<Event> events;
  events.reserve(end - begin);
  for (uint64_t index = begin; index < end; ++index) {
    uint64_t* words = words_.get() + index % kRingEvents * kWordsPerEvent;
    const uint64_t op_and_kind = read(words[3]);
    events.push_back({read(words[0]), read(words[1]), read(words[2]),
                      static_cast<uint32_t>(op_and_kind >> 8),
                      static_cast<EventKind>(op_and_kind & 0xff)});
  }
  // Whatever the thread appended while we copied overwrote the oldest events; one more may be half
  // written.
  const uint64_t appended = count_.load(std::memory_order_acquire) + 1 - end;
  const uint64_t room = kRingEvents - (end - begin);
  const uint64_t torn = appended > room ? std::min<uint64_t>(appended - room, events.size()) : 0;
  events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(torn));
  *lost_count = begin + torn - position;
  return events;
}

EventRing* Recorder::acquire_ring() {
  MutexLock lock(mutex_);
  if (!idle_rings_.empty()) {
    EventRing* ring = idle_rings_.back();
    idle_rings_.pop_back();
    return ring;
  }
  rings_.emplace_back(new EventRing(static_cast<uint32_t>(rings_.size()),
                                    newest_ring_.load(std::memory_order_relaxed)));
  newest_ring_.store(rings_.back().get(), std::memory_order_release);
  return rings_.back().get();
}

void Recorder::release_ring(EventRing* ring) {
  MutexLock lock(mutex_);
  idle_rings_.push_back(ring);
}

uint64_t Recorder::op_count() const {
  uint64_t count = 0;
  const EventRing* ring = newest_ring_.load(std::memory_order_acquire);
  for (; ring != nullptr; ring = ring->older_) {
    count += ring->op_count_.load(std::memory_order_relaxed);
  }
  return count;
}

uint32_t Recorder::register_op(std::string_view name) {
  MutexLock lock(mutex_);
  auto [entry, is_new] = op_numbers_.try_emplace(std::string(name), 0);
  if (is_new) {
    op_names_.emplace_back(name);
    entry->second = static_cast<uint32_t>(op_names_.size());
  }
  return entry->second;
}

std::string Recorder::op_name(uint32_t op) const {
  MutexLock lock(mutex_);
  return op == 0 || op > op_names_.size() ? std::string() : op_names_[op - 1];
}

void Recorder::name_extent(uint64_t extent_id, std::string_view name) {
  MutexLock lock(mutex_);
  extent_names_.insert_or_assign(extent_id, std::string(name));
  has_names_.store(true, std::memory_order_relaxed);
}

void Recorder::end_name(uint64_t extent_id) {
  MutexLock lock(mutex_);
  if (!extent_names_.contains(extent_id)) return;
  ended_names_.push_back(extent_id);
  if (ended_names_.size() <= kEndedNamesMax) return;
  extent_names_.erase(ended_names_.front());
  ended_names_.pop_front();
}

std::map<uint64_t, std::string> Recorder::extent_names() const {
  MutexLock lock(mutex_);
  return extent_names_;
}

std::vector<ThreadEvents> Recorder::snapshot() const {
  std::vector<uint64_t> positions;
  return drain(&positions);
}

std::vector<ThreadEvents> Recorder::drain(std::vector<uint64_t>* positions) const {
  MutexLock lock(mutex_);
  positions->resize(rings_.size(), 0);
  std::vector<ThreadEvents> threads(rings_.size());
  for (size_t index = 0; index < rings_.size(); ++index) {
    ThreadEvents& thread = threads[index];
    thread.thread_index = rings_[index]->thread_index_;
    thread.events = rings_[index]->events_since((*positions)[index], &thread.lost_count);
    (*positions)[index] += thread.lost_count + thread.events.size();
  }
  return threads;
}

}  // namespace tencache
