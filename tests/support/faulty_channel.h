// SPDX-License-Identifier: Apache-2.0
//
// FaultyChannel: a real channel whose pieces go wrong by a plan. The test shares the plan, which
// counts the pieces of each direction over all channels and transfers and decides for each piece.
// Give it to a DiskTier through DiskTierConfig::channel_factory:
//
//   auto plan = std::make_shared<FaultPlan>();
//   config.channel_factory = faulty_channel_factory(plan);
//   plan->add({.direction = IoDirection::kWrite, .first = 3, .count = 1, .kind = FaultKind::kFail,
//              .error_number = ENOSPC});
//
// A faulty channel moves one piece at a time, in order, so that "the third piece" means the same in
// every run. Threads: any for the plan; for a channel see io_channel.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "tier/io_channel.h"

namespace tencache {

enum class FaultKind : uint8_t {
  kFail,       // the piece is not moved and the transfer fails with error_number
  kFlipBit,    // one bit differs: in memory after a read, in the file after a write
  kMisdirect,  // the piece is moved to or from the file offset + shift_bytes
  kTear,       // only the first half is moved; the transfer reports success
  kDrop,       // nothing is moved; the transfer reports success
  kEndOfFile,  // the transfer fails as if the file ended there (kDataLoss)
  kDelay,      // the piece is moved delay_us later
  kCall,       // the thread that moves the piece calls `call` first
};

/// The pieces that go wrong: number `first` (from 1, per direction), then each `every`-th after it,
/// `count` times in all.
struct Fault {
  IoDirection direction = IoDirection::kWrite;
  uint64_t first = 1;
  uint64_t every = 1;
  uint64_t count = UINT64_MAX;
  FaultKind kind = FaultKind::kFail;
  int error_number = 5;                                     // EIO
  uint64_t bit = 0;                                         // the bit of the piece, for kFlipBit
  int64_t shift_bytes = static_cast<int64_t>(kPieceBytes);  // multiple of kIoAlignment
  unsigned delay_us = 1000;
  std::function<void()> call = nullptr;
};

class FaultPlan {
 public:
  void add(const Fault& fault) TENCACHE_EXCLUDES(mutex_);
  /// Forgets all faults and counts from the beginning.
  void clear() TENCACHE_EXCLUDES(mutex_);

  /// The number of pieces that passed, faulty ones included.
  uint64_t pieces(IoDirection direction) const TENCACHE_EXCLUDES(mutex_);
  /// The number of transfers that have begun.
  uint64_t transfers(IoDirection direction) const TENCACHE_EXCLUDES(mutex_);
  /// The number of pieces that went wrong.
  uint64_t injected() const TENCACHE_EXCLUDES(mutex_);

  void count_transfer(IoDirection direction) TENCACHE_EXCLUDES(mutex_);
  /// Counts one more piece and returns its faults.
  std::vector<Fault> take(IoDirection direction) TENCACHE_EXCLUDES(mutex_);

 private:
  struct Entry {
    Fault fault;
    uint64_t taken = 0;
  };

  mutable Mutex mutex_;
  std::vector<Entry> entries_ TENCACHE_GUARDED_BY(mutex_);
  uint64_t pieces_[2] TENCACHE_GUARDED_BY(mutex_) = {0, 0};  // by direction
  uint64_t transfers_[2] TENCACHE_GUARDED_BY(mutex_) = {0, 0};
  uint64_t injected_ TENCACHE_GUARDED_BY(mutex_) = 0;
};

/// Decorates `channel`, whose pieces go wrong by the plan.
std::unique_ptr<IoChannel> make_faulty_channel(std::unique_ptr<IoChannel> channel,
                                               std::shared_ptr<FaultPlan> plan);

/// Returns a DiskTierConfig::channel_factory that makes faulty channels over threads.
std::function<Result<std::unique_ptr<IoChannel>>(int)> faulty_channel_factory(
    std::shared_ptr<FaultPlan> plan);

}  // namespace tencache
