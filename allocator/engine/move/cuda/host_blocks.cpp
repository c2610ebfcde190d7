// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/host_blocks.h"

#include <span>
#include <utility>

#include "engine/move/fork_latch.h"
#include "engine/move/slot_reader.h"

namespace tencache {

// While host memory may grow, this drops no spare copies: each would be made again when its extent
// leaves, and growing costs time only once.
HostBlock HostBlocks::take_at_once(uint64_t bytes) {
  HostBlock block = host_.take(bytes);
  while (!block.is_valid() && !host_.may_grow(bytes) && parts_.heap.drop_spare_copies(bytes) > 0) {
    block = host_.take(bytes);
  }
  if (parts_.ahead != nullptr) parts_.ahead->on_use();
  return block;
}

// Spare blocks may lie scattered, so this goes on while there is anything to give back.
Result<HostBlock> HostBlocks::take(uint64_t bytes) {
  Result<HostBlock> block = host_.allocate(bytes);
  // A block that can never fit must not drive everything else out.
  while (!block.is_ok() && host_.may_hold(bytes)) {
    const HostSpill::Outcome room = make_room(bytes);
    // Even if no block was given back here, what has come back may have left one.
    block = host_.allocate(bytes);
    if (block.is_ok() || room.freed_bytes > 0) continue;
    if (room.was_called_off) {
      // Nothing is full and nothing failed: a later try may find room.
      block = Status(StatusCode::kUnavailable,
                     "What would make room in host memory is wanted, or on its way back.");
    }
    break;
  }
  if (parts_.ahead != nullptr) parts_.ahead->on_use();
  return block;
}

HostSpill::Outcome HostBlocks::make_room(uint64_t bytes) {
  const uint64_t dropped_bytes = parts_.heap.drop_spare_copies(bytes);
  if (dropped_bytes > 0) return {dropped_bytes, false};
  if (parts_.spill != nullptr) {
    const HostSpill::Outcome outcome = parts_.spill->demote(bytes);
    if (outcome.freed_bytes > 0 || outcome.was_called_off) return outcome;
  }
  flights_.settle(true);  // what is on its way back leaves a copy that can be spared
  const uint64_t spared_bytes = parts_.heap.drop_spare_copies(bytes);
  // A fetch that is about to begin holds its block already, is in no flight yet, and will leave
  // such a copy, too.
  return {.freed_bytes = spared_bytes, .was_called_off = parts_.ledger.bytes_ahead.load() > 0};
}

Result<HostBlock> HostBlocks::take_for_op(uint64_t bytes) {
  Result<HostBlock> block = take(bytes);
  if (block.is_ok()) return block;
  flights_.settle(true);  // what has just come back has a copy that can be spared
  block = take(bytes);
  if (block.is_ok()) return block;
  return host_.allocate_beyond_budget(bytes);
}

void HostBlocks::read_back(FetchBatch* batch) {
  const MigrationPermit permit(parts_.fork_latch);
  const std::vector<CudaExtent*> on_disk = take_blocks(batch);
  if (on_disk.empty()) return;
  std::vector<SlotRead> reads;
  reads.reserve(on_disk.size());
  for (const CudaExtent* extent : on_disk) reads.push_back({extent, extent->host_block.memory});
  const SlotReadResult result = parts_.spill->read_slots(reads, [](size_t) {});
  if (result.done == reads.size()) return;
  // A guess must not end the program: it may never need these bytes.
  if (!batch->is_ahead) end_for_unreadable_slots(parts_.spill->disk(), result.status);
  for (CudaExtent* extent : std::span(on_disk).subspan(result.done)) {
    parts_.heap.copies().release_block(extent);
    std::erase(batch->extents, extent);
    flights_.leave_cold(extent, batch, result.status);
  }
}

// Leaves in the batch, to be brought, the extents that have a block now. Returns those that had
// none before.
std::vector<CudaExtent*> HostBlocks::take_blocks(FetchBatch* batch) {
  std::vector<CudaExtent*> with_block;
  std::vector<CudaExtent*> on_disk;
  for (CudaExtent* extent : batch->extents) {
    if (!extent->host_block.is_valid()) {
      // Of the extents that an op brings together, only the first may go beyond the budget: when
      // those with a block have come back, their blocks serve the others.
      const bool may_wait = !batch->is_ahead && !with_block.empty();
      if (may_wait && !batch->later.empty()) {  // one has found no room, so the others do not look
        batch->later.push_back(extent);
        continue;
      }
      Result<HostBlock> block =
          batch->is_ahead || may_wait ? take(extent->bytes) : take_for_op(extent->bytes);
      const Status status = std::move(block).move_to(&extent->host_block);
      if (!status.is_ok()) {
        if (may_wait) {
          batch->later.push_back(extent);
        } else {
          flights_.leave_cold(extent, batch, status);
        }
        continue;
      }
      on_disk.push_back(extent);
    }
    with_block.push_back(extent);
  }
  batch->extents = std::move(with_block);
  return on_disk;
}

}  // namespace tencache
