// SPDX-License-Identifier: Apache-2.0
//
// FreeMarks: until when a stream may still use memory that was freed on it. A program that is
// ahead of its GPU frees memory long before the GPU gets there, and goes on queueing. A thread that
// wants the frame waits for the moment of the free and for nothing that was queued since. An event
// per free would cost the program too much, so one serves a certain number of freed bytes. Frees
// are numbered, and a mark covers all lower-numbered frees of its stream. As long as nobody wants
// frames and memory is not scarce, there are no marks at all. Then the first thread to want a frame
// makes the mark, and waits for what was queued until then.
//
// Threads: any. mutex_ is held only for bookkeeping, never across a driver call.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "platform/cuda/stream_mark.h"
#include "platform/cuda/stream_numbers.h"
#include "platform/stream_set.h"

namespace tencache {

class FreeMarks {
 public:
  static constexpr uint64_t kNoMark = ~uint64_t{0};

  explicit FreeMarks(StreamNumbers& streams) : streams_(streams) {}

  /// Call when everything that uses the memory is queued and its owner frees it. Returns the number
  /// of this free: how many there were, of all owners, with it. With a set that is not one stream
  /// the free is over at once: those streams have been waited for. The free gets a mark once this
  /// many bytes were freed on the stream since the last one.
  uint64_t note_free(StreamSet owner, uint64_t bytes, uint64_t bytes_per_mark)
      TENCACHE_EXCLUDES(mutex_);

  /// Notes what the device has done since the last call. Marks each stream that has unfinished
  /// frees and no mark.
  void poll() TENCACHE_EXCLUDES(mutex_);
  /// Whether the stream is known to be done with what was freed under this number. The driver is
  /// not asked.
  bool is_over(StreamSet owner, uint64_t number) const TENCACHE_EXCLUDES(mutex_);
  /// The numbers of a stream's frees.
  struct Line {
    uint64_t freed = 0;  // the last one
    uint64_t over = 0;   // the last one that is known to be over, with all before it
  };
  Line line(StreamSet owner) const TENCACHE_EXCLUDES(mutex_);
  /// Waits until the stream is done with what was freed under this number. Returns false when that
  /// is unknown: the stream captures a graph, or the context is broken.
  bool wait(StreamSet owner, uint64_t number) TENCACHE_EXCLUDES(mutex_);

 private:
  struct Mark {
    uint64_t number = 0;  // the last free that it covers; numbers begin at 1
    StreamMark mark;
  };
  struct MarkedLine : Line {
    uint64_t unmarked_bytes = 0;  // freed since the last mark
    std::deque<Mark> marks;       // not reached yet, in order
  };

  std::vector<StreamSet> unfinished(bool are_without_mark) const TENCACHE_EXCLUDES(mutex_);
  void note_reached_of(StreamSet owner) TENCACHE_EXCLUDES(mutex_);
  /// Makes a mark that covers all frees of the stream so far.
  bool make(StreamSet owner) TENCACHE_EXCLUDES(mutex_);
  void note_reached(StreamSet owner, uint64_t number) TENCACHE_EXCLUDES(mutex_);

  StreamNumbers& streams_;

  mutable Mutex mutex_;
  uint64_t count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::unordered_map<StreamSet, MarkedLine> lines_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
