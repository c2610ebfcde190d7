// SPDX-License-Identifier: Apache-2.0
//
// A faulty channel moves each piece through the decorated channel as a transfer of its own, with
// the faults that the plan has for that piece.
#include "support/faulty_channel.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "tier/bounce_ring.h"

namespace tencache {
namespace {

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<char, FreeMemory>;

AlignedMemory aligned_copy(const char* data, size_t bytes) {
  AlignedMemory copy(static_cast<char*>(std::aligned_alloc(kIoAlignment, bytes)));
  memcpy(copy.get(), data, bytes);
  return copy;
}

void flip_bit(char* memory, size_t bytes, uint64_t bit) {
  char& byte = memory[bit / 8 % bytes];
  byte = static_cast<char>(byte ^ (1 << (bit % 8)));
}

class FaultyChannel final : public IoChannel {
 public:
  FaultyChannel(std::unique_ptr<IoChannel> channel, std::shared_ptr<FaultPlan> plan)
      : channel_(std::move(channel)), plan_(std::move(plan)) {}

  TransferResult transfer(IoDirection direction, std::span<const IoSegment> segments,
                          PieceObserver* observer) override;
  const char* name() const override { return channel_->name(); }

 private:
  TransferResult move_piece(IoDirection direction, IoSegment piece);

  std::unique_ptr<IoChannel> channel_;
  std::shared_ptr<FaultPlan> plan_;
  AlignedMemory buffer_;  // of one piece, for segments without memory
};

TransferResult FaultyChannel::transfer(IoDirection direction,
                                       std::span<const IoSegment> given_segments,
                                       PieceObserver* observer) {
  plan_->count_transfer(direction);
  TransferResult total;
  if (buffer_ == nullptr && has_segment_without_memory(given_segments)) {
    buffer_.reset(static_cast<char*>(std::aligned_alloc(kIoAlignment, kPieceBytes)));
  }
  std::vector<IoSegment> segments(given_segments.begin(), given_segments.end());
  for (size_t segment = 0; segment < segments.size(); ++segment) {
    for (uint64_t done = 0; done < segments[segment].bytes; done += kPieceBytes) {
      const uint64_t bytes = std::min<uint64_t>(kPieceBytes, segments[segment].bytes - done);
      char* const own = segments[segment].memory;
      const IoSegment piece = {own != nullptr ? own + done : buffer_.get(),
                               segments[segment].offset + done, bytes};
      if (observer != nullptr &&
          !observer->before_submit(segment, piece.offset, piece.memory, bytes)) {
        total.cancelled = true;
        return total;
      }
      const TransferResult result = move_piece(direction, piece);
      total.bytes += result.bytes;
      total.status = result.status;
      if (!total.status.is_ok()) return total;
      const bool is_last =
          segment + 1 == segments.size() && done + bytes == segments[segment].bytes;
      IoSegment added;
      if (is_last && observer != nullptr && observer->next_segment(&added)) {
        segments.push_back(added);
      }
      if (observer != nullptr) observer->after_complete(segment, piece.offset, bytes);
    }
  }
  return total;
}

TransferResult FaultyChannel::move_piece(IoDirection direction, IoSegment piece) {
  const std::string place = std::to_string(piece.bytes) + " bytes at file offset " +
                            std::to_string(piece.offset) + " (injected)";
  const uint64_t whole_bytes = piece.bytes;
  bool is_dropped = false;
  bool flips = false;
  uint64_t bit = 0;
  for (const Fault& fault : plan_->take(direction)) {
    switch (fault.kind) {
      case FaultKind::kFail:
        return {status_from_errno(fault.error_number, place), false, 0};
      case FaultKind::kEndOfFile:
        return {Status(StatusCode::kDataLoss, place + ": the file ends before that"), false, 0};
      case FaultKind::kFlipBit:
        flips = true;
        bit = fault.bit;
        break;
      case FaultKind::kMisdirect:
        piece.offset =
            static_cast<uint64_t>(static_cast<int64_t>(piece.offset) + fault.shift_bytes);
        break;
      case FaultKind::kTear:
        piece.bytes = piece.bytes / 2 / kIoAlignment * kIoAlignment;
        break;
      case FaultKind::kDrop:
        is_dropped = true;
        break;
      case FaultKind::kDelay:
        std::this_thread::sleep_for(std::chrono::microseconds(fault.delay_us));
        break;
      case FaultKind::kCall:
        fault.call();
        break;
    }
  }
  if (is_dropped || piece.bytes == 0) return {Status::ok(), false, whole_bytes};
  AlignedMemory copy;
  if (flips && direction == IoDirection::kWrite) {
    copy = aligned_copy(piece.memory, piece.bytes);
    flip_bit(copy.get(), piece.bytes, bit);
    piece.memory = copy.get();
  }
  TransferResult result = channel_->transfer(direction, {&piece, 1}, nullptr);
  if (flips && direction == IoDirection::kRead) flip_bit(piece.memory, piece.bytes, bit);
  if (result.status.is_ok()) result.bytes = whole_bytes;
  return result;
}

}  // namespace

void FaultPlan::add(const Fault& fault) {
  MutexLock lock(mutex_);
  entries_.push_back({fault, 0});
}

void FaultPlan::clear() {
  MutexLock lock(mutex_);
  entries_.clear();
  pieces_[0] = pieces_[1] = transfers_[0] = transfers_[1] = injected_ = 0;
}

uint64_t FaultPlan::pieces(IoDirection direction) const {
  MutexLock lock(mutex_);
  return pieces_[static_cast<size_t>(direction)];
}

uint64_t FaultPlan::transfers(IoDirection direction) const {
  MutexLock lock(mutex_);
  return transfers_[static_cast<size_t>(direction)];
}

void FaultPlan::count_transfer(IoDirection direction) {
  MutexLock lock(mutex_);
  ++transfers_[static_cast<size_t>(direction)];
}

uint64_t FaultPlan::injected() const {
  MutexLock lock(mutex_);
  return injected_;
}

std::vector<Fault> FaultPlan::take(IoDirection direction) {
  MutexLock lock(mutex_);
  const uint64_t number = ++pieces_[static_cast<size_t>(direction)];
  std::vector<Fault> faults;
  for (Entry& entry : entries_) {
    const Fault& fault = entry.fault;
    const bool is_hit = fault.direction == direction && number >= fault.first &&
                        (number - fault.first) % fault.every == 0 && entry.taken < fault.count;
    if (!is_hit) continue;
    ++entry.taken;
    faults.push_back(fault);
  }
  if (!faults.empty()) ++injected_;
  return faults;
}

std::unique_ptr<IoChannel> make_faulty_channel(std::unique_ptr<IoChannel> channel,
                                               std::shared_ptr<FaultPlan> plan) {
  return std::make_unique<FaultyChannel>(std::move(channel), std::move(plan));
}

std::function<Result<std::unique_ptr<IoChannel>>(int)> faulty_channel_factory(
    std::shared_ptr<FaultPlan> plan) {
  return [plan](int fd) -> Result<std::unique_ptr<IoChannel>> {
    return make_faulty_channel(make_thread_channel(fd, 2), plan);
  };
}

}  // namespace tencache
