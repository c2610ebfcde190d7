// SPDX-License-Identifier: Apache-2.0
#include "engine/gate/op_timing.h"

#include <bit>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tencache {
namespace {

/// Charges a thread for the time that timing takes.
class Charge {
 public:
  explicit Charge(OpSampling& sampling) : sampling_(sampling) {}
  ~Charge() { sampling_.charge(timestamp() - begun_at_); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  OpSampling& sampling_;
  const uint64_t begun_at_ = timestamp();
};

}  // namespace

OpTiming::~OpTiming() { finish_or_drop(take_loose(), false); }

void OpTiming::drop(ThreadState& thread) const {
  finish_or_drop(std::exchange(thread.span, nullptr), false);
}

void OpTiming::finish_or_drop(OpTimer::Span* span, bool has_ended) const {
  if (span == nullptr) return;
  if (has_ended) {
    timer_->finish(span);
  } else {
    timer_->drop(span);
  }
}

// Begins the op's span. If the timer refuses, the op stays untimed and its time is estimated later.
TENCACHE_SLOW void OpTiming::begin(ThreadState& thread, const OpTimer::Span& of,
                                   size_t open_count) const {
  const Charge charge(thread.sampling);
  thread.span = timer_->begin(of);
  thread.open_count = open_count;
}

// When its op closes, the span ends here for now: the thread may wait before its next tick, or go
// on in another stream. If another thread has given the stream a tick meanwhile, nobody knows which
// part of the work was this op's. The second check catches a tick that came too early to see the
// loose span.
TENCACHE_SLOW void OpTiming::close(ThreadState& thread) {
  const Charge charge(thread.sampling);
  OpTimer::Span* span = std::exchange(thread.span, nullptr);
  const StreamSet stream = span->streams;
  if (!is_newest(thread, stream) || !timer_->end(*span)) {
    timer_->drop(span);
    return;
  }
  lay_loose(span);
  if (!is_newest(thread, stream)) finish_or_drop(take_loose(), false);
}

void OpTiming::lay_loose(OpTimer::Span* span) {
  finish_or_drop(loose_.exchange(span, std::memory_order_acq_rel), true);
}

// Ends the spans before the next tick, which may lie within the op being timed. Where an open op
// goes on in a second stream, its end in the first is unknown, and its span is dropped.
TENCACHE_SLOW void OpTiming::end_before(ThreadState& thread, StreamSet streams) {
  const Charge charge(thread.sampling);
  if (OpTimer::Span* open = std::exchange(thread.span, nullptr)) {
    finish_or_drop(open, open->streams == streams && timer_->end(*open));
  }
  if (OpTimer::Span* loose = take_loose()) {
    finish_or_drop(loose, loose->streams != streams || timer_->end(*loose));
  }
}

TENCACHE_SLOW std::optional<OpTiming::Cut> OpTiming::cut(ThreadState& thread, StreamSet streams) {
  if (timer_ == nullptr) return std::nullopt;
  const bool is_open = thread.span != nullptr;
  OpTimer::Span* span = is_open ? std::exchange(thread.span, nullptr) : take_loose();
  if (span == nullptr) return std::nullopt;
  const Cut rest = {*span, is_open};
  if (!is_open && (span->streams & streams) == 0) {
    timer_->finish(span);
    return std::nullopt;
  }
  const bool has_ended = timer_->end(*span);
  finish_or_drop(span, has_ended);
  return has_ended ? std::optional(rest) : std::nullopt;
}

TENCACHE_SLOW void OpTiming::go_on(ThreadState& thread, const std::optional<Cut>& cut) {
  if (!cut) return;
  if (cut->is_open) {
    begin(thread, cut->span, thread.open_count);
    return;
  }
  OpTimer::Span* span = timer_->begin(cut->span);
  if (span == nullptr) return;
  if (timer_->end(*span)) {
    lay_loose(span);
  } else {
    timer_->drop(span);
  }
}

inline bool OpTiming::is_newest(const ThreadState& thread, StreamSet stream) const {
  return newest_in_stream_[std::countr_zero(stream)].load(std::memory_order_relaxed) == &thread;
}

}  // namespace tencache
