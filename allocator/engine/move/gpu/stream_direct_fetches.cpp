// SPDX-License-Identifier: Apache-2.0
//
// The phases of a fetch that leaves host memory out: from the disk straight to the GPU
// (engine/move/gpu/stream_mover.h tells the protocol).
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/move/gpu/stream_mover.h"
#include "engine/move/migration_permit.h"

namespace tencache {

// Takes those out of `extents` that the disk alone has, as far as they arrive, and those that stay
// cold, which it returns. The thread waits for the disk.
std::vector<CudaExtent*> StreamMover::bring_directly(std::vector<CudaExtent*>& extents,
                                                     CopyStream& stream, bool is_ahead) {
  std::vector<CudaExtent*> direct;
  std::erase_if(extents, [&](CudaExtent* extent) {
    if (extent->host_block.is_valid()) return false;
    direct.push_back(extent);
    return true;
  });
  if (direct.empty()) return {};
  std::vector<CudaExtent*> left_cold = map_frames(direct, is_ahead);
  const MigrationPermit permit(fork_latch_);
  std::vector<CudaExtent*> arrived;
  for (CudaExtent* extent : direct) {
    const Status status = read_directly(*extent, stream);
    if (status.is_ok()) {
      arrived.push_back(extent);
      continue;
    }
    take_away_frames({&extent, 1});
    extents.push_back(extent);
    if (direct_.exchange(nullptr) != nullptr) {
      TENCACHE_LOG_WARNING(
          "the disk is read by host memory from now on, and not straight into the GPU: %s",
          status.clause().c_str());
    }
  }
  if (arrived.empty()) return left_cold;
  // Reached already, as far as that can be said; a flight has one.
  Result<StreamMark> mark = stream.mark();
  take_off(arrived, mark.is_ok() ? std::move(mark).value() : StreamMark{},
           heap_.streams().set_of(stream.handle()), is_ahead);
  return left_cold;
}

// As read, and proved by the hash that was made on the GPU when it left.
Status StreamMover::read_directly(const CudaExtent& extent, CopyStream& stream) {
  DirectStorage* const direct = direct_.load();
  if (direct == nullptr) return {StatusCode::kUnavailable, "It has failed before."};
  const uint64_t begin_ns = now_ns();
  TENCACHE_RETURN_IF_ERROR(
      direct->read(stream.handle(), extent.device_address(), extent.bytes, extent.slot.offset));
  spill_->note_read(extent.bytes, now_ns() - begin_ns);
  const Result<PendingHash> hash =
      hasher_->hash(stream.handle(), extent.device_address(), extent.bytes);
  Status status = hash.status();
  if (status.is_ok()) {
    const Result<StreamMark> made = stream.mark();
    status = made.is_ok() ? made.value().wait() : made.status();
  }
  if (!status.is_ok()) {
    (void)stream.wait_until_idle();  // before the hash's place and the frame are used again
    return status;
  }
  if (hash.value().value() == extent.copy_hash) return status;
  return {StatusCode::kDataLoss, "What was read is not what was written."};
}

}  // namespace tencache
