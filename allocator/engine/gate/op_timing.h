// SPDX-License-Identifier: Apache-2.0
//
// OpTiming: between which moments of its stream a tick is timed (engine/gate/op_timer.h).
//
// A tick's time begins when all that it waits for is queued, and ends where the next tick begins,
// whichever thread has that one: ops in between that name no extent belong to the tick before them.
// While its op is open the span is the thread's. Then it lies loose, with an end at its op's close,
// and the next tick takes it. If that tick is of the same stream, the end moves there; if it is of
// another one, the first stream may stand idle or be gone, and the end stays. At most one span of
// the whole device lies loose.
//
// A wait for memory is no computing, because the device may run dry. It cuts a span in two: both
// parts are told as times of the same tick, and the learner adds them up (learn/tick_stream.h).
//
// Threads: any; a ThreadState is its thread's. Threads that queue in one stream at the same moment
// may shift a time between their ticks.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "engine/gate/op_sampling.h"
#include "engine/gate/op_timer.h"
#include "platform/stream_set.h"

namespace tencache {

class OpTiming {
 public:
  struct ThreadState {
    OpTimer::Span* span = nullptr;  // of an open op
    size_t open_count = 0;          // while that op is open, itself included
    OpSampling sampling;
  };

  /// A span that a wait has cut: the part to be begun when the wait is over.
  struct Cut {
    uint32_t op = 0;
    uint64_t begun_at = 0;
    StreamSet streams = kNoStreams;
    bool is_open = false;
  };

  /// Null: nothing is timed. The timer outlives this.
  explicit OpTiming(OpTimer* timer) : timer_(timer) {}
  ~OpTiming();
  OpTiming(const OpTiming&) = delete;
  OpTiming& operator=(const OpTiming&) = delete;

  /// A tick of the thread begins, and has queued nothing yet that it waits for.
  void on_tick(ThreadState& thread, StreamSet streams) {
    if (timer_ == nullptr) return;
    note_newest(thread, streams);
    const bool has_loose = loose_.load(std::memory_order_relaxed) != nullptr;
    if (thread.span != nullptr || has_loose) [[unlikely]]
      end_before(thread, streams);
  }
  /// All that the tick waits for is queued. `open_count`: with its own.
  void begin_if_wanted(ThreadState& thread, uint64_t digest, uint64_t now, uint32_t op,
                       size_t open_count, StreamSet streams) {
    if (timer_ != nullptr && thread.sampling.wants(digest, now)) [[unlikely]]
      begin(thread, {op, now, streams}, open_count);
  }
  /// An op of the thread closes, which was the `open_count`th.
  void on_close(ThreadState& thread, size_t open_count) {
    if (thread.span != nullptr && thread.open_count == open_count) [[unlikely]]
      close(thread);
  }
  /// Around a wait of the thread for memory that work in `streams` needs.
  std::optional<Cut> cut(ThreadState& thread, StreamSet streams);
  void go_on(ThreadState& thread, const std::optional<Cut>& cut);

  /// The thread ends.
  void drop(ThreadState& thread) const;

 private:
  void begin(ThreadState& thread, const Cut& of, size_t open_count) const;
  void close(ThreadState& thread);
  void end_before(ThreadState& thread, StreamSet streams);
  void note_newest(const ThreadState& thread, StreamSet streams) {
    for (StreamSet left = streams; left != kNoStreams; left &= left - 1) {
      std::atomic<const ThreadState*>& newest = newest_in_stream_[std::countr_zero(left)];
      // A thread that has the stream to itself writes nothing.
      if (newest.load(std::memory_order_relaxed) != &thread) {
        newest.store(&thread, std::memory_order_relaxed);
      }
    }
  }
  bool is_newest(const ThreadState& thread, StreamSet stream) const;  // REQUIRES: one stream
  void lay_loose(OpTimer::Span* span);
  OpTimer::Span* take_loose() { return loose_.exchange(nullptr, std::memory_order_acq_rel); }
  void finish_or_drop(OpTimer::Span* span, bool has_ended) const;

  OpTimer* const timer_;
  std::atomic<OpTimer::Span*> loose_{nullptr};
  // Whose the newest tick in each stream is. Written by any thread, compared only.
  std::array<std::atomic<const ThreadState*>, std::numeric_limits<StreamSet>::digits>
      newest_in_stream_ = {};
};

}  // namespace tencache
