// SPDX-License-Identifier: Apache-2.0
//
// OpTimer: times ops on a device that only queues them, where the host's clock says nothing. The
// gate picks some ticks (engine/gate/op_sampling.h) and has the moments noted between which the
// op's streams do its work (engine/gate/op_timing.h); the learner asks later how far they lay
// apart.
//
// A span is the timer's again once it is finished or dropped; the timer outlives its spans. Where
// noting a moment fails, the op simply is not timed.
//
// Threads: any; a span has one at a time, and another one may end it than began it.
#pragma once

#include <cstdint>
#include <vector>

#include "learn/tick_stream.h"
#include "platform/stream_set.h"

namespace tencache {

class OpTimer {
 public:
  struct Span {
    StreamSet streams = kNoStreams;
    uint32_t op = 0;
    uint64_t begun_at = 0;  // of the op
  };

  OpTimer() = default;
  virtual ~OpTimer() = default;
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  /// Starts a span: what the stream is given from now on belongs to it. Null where the moment
  /// cannot be noted, and for several streams or none.
  virtual Span* begin(uint32_t op, uint64_t begun_at, StreamSet streams) = 0;
  /// Ends the span here. May be called again, to extend it. False: the span is to be dropped.
  virtual bool end(Span& span) = 0;
  /// REQUIRES: it has ended.
  virtual void finish(Span* span) = 0;
  virtual void drop(Span* span) = 0;

  /// The finished spans that the device has passed, each told once.
  virtual std::vector<OpTime> take_finished() = 0;
};

}  // namespace tencache
