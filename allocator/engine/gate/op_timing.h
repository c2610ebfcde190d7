// SPDX-License-Identifier: Apache-2.0
//
// OpTiming: settles between which moments of its stream a tick is timed (engine/gate/op_timer.h).
//
// A tick's time begins once all that it waits for is queued, and ends where the next tick begins,
// whichever thread runs that one. So ops without extents belong to the tick before them. While its
// op is open, the span belongs to the thread. At the op's close the span gets an end and lies loose
// until the next tick takes it. If that tick is of the same stream, the end moves there. If it is
// of another one, the end stays, since the first stream may stand idle or be gone. At most one span
// of the whole device lies loose.
//
// A wait for memory does not count as computing, because the device may run dry. So it cuts a span
// in two. Both parts are reported as times of the same tick, and the learner adds them up
// (learn/tick_log.h).
//
// Threads: any; a ThreadState belongs to its thread. Threads that queue in one stream at the same
// moment may shift time between their ticks.
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
    size_t open_count = 0;          // of ops when that op had opened, itself included
    OpSampling sampling;
  };

  /// A span that a wait has cut, with what is needed to begin its second part after the wait.
  struct Cut {
    OpTimer::Span span;
    bool is_open = false;
  };

  /// With a null timer nothing is timed. The timer outlives this object.
  explicit OpTiming(OpTimer* timer) : timer_(timer) {}
  ~OpTiming();
  OpTiming(const OpTiming&) = delete;
  OpTiming& operator=(const OpTiming&) = delete;

  /// Call when a tick of the thread begins, before it queues anything that it waits for.
  void on_tick(ThreadState& thread, StreamSet streams) {
    if (timer_ == nullptr) return;
    note_newest(thread, streams);
    const bool has_loose = loose_.load(std::memory_order_relaxed) != nullptr;
    if (thread.span != nullptr || has_loose) [[unlikely]]
      end_before(thread, streams);
  }
  /// Call once all that the tick waits for is queued. `open_count` includes its own op.
  void begin_if_wanted(ThreadState& thread, uint64_t digest, uint64_t now, uint32_t op,
                       size_t open_count, StreamSet streams) {
    if (timer_ != nullptr && thread.sampling.wants(digest, now)) [[unlikely]]
      begin(thread, {streams, op, now}, open_count);
  }
  /// Call when an op of the thread closes. `open_count` includes it.
  void on_close(ThreadState& thread, size_t open_count) {
    if (thread.span != nullptr && thread.open_count == open_count) [[unlikely]]
      close(thread);
  }
  /// Call cut() before and go_on() after the thread waits for memory that work in `streams` needs.
  std::optional<Cut> cut(ThreadState& thread, StreamSet streams);
  void go_on(ThreadState& thread, const std::optional<Cut>& cut);

  /// Call when the thread ends.
  void drop(ThreadState& thread) const;

 private:
  void begin(ThreadState& thread, const OpTimer::Span& of, size_t open_count) const;
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
  // The thread of the newest tick in each stream. Any thread writes it; it is only compared.
  std::array<std::atomic<const ThreadState*>, std::numeric_limits<StreamSet>::digits>
      newest_in_stream_ = {};
};

}  // namespace tencache
