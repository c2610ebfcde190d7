// SPDX-License-Identifier: Apache-2.0
//
// The phases of an eviction and of a fetch that concern host memory: a block for what leaves,
// copies from and to one, and what lies on disk alone brought back into one
// (engine/move/gpu/stream_mover.h tells the protocol).
#include <optional>
#include <span>
#include <utility>

#include "engine/move/gpu/stream_mover.h"
#include "engine/move/migration_permit.h"
#include "engine/move/slot_reader.h"

namespace tencache {

// What is given back may lie scattered, so this goes on while there is anything to give back.
Result<HostBlock> StreamMover::take_block(uint64_t bytes) {
  Result<HostBlock> block = host_.allocate(bytes);
  // What can never fit must not drive everything else out.
  while (!block.is_ok() && host_.may_hold(bytes)) {
    const HostSpill::Outcome room = make_host_room(bytes);
    if (room.freed_bytes > 0) {
      block = host_.allocate(bytes);
      continue;
    }
    if (!room.was_called_off) break;
    // Nothing is full and nothing failed: another moment is a better one.
    block = Status(StatusCode::kUnavailable,
                   "What would make room in host memory is wanted, or on its way back.");
    break;
  }
  if (spill_ != nullptr) spill_->on_use();
  return block;
}

// Spare copies go first, because to make one again costs least.
HostSpill::Outcome StreamMover::make_host_room(uint64_t bytes) {
  const uint64_t dropped_bytes = heap_.drop_spare_copies(bytes);
  if (dropped_bytes > 0 || spill_ == nullptr) return {dropped_bytes, false};
  const HostSpill::Outcome outcome = spill_->demote(bytes);
  if (outcome.freed_bytes > 0 || outcome.was_called_off) return outcome;
  settle(true);  // what is on its way back leaves a copy that can be spared
  const uint64_t spared_bytes = heap_.drop_spare_copies(bytes);
  // So does what is about to be on its way: it holds its block already and is in no flight yet.
  return {.freed_bytes = spared_bytes, .was_called_off = bytes_ahead() > 0};
}

// An op cannot be told that there is no room.
Result<HostBlock> StreamMover::take_block_for_op(uint64_t bytes) {
  Result<HostBlock> block = take_block(bytes);
  if (block.is_ok()) return block;
  settle(true);  // what has just come back has a copy that can be spared
  block = take_block(bytes);
  if (block.is_ok()) return block;
  return host_.allocate_beyond_budget(bytes);
}

Status StreamMover::copy_out(const HostBlock& block, CUdeviceptr device) {
  if (block.is_pinned && kernel_out_ != nullptr) {
    return kernel_out_->to_host(out_->handle(), block.memory, device, block.bytes);
  }
  if (block.is_pinned || staging_out_ == nullptr) {
    return out_->to_host(block.memory, device, block.bytes);
  }
  return StagedCopies(*out_, *staging_out_).to_host(block.memory, device, block.bytes);
}

Status StreamMover::queue_copy_in(const HostBlock& block, CUdeviceptr device, CopyStream& stream,
                                  std::optional<StagedCopies>* staged) {
  if (block.is_pinned && kernel_in_ != nullptr) {
    return kernel_in_->to_device(stream.handle(), device, block.memory, block.bytes);
  }
  if (block.is_pinned || staging_in_ == nullptr) {
    return stream.to_device(device, block.memory, block.bytes);
  }
  if (!staged->has_value()) staged->emplace(stream, *staging_in_);
  return (*staged)->to_device(device, block.memory, block.bytes);
}

// Takes those out of `extents` that stay cold, and returns them. The thread waits for the disk.
std::vector<CudaExtent*> StreamMover::read_back(std::vector<CudaExtent*>& extents, bool is_ahead,
                                                std::vector<CudaExtent*>* later) {
  std::vector<CudaExtent*> left_cold;
  std::vector<CudaExtent*> with_block;
  std::vector<CudaExtent*> on_disk;
  const MigrationPermit permit(fork_latch_);
  for (CudaExtent* extent : extents) {
    if (!extent->host_block.is_valid()) {
      // Only the first of those that an op brings together may go beyond the budget: when these
      // have come back, their blocks serve the others.
      const bool may_wait = later != nullptr && !with_block.empty();
      const Result<HostBlock> block =
          is_ahead || may_wait ? take_block(extent->bytes) : take_block_for_op(extent->bytes);
      if (!block.is_ok()) {
        if (may_wait) {
          later->push_back(extent);
        } else {
          leave_cold(extent, is_ahead, block.status());
          left_cold.push_back(extent);
        }
        continue;
      }
      extent->host_block = block.value();
      on_disk.push_back(extent);
    }
    with_block.push_back(extent);
  }
  extents = std::move(with_block);
  if (on_disk.empty()) return left_cold;
  std::vector<SlotRead> reads;
  reads.reserve(on_disk.size());
  for (const CudaExtent* extent : on_disk) reads.push_back({extent, extent->host_block.memory});
  const SlotReadResult result = spill_->read_slots(reads, [](size_t) {});
  if (result.done == reads.size()) return left_cold;
  // A guess must not end the program: it may never need these bytes.
  if (!is_ahead) end_for_unreadable_slots(spill_->disk(), result.status);
  for (CudaExtent* extent : std::span(on_disk).subspan(result.done)) {
    heap_.release_block(extent);
    leave_cold(extent, is_ahead, result.status);
    left_cold.push_back(extent);
    std::erase(extents, extent);
  }
  return left_cold;
}

}  // namespace tencache
