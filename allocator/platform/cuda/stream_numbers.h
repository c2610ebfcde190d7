// SPDX-License-Identifier: Apache-2.0
//
// StreamNumbers: numbers the streams that a program uses, in the order in which they are seen, so
// that the set of streams that have used a piece of memory is one word. The first 63 have a bit of
// their own; all later ones share the last bit, which stands for every one of them. Whoever asks
// about that bit asks about all of these: late for some, never wrong.
//
// A stream keeps its number. So its handle must stay valid as long as a set with it is asked about,
// or its destruction must be harmless, as for record_stream of PyTorch, whose own streams are never
// destroyed: the driver finishes the work of a destroyed stream but can no longer say when. It
// refuses the handle, which is a Status here. A new stream of the same handle has the same bit.
//
// Invariants:
//   1. An entry of the table is written once, its number before its key; readers see both or
//   neither.
//   2. A table that was published lives as long as the object: a reader may be in an old one.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver; set_of()
// takes it only for a stream that is new.
#pragma once

#include <cuda.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/stream_mark.h"
#include "platform/stream_set.h"

namespace tencache {

class StreamNumbers {
 public:
  /// The bit that stands for all streams that have none of their own.
  static constexpr StreamSet kShared = StreamSet{1} << 63;

  StreamNumbers(const Gpu& gpu, StreamMarks& marks);
  StreamNumbers(const StreamNumbers&) = delete;
  StreamNumbers& operator=(const StreamNumbers&) = delete;

  /// Whether the set is exactly one stream, so that work given to it runs in order.
  static bool is_one_stream(StreamSet set) { return std::has_single_bit(set) && set != kShared; }

  /// The set of this one stream, or kShared; numbers it when it is new. The NULL stream is one, and
  /// CU_STREAM_LEGACY another name of it. REQUIRES: not CU_STREAM_PER_THREAD, which is another
  /// stream on each thread.
  StreamSet set_of(CUstream stream) TENCACHE_EXCLUDES(mutex_);

  /// The same, or kNoStreams when it has no number: nobody may ask later about a stream that some
  /// library makes for a moment.
  StreamSet find_set_of(CUstream stream) const;

  /// The stream of a set of one; null when the set is no such one.
  CUstream stream_of(StreamSet set) const TENCACHE_EXCLUDES(mutex_);

  /// Whether it is capturing a CUDA graph, as far as the driver says.
  bool is_capturing(CUstream stream) const;

  /// Appends one mark for each stream of the set: everything that they have been given so far.
  /// kUnavailable when one of them is capturing a CUDA graph, which would take the event for its
  /// own. Nothing is appended when it fails.
  Status mark_all(StreamSet set, std::vector<StreamMark>* marks) TENCACHE_EXCLUDES(mutex_);

  /// What the stream is given from now on begins after the marks are reached. kUnavailable, and
  /// nothing is held back, when it is capturing; after another failure some marks may hold it back.
  /// REQUIRES: is_one_stream(stream), since a stream that is yet to get the shared bit could not be
  /// held back.
  Status hold_back(StreamSet stream, std::span<const StreamMark> marks) TENCACHE_EXCLUDES(mutex_);

  /// kUnavailable when one of them is capturing. REQUIRES: the thread's context is the GPU's.
  Status expect_no_capture(std::span<const CUstream> streams) const;

 private:
  struct Entry {
    std::atomic<uintptr_t> key;  // kNone until the number is there; released after it
    uint32_t number = 0;
  };
  // Open addressing, at most half full.
  struct Table {
    explicit Table(size_t entry_count);
    // kNoNumber when it is not there.
    uint32_t find(uintptr_t key) const;
    void add(uintptr_t key, uint32_t number);

    std::vector<Entry> entries;  // a power of two
  };

  static StreamSet set_of_number(uint32_t number) {
    return number < 63 ? StreamSet{1} << number : kShared;
  }
  StreamSet add_slow(CUstream stream, uintptr_t key) TENCACHE_EXCLUDES(mutex_);
  std::vector<CUstream> streams_of(StreamSet set) const TENCACHE_EXCLUDES(mutex_);

  const Gpu& gpu_;
  StreamMarks& marks_;

  // Written with mutex_ held, released; any thread reads. A reader that sees an old table misses
  // at most streams that are new, and then looks again with the lock held.
  std::atomic<const Table*> table_ = nullptr;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Table>> tables_ TENCACHE_GUARDED_BY(mutex_);  // the last is in use
  std::vector<CUstream> streams_ TENCACHE_GUARDED_BY(mutex_);               // by number
};

}  // namespace tencache
