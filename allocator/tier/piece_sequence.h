// SPDX-License-Identifier: Apache-2.0
//
// PieceSequence: the bookkeeping of one transfer, shared by all channels. It cuts the segments into
// pieces, hands them out in order, judges the kernel's answers (done, continue, repeat, failed),
// and reports completed pieces to the observer in order. A channel only moves bytes.
//
// Pieces live in a ring of `window` places, at most kWindowPiecesMax. A piece leaves the ring when
// it is reported, so fewer than `window` later pieces pass a slow one. Pointers to a piece are
// stable while it is in flight, and so is its buffer of the bounce ring, which has as many places.
//
// Invariants:
//   1. in_flight() counts the pieces handed out and not yet settled as done or failed.
//   2. After a failure or a cancellation no piece is handed out.
//
// Threads: one, the caller of transfer().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tier/bounce_ring.h"
#include "tier/io_channel.h"

namespace tencache {

struct Piece {
  size_t segment = 0;
  char* memory = nullptr;
  uint64_t offset = 0;
  size_t bytes = 0;
  size_t done_bytes = 0;  // a prefix, multiple of kIoAlignment
  unsigned repeats = 0;   // fruitless attempts in a row
  bool is_complete = false;
  bool is_bounced = false;  // memory belongs to the bounce ring

  char* rest_memory() const { return memory + done_bytes; }
  uint64_t rest_offset() const { return offset + done_bytes; }
  size_t rest_bytes() const { return bytes - done_bytes; }
};

class PieceSequence {
 public:
  /// REQUIRES: memory, offset and bytes of every segment are multiples of kIoAlignment; window > 0.
  /// `observer` and `bounce_ring` may be null where every segment has memory. Otherwise this is a
  /// write, and the ring has at least as many buffers as the window has pieces.
  PieceSequence(IoDirection direction, std::span<const IoSegment> segments, size_t window,
                PieceObserver* observer, BounceRing* bounce_ring);

  /// Whether anything is left to hand out, to await or to report.
  bool is_active() const;

  /// Returns the next piece, with the observer's consent. Returns null when there is none, when the
  /// window is full, or after a failure or cancellation.
  Piece* next();

  /// Judges the kernel's answer to the request for the rest of `piece`: bytes moved, or -errno.
  /// Returns true when the rest must be requested again.
  bool settle(Piece& piece, int64_t answer);

  /// Ends the transfer for a piece that could not be requested at all.
  void abandon(Piece& piece, int error_number);

  /// Reports the first piece not reported yet, if it is complete; else returns false.
  bool report_one();

  size_t in_flight() const { return in_flight_; }
  TransferResult take_result() { return std::move(result_); }

 private:
  std::string attempt(const Piece& piece) const;
  void fail(Status status);
  bool has_segment();
  Piece& at(uint64_t sequence) { return ring_[sequence % ring_.size()]; }
  const Piece& at(uint64_t sequence) const { return ring_[sequence % ring_.size()]; }
  bool is_stopped() const { return result_.cancelled || !result_.status.is_ok(); }

  const IoDirection direction_;
  std::vector<IoSegment> segments_;  // segments that the observer added come last
  PieceObserver* const observer_;
  BounceRing* const bounce_ring_;

  size_t segment_ = 0;         // where the next piece is cut
  uint64_t segment_done_ = 0;  // bytes of it that are cut already
  std::vector<Piece> ring_;
  uint64_t reported_ = 0;  // pieces [reported_, handed_out_) are in the ring
  uint64_t handed_out_ = 0;
  size_t in_flight_ = 0;
  TransferResult result_;
};

}  // namespace tencache
