// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/staged_copies.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace tencache {

// All copies to the host have ended by now; only copies to the device are left.
StagedCopies::~StagedCopies() {
  const Status finished = finish();
  if (!finished.is_ok()) (void)fail(finished);
}

Status StagedCopies::to_device(CUdeviceptr device, const char* host, uint64_t bytes) {
  for (uint64_t offset = 0; offset < bytes;) {
    const Result<StagingBuffer> buffer = take_buffer();
    if (!buffer.is_ok()) return fail(buffer.status());
    const uint64_t piece_bytes = std::min(bytes - offset, buffer.value().bytes);
    memcpy(buffer.value().memory, host + offset, piece_bytes);
    const Status queued = stream_.to_device(device + offset, buffer.value().memory, piece_bytes);
    const Status added = add_piece(buffer.value(), nullptr, piece_bytes);
    if (!queued.is_ok()) return fail(queued);
    if (!added.is_ok()) return fail(added);
    offset += piece_bytes;
  }
  return Status::ok();
}

Status StagedCopies::to_host(char* host, CUdeviceptr device, uint64_t bytes) {
  for (uint64_t offset = 0; offset < bytes;) {
    const Result<StagingBuffer> buffer = take_buffer();
    if (!buffer.is_ok()) return fail(buffer.status());
    const uint64_t piece_bytes = std::min(bytes - offset, buffer.value().bytes);
    const Status queued = stream_.to_host(buffer.value().memory, device + offset, piece_bytes);
    const Status added = add_piece(buffer.value(), host + offset, piece_bytes);
    if (!queued.is_ok()) return fail(queued);
    if (!added.is_ok()) return fail(added);
    offset += piece_bytes;
  }
  const Status finished = finish();
  return finished.is_ok() ? finished : fail(finished);
}

Result<StagingBuffer> StagedCopies::take_buffer() {
  for (;;) {
    if (const std::optional<StagingBuffer> buffer = ring_.try_acquire()) return *buffer;
    if (under_way_.empty()) return ring_.acquire();
    TENCACHE_RETURN_IF_ERROR(finish_oldest());
  }
}

// From here on the piece holds the buffer, whether its copy was queued or not.
Status StagedCopies::add_piece(const StagingBuffer& buffer, char* target, uint64_t bytes) {
  Piece& piece = under_way_.emplace_back();
  piece.buffer = buffer;
  piece.target = target;
  piece.bytes = bytes;
  return stream_.mark().move_to(&piece.done);
}

Status StagedCopies::finish_oldest() {
  Piece& piece = under_way_.front();
  TENCACHE_RETURN_IF_ERROR(piece.done.wait());
  if (piece.target != nullptr) memcpy(piece.target, piece.buffer.memory, piece.bytes);
  ring_.release(piece.buffer);
  under_way_.pop_front();
  return Status::ok();
}

Status StagedCopies::finish() {
  while (!under_way_.empty()) TENCACHE_RETURN_IF_ERROR(finish_oldest());
  return Status::ok();
}

// No buffer goes back while the device may use it, so this waits first. Where even that wait is
// refused, the context is broken, and nothing runs any more.
Status StagedCopies::fail(const Status& reason) {
  if (!under_way_.empty()) (void)stream_.wait_until_idle();
  for (const Piece& piece : under_way_) ring_.release(piece.buffer);
  under_way_.clear();
  return reason;
}

}  // namespace tencache
