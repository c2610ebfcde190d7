// SPDX-License-Identifier: Apache-2.0
//
// The progress of one exchange. One thread owns it.
#include "exchange.h"

#include <algorithm>
#include <cstring>

#include "errors.h"

namespace emulated_gpu::nccl {

namespace {

class Exchange {
 public:
  Exchange(Meeting* meeting, const std::vector<Message>& messages)
      : meeting_(*meeting), messages_(messages), moved_bytes_(messages.size()) {}

  // Moves all that can move now. Returns whether nothing is left to do, as after an error.
  bool advance();
  bool needs(int rank) const;
  ncclResult_t result() const { return result_; }

 private:
  bool is_done(size_t index) const { return moved_bytes_[index] == messages_[index].count; }
  void move_pieces(size_t index);
  bool send_piece(const Message& message, size_t* moved_bytes);
  bool receive_piece(const Message& message, size_t* moved_bytes);
  size_t channel_of(const Message& message) const;

  Meeting& meeting_;
  const std::vector<Message>& messages_;
  std::vector<size_t> moved_bytes_;  // by message
  ncclResult_t result_ = ncclSuccess;
};

size_t Exchange::channel_of(const Message& message) const {
  return (static_cast<size_t>(message.peer) * kLaneCount + static_cast<size_t>(message.lane)) * 2 +
         (message.is_sent ? 1 : 0);
}

bool Exchange::advance() {
  std::vector<bool> is_taken(static_cast<size_t>(meeting_.count()) * kLaneCount * 2);
  bool is_all_done = true;
  for (size_t index = 0; index < messages_.size() && result_ == ncclSuccess; ++index) {
    const size_t channel = channel_of(messages_[index]);
    if (!is_done(index) && !is_taken[channel]) move_pieces(index);
    if (is_done(index)) continue;
    is_taken[channel] = true;  // messages after it wait for it
    is_all_done = false;
  }
  return is_all_done || result_ != ncclSuccess;
}

void Exchange::move_pieces(size_t index) {
  const Message& message = messages_[index];
  size_t& moved = moved_bytes_[index];
  while (!is_done(index) && result_ == ncclSuccess &&
         (message.is_sent ? send_piece(message, &moved) : receive_piece(message, &moved))) {
    meeting_.ring(message.peer);
  }
}

bool Exchange::send_piece(const Message& message, size_t* moved_bytes) {
  Mailbox& box = meeting_.mailbox(message.lane, meeting_.rank(), message.peer);
  if (box.is_full.load(std::memory_order_acquire) != 0) return false;
  const size_t bytes = std::min(kPieceBytes, message.count - *moved_bytes);
  memcpy(box.piece, message.bytes + *moved_bytes, bytes);
  box.piece_bytes = static_cast<uint32_t>(bytes);
  box.message_bytes = message.count;
  box.is_full.store(1, std::memory_order_release);
  *moved_bytes += bytes;
  return true;
}

bool Exchange::receive_piece(const Message& message, size_t* moved_bytes) {
  Mailbox& box = meeting_.mailbox(message.lane, message.peer, meeting_.rank());
  if (box.is_full.load(std::memory_order_acquire) == 0) return false;
  if (box.message_bytes != message.count) {
    result_ =
        fail(ncclInvalidUsage, "rank %d expects %zu bytes of rank %d, which sends %zu",
             meeting_.rank(), message.count, message.peer, static_cast<size_t>(box.message_bytes));
    return false;
  }
  memcpy(message.bytes + *moved_bytes, box.piece, box.piece_bytes);
  *moved_bytes += box.piece_bytes;
  box.is_full.store(0, std::memory_order_release);
  return true;
}

bool Exchange::needs(int rank) const {
  for (size_t index = 0; index < messages_.size(); ++index) {
    if (messages_[index].peer == rank && !is_done(index)) return true;
  }
  return false;
}

}  // namespace

ncclResult_t exchange(Meeting* meeting, const char* what, const std::vector<Message>& messages) {
  Exchange progress(meeting, messages);
  const ncclResult_t result = meeting->wait_until(
      what, [&] { return progress.advance(); }, [&](int rank) { return progress.needs(rank); });
  return result != ncclSuccess ? result : progress.result();
}

}  // namespace emulated_gpu::nccl
