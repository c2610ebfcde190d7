// SPDX-License-Identifier: Apache-2.0
//
// StreamNumbers: numbers the streams that a program uses, in the order in which they are seen, so
// that the set of streams that have used a piece of memory is one word. The first 63 have a bit of
// their own; all later ones share the last bit. A question about that bit is about all of these
// streams: the answer comes late for some, and is never wrong.
//
// A stream keeps its number. So its handle must stay valid while sets with it are in question, as
// for record_stream of PyTorch, whose own streams are never destroyed. The driver finishes the work
// of a destroyed stream but can no longer say when. Some drivers refuse the handle, which is a
// Status here; 580 ends the process. A new stream of the same handle has the same bit.
//
// Invariants:
//   1. An entry of the table is written once, its number before its key, so that readers see both
//      or neither.
//   2. A published table lives as long as the object, because readers may still be in it.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver; set_of()
// takes it only for a new stream.
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
  /// The bit of all streams that have none of their own.
  static constexpr StreamSet kShared = StreamSet{1} << 63;

  StreamNumbers(const Gpu& gpu, StreamMarks& marks);
  StreamNumbers(const StreamNumbers&) = delete;
  StreamNumbers& operator=(const StreamNumbers&) = delete;

  /// Whether the set is exactly one stream, so that work given to it runs in order.
  static bool is_one_stream(StreamSet set) { return std::has_single_bit(set) && set != kShared; }

  /// The set of this one stream, or kShared; numbers a new stream. The NULL stream is a stream, and
  /// CU_STREAM_LEGACY another name of it. REQUIRES: not CU_STREAM_PER_THREAD, which is a different
  /// stream on each thread.
  StreamSet set_of(CUstream stream) TENCACHE_EXCLUDES(mutex_);

  /// The same, or kNoStreams for a stream without a number: a library may have made the stream for
  /// a moment, and its handle must not be used later.
  StreamSet find_set_of(CUstream stream) const;

  /// The stream of a set of one; null for any other set.
  CUstream stream_of(StreamSet set) const TENCACHE_EXCLUDES(mutex_);

  /// Whether it is capturing a CUDA graph, as far as the driver says.
  bool is_capturing(CUstream stream) const;

  /// Appends one mark for each stream of the set, for all work they have been given so far.
  /// kUnavailable when one of them is capturing a CUDA graph, which would take the event for its
  /// own. Appends nothing on failure.
  Status mark_all(StreamSet set, std::vector<StreamMark>* marks) TENCACHE_EXCLUDES(mutex_);

  /// Work that the stream is given from now on begins after the marks are reached. kUnavailable,
  /// with nothing held back, when it is capturing; after another failure some marks may hold it
  /// back. REQUIRES: is_one_stream(stream), since a stream that has yet to get the shared bit could
  /// not be held back.
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
    // kNoNumber when the table does not have the key.
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

  // Written with mutex_ held, released; any thread reads. A reader with an old table misses at most
  // new streams, and then looks again with the lock held.
  std::atomic<const Table*> table_ = nullptr;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Table>> tables_ TENCACHE_GUARDED_BY(mutex_);  // the last is in use
  std::vector<CUstream> streams_ TENCACHE_GUARDED_BY(mutex_);               // by number
};

}  // namespace tencache
