// SPDX-License-Identifier: Apache-2.0
//
// The rules of a transfer that do not depend on how bytes move: what a short answer means, which
// errors are repeated and how often, in which order pieces are reported. One thread runs them.
#include "tier/piece_sequence.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tencache {
namespace {

// A request that meets EINTR or EAGAIN again and again must end in an error, not in a loop.
constexpr unsigned kRepeatsMax = 1000;

// Any other error of a write may be gone a moment later, too, and a batch of hundreds of pieces
// would not get through where each of them has one try. (Reads are repeated as a whole,
// engine/move/slot_reader.cpp.)
constexpr unsigned kWriteRepeatsMax = 4;

void check_segment(const IoSegment& segment) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(segment.memory) % kIoAlignment == 0 &&
                          segment.offset % kIoAlignment == 0 && segment.bytes % kIoAlignment == 0;
  TENCACHE_CHECK(is_aligned, "segment of %lu bytes at offset %lu, memory %p", segment.bytes,
                 segment.offset, static_cast<void*>(segment.memory));
}

}  // namespace

PieceSequence::PieceSequence(IoDirection direction, std::span<const IoSegment> segments,
                             size_t window, PieceObserver* observer, BounceRing* bounce_ring)
    : direction_(direction),
      segments_(segments.begin(), segments.end()),
      observer_(observer),
      bounce_ring_(bounce_ring),
      ring_(std::min(window, kWindowPiecesMax)) {
  TENCACHE_CHECK(window > 0);
  for (const IoSegment& segment : segments_) check_segment(segment);
  if (has_segment_without_memory(segments_)) {
    TENCACHE_CHECK(direction_ == IoDirection::kWrite && observer_ != nullptr,
                   "a segment without memory needs a write and an observer that brings the bytes");
    TENCACHE_CHECK(bounce_ring_ != nullptr && bounce_ring_->pieces() >= ring_.size(),
                   "no buffers for a window of %zu pieces", ring_.size());
  }
  while (segment_ < segments_.size() && segments_[segment_].bytes == 0) ++segment_;
}

bool PieceSequence::is_active() const {
  if (in_flight_ > 0) return true;
  if (reported_ < handed_out_ && at(reported_).is_complete) return true;
  return !is_stopped() && segment_ < segments_.size();
}

bool PieceSequence::has_segment() {
  if (segment_ < segments_.size()) return true;
  IoSegment segment;
  if (observer_ == nullptr || !observer_->next_segment(&segment)) return false;
  check_segment(segment);
  TENCACHE_CHECK(segment.memory != nullptr && segment.bytes > 0);
  segments_.push_back(segment);
  return true;
}

Piece* PieceSequence::next() {
  if (is_stopped() || handed_out_ - reported_ == ring_.size() || !has_segment()) return nullptr;
  const IoSegment& segment = segments_[segment_];
  Piece piece;
  piece.segment = segment_;
  piece.is_bounced = segment.memory == nullptr;
  piece.memory =
      piece.is_bounced ? bounce_ring_->buffer(handed_out_) : segment.memory + segment_done_;
  piece.offset = segment.offset + segment_done_;
  piece.bytes = static_cast<size_t>(std::min<uint64_t>(kPieceBytes, segment.bytes - segment_done_));
  if (observer_ != nullptr &&
      !observer_->before_submit(segment_, piece.offset, piece.memory, piece.bytes)) {
    result_.cancelled = true;
    return nullptr;
  }
  segment_done_ += piece.bytes;
  while (segment_ < segments_.size() && segment_done_ == segments_[segment_].bytes) {
    ++segment_;
    segment_done_ = 0;
  }
  ++in_flight_;
  Piece& place = at(handed_out_++);
  place = piece;
  return &place;
}

bool PieceSequence::settle(Piece& piece, int64_t answer) {
  const bool is_refused_for_now = answer == -EINTR || answer == -EAGAIN;
  if (is_refused_for_now && !is_stopped() && ++piece.repeats <= kRepeatsMax) return true;
  if (is_refused_for_now && is_stopped()) {
    --in_flight_;
    return false;
  }
  const bool may_be_repeated = direction_ == IoDirection::kWrite && !is_stopped();
  if (answer < 0 && may_be_repeated && ++piece.repeats <= kWriteRepeatsMax) return true;
  if (answer < 0) {
    abandon(piece, static_cast<int>(-answer));
    return false;
  }
  // Only whole blocks count: with O_DIRECT a request cannot begin inside a block.
  const size_t moved = std::min(static_cast<size_t>(answer), piece.rest_bytes());
  const size_t progress = moved - moved % kIoAlignment;
  piece.done_bytes += progress;
  result_.bytes += progress;
  piece.repeats = 0;
  if (piece.rest_bytes() == 0) {
    piece.is_complete = true;
    --in_flight_;
    return false;
  }
  if (progress > 0 && !is_stopped()) return true;
  --in_flight_;
  if (progress == 0 && direction_ == IoDirection::kRead) {
    fail({StatusCode::kDataLoss, attempt(piece) + ": the file ends before that"});
  } else if (progress == 0) {
    fail({StatusCode::kIoError, attempt(piece) + ": the kernel took no byte and gave no reason"});
  }
  return false;
}

void PieceSequence::abandon(Piece& piece, int error_number) {
  --in_flight_;
  fail(status_from_errno(error_number, attempt(piece)));
}

bool PieceSequence::report_one() {
  if (reported_ == handed_out_ || !at(reported_).is_complete) return false;
  const Piece& piece = at(reported_);
  if (observer_ != nullptr) observer_->after_complete(piece.segment, piece.offset, piece.bytes);
  ++reported_;
  return true;
}

std::string PieceSequence::attempt(const Piece& piece) const {
  const char* verb = direction_ == IoDirection::kRead ? "cannot read " : "cannot write ";
  return verb + format_bytes(piece.rest_bytes()) + " at file offset " +
         std::to_string(piece.rest_offset());
}

void PieceSequence::fail(Status status) {
  // Later failures are often consequences of the first.
  if (result_.status.is_ok()) result_.status = std::move(status);
}

}  // namespace tencache
