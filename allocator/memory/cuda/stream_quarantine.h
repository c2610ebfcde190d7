// SPDX-License-Identifier: Apache-2.0
//
// StreamQuarantine: holds memory that the program has freed while streams may still use it. Each
// item waits until all of its streams have reached marks that were made after the free. Then a poll
// gives it back to its owner, a pool or a heap. A mark that cannot be made, because a stream
// captures a graph or the driver refuses, is tried again by the next poll.
//
// Invariants:
//   1. An item has a mark on every stream it waits for, or none at all.
//   2. One thread polls at a time, and what it looks at is in no list meanwhile. Another thread may
//      wait for the end of the poll, since what the waiting thread needs may be among the finds.
//
// Threads: any. mutex_ is held only for bookkeeping, never across a call of the driver or the
// owner.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"

namespace tencache {

/// Streams of one GPU.
struct StreamUse {
  StreamNumbers* gpu = nullptr;
  StreamSet streams = kNoStreams;
};
using StreamUses = std::vector<StreamUse>;  // each GPU once

/// What a poll may wait for.
enum class Patience : uint8_t {
  kNone,           // nothing; it leaves polling to a thread that is at it
  kForThreads,     // another thread that polls
  kForOneStream,   // if nothing is over: the streams of the first item that can be waited for
  kForAllStreams,  // the streams of every item
};

/// What happens to items whose streams fail.
enum class OnFailure : uint8_t {
  kKeep,  // they stay, and one warning says so
  kEnd,   // a broken context's work is over (StreamMark::poll); the owner hears of it elsewhere
};

template <typename Item>
class StreamQuarantine {
 public:
  /// `what` names the memory in messages.
  StreamQuarantine(const char* what, OnFailure on_failure) : what_(what), on_failure_(on_failure) {}

  /// Adds an item that was freed and waits for these streams. Returns true when enough has gathered
  /// since the last poll that it is time for another.
  bool add(Item item, StreamUses uses) TENCACHE_EXCLUDES(mutex_) {
    Entry entry = {std::move(item), std::move(uses), {}, false, false};
    (void)mark(entry);
    return push(std::move(entry));
  }
  /// Adds an item likewise, with marks that the caller has made on these streams.
  bool add(Item item, StreamUses uses, std::vector<StreamMark> marks) TENCACHE_EXCLUDES(mutex_) {
    return push({std::move(item), std::move(uses), std::move(marks), true, false});
  }

  /// Looks at everything that waits, and passes the items whose wait is over to
  /// `release(std::vector<Item>)`.
  /// Returns whether something may have become free, by this thread or by one it waited for.
  template <typename Release>
  bool poll(Patience patience, const Release& release) TENCACHE_EXCLUDES(mutex_) {
    std::vector<Entry> looked_at;
    bool has_waited = false;
    {
      MutexLock lock(mutex_);
      if (is_polling_ && patience == Patience::kNone) return false;
      for (; is_polling_; has_waited = true) has_polled_.wait(mutex_);
      const bool is_served = has_waited && patience == Patience::kForOneStream;
      if (entries_.empty() || is_served) return has_waited;
      is_polling_ = true;
      looked_at.swap(entries_);
    }
    StreamUses late;
    bool any_over = false;
    for (Entry& entry : looked_at) {
      entry.is_over = let_end(entry, patience == Patience::kForAllStreams, &late);
      any_over |= entry.is_over;
    }
    if (!any_over && patience == Patience::kForOneStream) any_over = wait_for_one(looked_at);
    const auto first_left = std::stable_partition(looked_at.begin(), looked_at.end(),
                                                  [](const Entry& entry) { return entry.is_over; });
    std::vector<Item> over;
    for (auto entry = looked_at.begin(); entry != first_left; ++entry) {
      over.push_back(std::move(entry->item));
    }
    if (any_over) release(std::move(over));
    // The marks that are no longer needed are destroyed with `looked_at`, after the lock is
    // released.
    MutexLock lock(mutex_);
    entries_.insert(entries_.begin(), std::make_move_iterator(first_left),
                    std::make_move_iterator(looked_at.end()));
    size_.store(entries_.size(), std::memory_order_relaxed);
    poll_at_ = std::max(kPollAtMin, 2 * entries_.size());
    is_polling_ = false;
    has_polled_.notify_all();
    return any_over || has_waited;
  }

  /// Call with each allocation. Returns whether it is time for a poll, which is at every nth call
  /// where n items wait. So an item whose wait is over is used again soon, and an allocation pays
  /// for a look at one item.
  bool is_turn() {
    const size_t waiting = size_.load(std::memory_order_relaxed);
    if (waiting == 0) [[likely]]
      return false;
    if (calls_.fetch_add(1, std::memory_order_relaxed) + 1 < waiting) return false;
    calls_.store(0, std::memory_order_relaxed);
    return true;
  }

  /// Calls `visit(const Item&)` for every waiting item that no thread is polling at this moment.
  template <typename Visit>
  void visit(const Visit& visit) const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const Entry& entry : entries_) visit(entry.item);
  }

  /// Warns once, because a failure may recur with every allocation. A captured graph is no failure.
  void note_failure(const Status& status) {
    if (on_failure_ == OnFailure::kEnd) return;
    if (status.code() == StatusCode::kUnavailable) {
      TENCACHE_LOG_DEBUG("Freed %s waits longer. %s", what_, status.message().c_str());
      return;
    }
    if (has_warned_.exchange(true, std::memory_order_relaxed)) return;
    TENCACHE_LOG_WARNING("Freed %s cannot be used again for now. %s", what_,
                         status.message().c_str());
  }

 private:
  struct Entry {
    Item item;
    StreamUses uses;
    std::vector<StreamMark> marks;
    bool has_marks = false;
    bool is_over = false;
  };
  static constexpr size_t kPollAtMin = 64;

  bool push(Entry&& entry) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    entries_.push_back(std::move(entry));
    size_.fetch_add(1, std::memory_order_relaxed);
    return entries_.size() >= poll_at_;
  }

  // Makes the marks where there are none. Returns whether there are any now.
  bool mark(Entry& entry) {
    if (entry.has_marks) return true;
    for (const StreamUse& use : entry.uses) {
      const Status marked = use.gpu->mark_all(use.streams, &entry.marks);
      if (marked.is_ok()) continue;
      note_failure(marked);
      entry.marks.clear();
      return false;
    }
    entry.has_marks = true;
    return true;
  }

  // Returns whether the mark is reached; first waits for it if it may.
  Result<bool> await_or_poll(const StreamMark& mark, bool may_wait) const {
    const bool is_ended_by_failure = on_failure_ == OnFailure::kEnd;
    if (!may_wait) return is_ended_by_failure ? mark.poll() : mark.is_reached();
    if (is_ended_by_failure) {
      mark.await();
    } else {
      TENCACHE_RETURN_IF_ERROR(mark.wait());
    }
    return true;
  }

  // Returns whether all streams of the entry have reached their marks; first waits if it may.
  // `late` holds streams with a mark that was not reached a moment ago. Their later marks are not
  // reached either, and their earlier ones can wait for the next poll. So each stream is asked at
  // most once for a mark that it has not reached.
  bool let_end(Entry& entry, bool may_wait, StreamUses* late) {
    if (!mark(entry)) return false;
    for (const StreamUse& use : entry.uses) {
      for (const StreamUse& other : *late) {
        if (use.gpu == other.gpu && (use.streams & other.streams) != kNoStreams) return false;
      }
    }
    for (const StreamMark& mark : entry.marks) {
      const Result<bool> reached = await_or_poll(mark, may_wait);
      if (!reached.is_ok()) note_failure(reached.status());
      if (!reached.is_ok()) return false;
      if (reached.value()) continue;
      const StreamUse& only = entry.uses.front();
      if (entry.uses.size() == 1 && StreamNumbers::is_one_stream(only.streams)) {
        late->push_back(only);
      }
      return false;
    }
    return true;
  }

  // Waits for the streams of the first entry that can be waited for. Returns false when there is
  // none.
  bool wait_for_one(std::vector<Entry>& entries) {
    return std::ranges::any_of(entries, [&](Entry& entry) {
      StreamUses late;
      return entry.is_over = let_end(entry, true, &late);
    });
  }

  const char* const what_;
  const OnFailure on_failure_;
  std::atomic<bool> has_warned_ = false;  // relaxed: it only makes one thread warn
  // How many items wait, those that a thread looks at included, and how often is_turn() has found
  // some since the last turn. Relaxed accesses suffice, since a poll more or less does no harm.
  std::atomic<size_t> size_ = 0;
  std::atomic<size_t> calls_ = 0;

  mutable Mutex mutex_;
  CondVar has_polled_;
  bool is_polling_ TENCACHE_GUARDED_BY(mutex_) = false;      // a thread looks at what waits
  std::vector<Entry> entries_ TENCACHE_GUARDED_BY(mutex_);   // oldest free first
  size_t poll_at_ TENCACHE_GUARDED_BY(mutex_) = kPollAtMin;  // the number that calls for a poll
};

}  // namespace tencache
