// SPDX-License-Identifier: Apache-2.0
//
// StreamNumbers: numbers the streams that a program uses, in the order in which they are seen, so
// that the set of streams that have used a piece of memory is one word. The first 63 have a bit of
// their own; all later ones share the last bit. A question about that bit is about all of these
// streams: the answer comes late for some, and is never wrong.
//
// A stream keeps its number, and sets with it may be asked about long after its last use. PyTorch's
// own streams are never destroyed, but a program may destroy one that it made itself. The driver
// finishes the work of a destroyed stream, but ends the process when it is given the handle again.
// So the end of a stream must be told (end_everywhere(), as the launch guard tells it): a last mark
// then covers the stream's work, and nobody uses the handle any more. Where nobody tells, a stream
// must outlive the memory that it has used. A new stream with the handle of an old one has the old
// one's number, and so its memory; the new one first waits, on the device, for the old one's work.
//
// Invariants:
//   1. The key of a table's entry never changes once it is there, and is written after the number,
//      so that readers see both or neither.
//   2. A published table lives as long as the object, because readers may still be in it.
//   3. The driver is given the handle of a numbered stream only by a caller who has just named that
//      stream, or while an InUse holds it.
//
// Threads: any. mutex_ is held for bookkeeping only, never across a call of the driver; set_of()
// takes it only for a stream that is new.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  ~StreamNumbers();
  StreamNumbers(const StreamNumbers&) = delete;
  StreamNumbers& operator=(const StreamNumbers&) = delete;

  /// Whether the set is exactly one stream, so that work given to it runs in order.
  static bool is_one_stream(StreamSet set) { return has_one_bit(set) && set != kShared; }

  /// Returns the set of this one stream, or kShared, and numbers a new stream. The NULL stream is a
  /// stream, and CU_STREAM_LEGACY is another name of it. REQUIRES: the stream is not
  /// CU_STREAM_PER_THREAD, which is a different stream on each thread.
  StreamSet set_of(CUstream stream) TENCACHE_EXCLUDES(mutex_);

  /// What set_of() returns, or kNoStreams for a stream that has no number, such as one that a
  /// library has made for a moment.
  StreamSet find_set_of(CUstream stream) const;

  /// The handle of a set of one, not for the driver. Returns null for any other set.
  CUstream stream_of(StreamSet set) const TENCACHE_EXCLUDES(mutex_);

  /// Call before the stream is destroyed. Where the program destroys it, call end_everywhere().
  /// After the call nobody gives the handle to the driver any more. Does nothing for a stream
  /// without a number.
  void end(CUstream stream) TENCACHE_EXCLUDES(mutex_);
  /// Does what end() does, for all objects of the process.
  static void end_everywhere(CUstream stream);

  /// Whether the stream is capturing a CUDA graph, as far as the driver says.
  bool is_capturing(CUstream stream) const;
  /// Sets the calling thread's mode and returns the one before. Returns nullopt where the driver
  /// refuses.
  std::optional<CUstreamCaptureMode> exchange_capture_mode(CUstreamCaptureMode mode) const;

  /// Appends one mark for each stream of the set, for all work that the stream has been given so
  /// far, but none for a destroyed stream whose work is known to be done. Returns kUnavailable when
  /// one of the streams is capturing a CUDA graph, which would take the event for its own. Appends
  /// nothing on failure.
  Status mark_all(StreamSet set, std::vector<StreamMark>* marks) TENCACHE_EXCLUDES(mutex_);

  /// Work that the stream is given from now on begins after the marks are reached. Returns
  /// kUnavailable, and holds nothing back, when the stream is capturing or was destroyed; after
  /// another failure some marks may hold it back. REQUIRES: is_one_stream(stream), since a stream
  /// that has yet to get the shared bit could not be held back.
  Status hold_back(StreamSet stream, std::span<const StreamMark> marks) TENCACHE_EXCLUDES(mutex_);

  /// Records the event in the stream. Returns false when the set is not one stream, when that
  /// stream is capturing or was destroyed, or when the driver refuses.
  bool record(CUevent event, StreamSet stream) TENCACHE_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::atomic<uintptr_t> key;        // kNone until the number is there; released after it
    std::atomic<uint32_t> number = 0;  // with kEnded while the stream of that handle is destroyed
  };
  // A hash table of the numbers, by open addressing. It is at most half full.
  struct Table {
    explicit Table(size_t entry_count);
    // Returns kNoNumber when the table does not have the key.
    uint32_t find(uintptr_t key) const;
    // Gives a key its number, or another one.
    void set(uintptr_t key, uint32_t number);

    std::vector<Entry> entries;  // a power of two
  };

  struct Stream {
    CUstream handle = nullptr;
    uint32_t users = 0;      // threads that may give the handle to the driver
    bool has_ended = false;  // it is destroyed, and the handle not in use again
    StreamMark last = {};    // once it has ended: after all its work; of no stream when reached
  };
  class InUse;

  static StreamSet set_of_number(uint32_t number) {
    return number < 63 ? StreamSet{1} << number : kShared;
  }
  StreamSet set_of_slow(CUstream stream, uintptr_t key) TENCACHE_EXCLUDES(mutex_);
  StreamSet add(CUstream stream, uintptr_t key) TENCACHE_REQUIRES(mutex_);
  StreamSet take_over(CUstream stream, uintptr_t key, uint32_t number) TENCACHE_EXCLUDES(mutex_);
  void let_follow(CUstream stream, const StreamMark& last) const;
  StreamMark last_mark(CUstream stream) const;
  void forget_reached(uint32_t number, const StreamMark& last) TENCACHE_EXCLUDES(mutex_);
  // Returns kUnavailable when one of them is capturing. REQUIRES: the thread's context is the
  // GPU's.
  Status expect_no_capture(std::span<const CUstream> streams) const;

  const Gpu& gpu_;
  StreamMarks& marks_;

  // The table in use. A thread that holds mutex_ stores the pointer with release; any thread reads
  // it. A reader with an old table misses at most new streams, and then looks again with the lock
  // held.
  std::atomic<const Table*> table_ = nullptr;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Table>> tables_ TENCACHE_GUARDED_BY(mutex_);  // the last is in use
  std::vector<Stream> streams_ TENCACHE_GUARDED_BY(mutex_);                 // by number
  CondVar is_unused_;
};

}  // namespace tencache
