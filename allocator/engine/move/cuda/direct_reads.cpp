// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/direct_reads.h"

#include "base/clock.h"
#include "base/log.h"
#include "platform/cuda/device_hasher.h"
#include "platform/cuda/stream_mark.h"

namespace tencache {

Status DirectReads::read(const CudaExtent& extent, CopyStream& stream) {
  DirectStorage* const storage = storage_.load();
  if (storage == nullptr) return {StatusCode::kUnavailable, "It has failed before."};
  parts_.spill->disk().require_own_file();  // cuFile knows the file by its descriptor
  const uint64_t begin_ns = now_ns();
  TENCACHE_RETURN_IF_ERROR(
      storage->read(stream.handle(), extent.device_address(), extent.bytes, extent.slot.offset));
  parts_.spill->note_read(extent.bytes, now_ns() - begin_ns);
  const Result<PendingHash> hash =
      parts_.hasher->hash(stream.handle(), extent.device_address(), extent.bytes);
  StreamMark mark;
  Status status = hash.is_ok() ? stream.mark().move_to(&mark) : hash.status();
  if (status.is_ok()) status = mark.wait();
  if (!status.is_ok()) {
    (void)stream.wait_until_idle();  // before the hash's place and the frame are used again
    return status;
  }
  if (hash.value().value() == extent.copy_hash) return status;
  return {StatusCode::kDataLoss, "What was read is not what was written."};
}

void DirectReads::close(const Status& reason) {
  if (storage_.exchange(nullptr) == nullptr) return;
  TENCACHE_LOG_WARNING(
      "the disk is read through host memory from now on, and not straight into the GPU: %s",
      reason.clause().c_str());
}

}  // namespace tencache
