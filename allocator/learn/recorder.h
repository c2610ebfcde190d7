// SPDX-License-Identifier: Apache-2.0
//
// Recorder: a memory of what the program did, cheap enough to stay on while hooks are armed. Each
// thread appends to a ring of its own (no lock, no allocation, one clock reading by the caller).
// The newest kRingEvents events of every thread are kept. Rings outlive their threads and are
// reused by new ones, so that short-lived threads neither lose events nor pile up rings.
//
// Ops are recorded by number. Only the registry of names (of ops and of extents) and the list of
// rings are shared and locked.
//
// Threads: only the ring's thread appends. Any thread calls snapshot() at any time: events are
// stored as atomic words, and those that may have been overwritten meanwhile are left out. Any
// thread calls op_count(), too, without a lock: rings are linked, newest first, and never removed.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace tencache {

enum class EventKind : uint8_t {
  kOpBegin = 0,
  kOpEnd = 1,
  kRead = 2,   // of an extent, by the op that began last
  kWrite = 3,  // an op that reads and writes records a write
  kAllocate = 4,
  kFree = 5,
  kStep = 6,  // Optimizer.step
  kWait = 7,  // the thread has just waited for a fetch or for room, for `bytes` nanoseconds
};

std::string_view event_kind_name(EventKind kind);

struct Event {
  uint64_t at = 0;         // a timestamp
  uint64_t extent_id = 0;  // kRead, kWrite, kAllocate, kFree
  uint64_t bytes = 0;      // of that extent; for kWait, nanoseconds
  uint32_t op = 0;         // kOpBegin, kOpEnd
  EventKind kind = EventKind::kOpBegin;
};

inline constexpr uint64_t kRingEvents = uint64_t{1} << 16;

// A ring of the newest events of a thread. Each op writes its thread's ring, so two rings share no
// cache line.
class alignas(64) EventRing {
 public:
  void append(const Event& event) {
    const uint64_t index = count_.load(std::memory_order_relaxed);
    uint64_t* words = words_.get() + index % kRingEvents * kWordsPerEvent;
    store(words[0], event.at);
    store(words[1], event.extent_id);
    store(words[2], event.bytes);
    store(words[3], uint64_t{event.op} << 8 | static_cast<uint64_t>(event.kind));
    count_.store(index + 1, std::memory_order_release);
  }
  /// Call when the ring's thread begins an op.
  void count_op() {
    op_count_.store(op_count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  /// The events from number `position` on that are still there, oldest first. `lost_count` receives
  /// how many are not.
  std::vector<Event> events_since(uint64_t position, uint64_t* lost_count) const;
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

 private:
  friend class Recorder;
  static constexpr uint64_t kWordsPerEvent = 4;
  struct FreeDeleter {
    void operator()(uint64_t* words) const { std::free(words); }
  };
  /// `older` is the ring made before this one.
  EventRing(uint32_t thread_index, const EventRing* older);

  // Release and acquire (plain moves on x86) tie each word to the count before it: a thread that
  // reads a word of an event also reads a count that includes all events before that one.
  static void store(uint64_t& word, uint64_t value) {
    std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
  }
  static uint64_t read(uint64_t& word) {
    return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire);
  }

  const uint32_t thread_index_;
  const EventRing* const older_;
  std::unique_ptr<uint64_t[], FreeDeleter> words_;
  // Only the ring's thread writes the two counts.
  std::atomic<uint64_t> count_{0};
  std::atomic<uint64_t> op_count_{0};  // of all threads that had the ring
};

struct ThreadEvents {
  uint32_t thread_index = 0;
  uint64_t lost_count = 0;  // overwritten before they were read
  std::vector<Event> events;
};

class Recorder {
 public:
  /// Lends this thread a ring until release_ring().
  EventRing* acquire_ring() TENCACHE_EXCLUDES(mutex_);
  void release_ring(EventRing* ring) TENCACHE_EXCLUDES(mutex_);
  /// How many ops all threads have begun. Takes no lock.
  uint64_t op_count() const;

  /// The number of an op, at least 1; the same name always has the same number.
  uint32_t register_op(std::string_view name) TENCACHE_EXCLUDES(mutex_);
  /// Returns "" for 0 and unknown numbers.
  std::string op_name(uint32_t op) const TENCACHE_EXCLUDES(mutex_);

  /// Notes what the program calls an extent, for those who read a trace; the last name counts.
  void name_extent(uint64_t extent_id, std::string_view name) TENCACHE_EXCLUDES(mutex_);
  /// Whether any extent has had a name. Costs one relaxed load.
  bool has_names() const { return has_names_.load(std::memory_order_relaxed); }
  /// Call when the extent is freed. Its name stays for traces until many others have ended after
  /// it.
  void end_name(uint64_t extent_id) TENCACHE_EXCLUDES(mutex_);
  std::map<uint64_t, std::string> extent_names() const TENCACHE_EXCLUDES(mutex_);

  std::vector<ThreadEvents> snapshot() const TENCACHE_EXCLUDES(mutex_);
  /// What was recorded since `positions`, which then move on. There is one position for each ring;
  /// new rings add theirs.
  std::vector<ThreadEvents> drain(std::vector<uint64_t>* positions) const TENCACHE_EXCLUDES(mutex_);
  const TimestampConverter& clock() const { return clock_; }

 private:
  const TimestampConverter clock_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<EventRing>> rings_ TENCACHE_GUARDED_BY(mutex_);
  std::atomic<const EventRing*> newest_ring_{nullptr};
  std::vector<EventRing*> idle_rings_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<std::string> op_names_ TENCACHE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, uint32_t> op_numbers_ TENCACHE_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> extent_names_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<uint64_t> ended_names_ TENCACHE_GUARDED_BY(mutex_);  // oldest first
  std::atomic<bool> has_names_{false};
};

}  // namespace tencache
