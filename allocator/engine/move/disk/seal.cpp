// SPDX-License-Identifier: Apache-2.0
//
// The last phases of an eviction (engine/move/disk/slot_mover.h): the window in which an extent is
// sealed, the proof that its slot holds its bytes, and the step that makes it cold. There are two
// kinds of window.
//
//   Write-protected (mprotect): reads go on, the program's writes wait in the fault handler, and
//   the pages go back to the kernel when the slot takes their place.
//
//   Moved (mremap behind an access barrier): the pages leave for a parking extent, an extent
//   without an owner, in which they are hashed; whoever touches the address meanwhile waits, in a
//   system call, too. Afterwards the parking extent is cached, so that its pages serve the next
//   fetch or allocation and nobody has to clear new ones (memory/cpu_heap_frames.cpp). Where room
//   in the budget has to become free, because somebody waits for it, or the kernel does not move
//   the pages, the first kind serves. What has to be written as well is written in this window, too
//   (engine/move/disk/parked_evictions.cpp).
//
// In both, nobody can change what is hashed until the extent is cold or resident again.
#include <algorithm>

#include "base/check.h"
#include "base/racy_access.h"
#include "engine/move/disk/slot_mover.h"
#include "memory/move_in_parts.h"
#include "platform/write_barrier.h"

namespace tencache {

SlotMover::SealOutcome SlotMover::seal_one(const Eviction& eviction, Status* failure) {
  Extent* extent = eviction.extent;
  if (!seal_unused(eviction)) return SealOutcome::kInUse;
  if (parks_pages()) {
    // Where it cannot be moved (the program has split its mapping, vm.max_map_count) it can leave
    // all the same.
    const SealOutcome outcome = seal_by_moving(extent);
    if (outcome != SealOutcome::kFailed) return outcome;
  }
  return seal_by_protecting(extent, failure);
}

bool SlotMover::seal_unused(const Eviction& eviction) {
  return eviction.extent->seal() && !eviction.is_used_since();
}

bool SlotMover::parks_pages() const {
  return access_barrier_ != nullptr && heap_.can_use_any_cached() && !heap_.needs_free_room();
}

SlotMover::SealOutcome SlotMover::seal_by_protecting(Extent* extent, Status* failure) {
  AddressArena& arena = heap_.arena();
  const uint64_t bytes = extent->bytes;  // once it is cold, anybody may free it
  *failure = WriteBarrier::ensure_installed();
  if (failure->is_ok()) *failure = arena.protect(extent->address, bytes);
  if (!failure->is_ok()) return SealOutcome::kFailed;
  SealOutcome outcome = prove(extent, extent->address);
  if (outcome == SealOutcome::kCold) {
    *failure = map_slot(extent);
    if (failure->is_ok()) {
      extent->become_cold();
      heap_.budget().release(bytes);
      return outcome;
    }
    outcome = SealOutcome::kFailed;
  }
  Status status = arena.unprotect(extent->address, bytes);
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
  if (outcome == SealOutcome::kDiffers) extent->unseal();
  return outcome;
}

SlotMover::SealOutcome SlotMover::seal_by_moving(Extent* extent) {
  Extent* parking = move_away(extent);
  if (parking == nullptr) return SealOutcome::kFailed;
  SealOutcome outcome = prove(extent, parking->address);
  if (outcome == SealOutcome::kCold) {
    if (leave_parked(extent, parking).is_ok()) return outcome;
    outcome = SealOutcome::kFailed;
  }
  move_back(extent, parking, extent->bytes);
  heap_.drop_parking(parking);
  if (outcome == SealOutcome::kDiffers) extent->unseal();
  return outcome;
}

// The pages of a sealed extent leave for a parking extent; whoever touches the address waits from
// then on. Null, and nothing has happened, where the kernel does not move them.
Extent* SlotMover::move_away(const Extent* extent) {
  char* const address = extent->address;
  Extent* parking = heap_.make_parking(extent->bytes);
  if (parking == nullptr) return nullptr;
  if (access_barrier_->close(address, extent->bytes).is_ok()) {
    uint64_t moved_bytes = 0;
    const Status status = move_in_parts(
        extent->bytes, extent->mapping_count, &moved_bytes,
        [&](uint64_t offset, uint64_t part_bytes) {
          return heap_.arena().move_frames(address + offset, parking->address + offset, part_bytes);
        });
    if (status.is_ok()) return parking;
    move_back(extent, parking, moved_bytes);
  }
  heap_.drop_parking(parking);
  return nullptr;
}

// The slot takes the place of pages that were moved away, which are cached from now on. Where the
// kernel refuses, nothing has happened.
Status SlotMover::leave_parked(Extent* extent, Extent* parking) {
  char* const address = extent->address;  // once it is cold, anybody may free it
  const uint64_t bytes = extent->bytes;
  const uint32_t mapping_count = extent->mapping_count;
  TENCACHE_RETURN_IF_ERROR(map_slot(extent));
  extent->become_cold();
  access_barrier_->wake(address, bytes);
  heap_.set_mapping_count(parking, mapping_count);
  heap_.cache_parked(parking);
  return Status::ok();
}

// The first bytes of the extent come back from its parking extent.
void SlotMover::move_back(const Extent* extent, const Extent* parking, uint64_t bytes) {
  uint64_t moved_bytes = 0;
  const Status status = move_in_parts(
      bytes, extent->mapping_count, &moved_bytes, [&](uint64_t offset, uint64_t part_bytes) {
        char* const kept = parking->address + offset;
        char* const address = extent->address + offset;
        if (heap_.arena().move_frames(kept, address, part_bytes).is_ok()) return Status::ok();
        // Mappings ran out meanwhile (vm.max_map_count): a copy needs none.
        return access_barrier_->copy_back(kept, address, part_bytes);
      });
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
  access_barrier_->reopen(extent->address, extent->bytes);
}

// Whether the slot holds the bytes of a sealed extent, which are in `memory`: kCold when it may go.
SlotMover::SealOutcome SlotMover::prove(const Extent* extent, const char* memory) {
  ContentHash hash;
  if (!hash_sealed(extent, memory, &hash)) return SealOutcome::kInUse;
  return hash == extent->slot_hash ? SealOutcome::kCold : SealOutcome::kDiffers;
}

Status SlotMover::map_slot(Extent* extent) {
  TENCACHE_CHECK(extent->slot.bytes >= extent->bytes, "extent %llu has no slot",
                 static_cast<unsigned long long>(extent->id));
  TENCACHE_RETURN_IF_ERROR(
      heap_.arena().map_cold(extent->address, extent->bytes, disk_.fd(), extent->slot.offset));
  heap_.set_mapping_count(extent, 1);
  return Status::ok();
}

// False when a pin arrived meanwhile: its thread waits, so give up at once.
bool SlotMover::hash_sealed(const Extent* extent, const char* memory, ContentHash* hash) {
  ContentHasher hasher;
  for (uint64_t offset = 0; offset < extent->bytes; offset += kPieceBytes) {
    if (Extent::pins_of(extent->load()) > 0) return false;
    const RacyReads racy;  // of writes that a signal handler repeats after the window
    hasher.append(memory + offset, std::min<uint64_t>(kPieceBytes, extent->bytes - offset));
  }
  *hash = hasher.finish();
  return true;
}

}  // namespace tencache
