// SPDX-License-Identifier: Apache-2.0
//
// EventTimer: times an op, or a wait, on a GPU by two events. They are recorded in the op's stream
// and compared once the device has reached both. Nobody waits for events, and a stream that
// captures a graph gets none. Events are reused; there are at most kSpansMax pairs, and while all
// of them are in use no further op is timed.
//
// Only ops of one stream are timed. A span whose stream the program has destroyed gets no end.
//
// Threads: any, as with OpTimer. mutex_ is held only for bookkeeping; of all driver calls, only the
// destructor's are made with it held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/gate/op_timer.h"
#include "platform/cuda/driver_api.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/stream_numbers.h"

namespace tencache {

class EventTimer final : public OpTimer {
 public:
  static constexpr size_t kSpansMax = 512;

  /// Times below this are as good as none: two events with nothing between them lie some
  /// microseconds apart on a GPU.
  static constexpr uint64_t kResolutionNs = 10'000;

  /// `gpu` and `streams` outlive the timer.
  EventTimer(const Gpu& gpu, StreamNumbers& streams, uint64_t resolution_ns = kResolutionNs)
      : gpu_(gpu), streams_(streams), resolution_ns_(resolution_ns) {}
  /// REQUIRES: no thread uses the timer any more. Unfinished spans are lost.
  ~EventTimer() override;

  Span* begin(const Span& of) override;
  bool end(Span& span) override;
  void finish(Span* span) override TENCACHE_EXCLUDES(mutex_);
  void drop(Span* span) override TENCACHE_EXCLUDES(mutex_);
  uint64_t resolution_ns() const override { return resolution_ns_; }
  std::vector<OpTime> take_finished() override TENCACHE_EXCLUDES(mutex_);

 private:
  struct EventSpan final : Span {
    CUevent begun = nullptr;
    CUevent ended = nullptr;
  };

  EventSpan* take_free() TENCACHE_EXCLUDES(mutex_);
  bool ensure_events(EventSpan& span) const;

  const Gpu& gpu_;
  StreamNumbers& streams_;
  const uint64_t resolution_ns_;
  Mutex mutex_;
  std::vector<std::unique_ptr<EventSpan>> spans_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<EventSpan*> free_ TENCACHE_GUARDED_BY(mutex_);
  std::deque<EventSpan*> finished_ TENCACHE_GUARDED_BY(mutex_);  // in the order of finish()
};

}  // namespace tencache
