// SPDX-License-Identifier: Apache-2.0
//
// OpTimer: times ops on a device that only queues them, where the host's clock says nothing. The
// gate picks some ticks (engine/gate/op_sampling.h) and has two moments noted, between which the
// op's stream does its work (engine/gate/op_timing.h). The learner asks later how far apart they
// lay. A second timer does the same for the device's waits (engine/gate/device_waits.h).
//
// A span returns to the timer once it is finished or dropped; the timer outlives its spans. Where
// noting a moment fails, the op is simply not timed.
//
// Threads: any. One thread at a time uses a span; a different one may end it.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/tick_log.h"
#include "platform/stream_set.h"

namespace tencache {

class OpTimer {
 public:
  struct Span {
    StreamSet streams = kNoStreams;
    uint32_t op = 0;
    uint64_t begun_at = 0;  // of the op; of a wait, its number
  };

  OpTimer() = default;
  virtual ~OpTimer() = default;
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  /// Starts the span that `of` describes. All work that its stream is given from now on belongs to
  /// the span. Returns null where the moment cannot be noted, and for several streams or none.
  virtual Span* begin(const Span& of) = 0;
  /// Ends the span here; a further call extends it. Where this returns false, the caller drops the
  /// span.
  virtual bool end(Span& span) = 0;
  /// REQUIRES: the span has ended.
  virtual void finish(Span* span) = 0;
  virtual void drop(Span* span) = 0;

  /// Times below this are as good as none.
  virtual uint64_t resolution_ns() const { return 0; }

  /// The times of finished spans that the device has passed. Each is returned once.
  virtual std::vector<OpTime> take_finished() = 0;
};

}  // namespace tencache
