// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cpu/seal.h"

#include <algorithm>

#include "base/check.h"
#include "base/racy_access.h"
#include "memory/move_in_parts.h"
#include "platform/bus_errors.h"
#include "platform/write_barrier.h"
#include "tier/content_hash.h"
#include "tier/io_channel.h"

namespace tencache {

SealOutcome Seal::make_cold(const SlotEviction& eviction, Status* failure) {
  Extent* extent = eviction.extent;
  if (!close_unused(eviction)) return SealOutcome::kInUse;
  SealOutcome outcome = parks_pages() ? close_by_moving(extent) : SealOutcome::kFailed;
  // An extent that cannot be moved (the program has split its mapping, vm.max_map_count) can leave
  // all the same.
  if (outcome == SealOutcome::kFailed) outcome = close_by_protecting(extent, failure);
  if (outcome == SealOutcome::kDiffers) extent->unseal();
  return outcome;
}

bool Seal::close_unused(const SlotEviction& eviction) {
  return eviction.extent->seal() && !eviction.is_used_since();
}

bool Seal::parks_pages() const {
  return access_barrier_ != nullptr && access_barrier_->stops_everybody() &&
         heap_.can_use_any_cached() && !heap_.needs_free_room();
}

bool Seal::needs_signal(const Extent* extent) const {
  return access_barrier_ == nullptr || extent->is_file_mapped.load(std::memory_order_relaxed);
}

SealOutcome Seal::close_by_protecting(Extent* extent, Status* failure) {
  char* const address = extent->address;  // once it is cold, anybody may free it
  const uint64_t bytes = extent->bytes;
  bool by_signal = false;
  *failure = protect(extent, &by_signal);
  if (!failure->is_ok()) return SealOutcome::kFailed;
  SealOutcome outcome = prove(extent, address);
  if (outcome == SealOutcome::kCold) {
    *failure = map_slot(extent);
    if (failure->is_ok()) {
      extent->become_cold();
      if (!by_signal) access_barrier_->wake(address, bytes);
      heap_.budget().release(bytes);
      return outcome;
    }
    outcome = SealOutcome::kFailed;
  }
  unprotect(extent, by_signal);
  return outcome;
}

// Protects without the signal where the kernel can do that: a thread may block the signal.
Status Seal::protect(Extent* extent, bool* by_signal) {
  if (!needs_signal(extent) && access_barrier_->protect(extent->address, extent->bytes).is_ok()) {
    *by_signal = false;
    return Status::ok();
  }
  *by_signal = true;
  TENCACHE_RETURN_IF_ERROR(WriteBarrier::ensure_installed());
  Status status = heap_.arena().protect(extent->address, extent->bytes);
  if (!status.is_ok()) unprotect(extent, /*by_signal=*/true);  // a part may be protected
  return status;
}

void Seal::unprotect(Extent* extent, bool by_signal) {
  if (!by_signal) {
    access_barrier_->unprotect(extent->address, extent->bytes);
    return;
  }
  const Status status = heap_.arena().unprotect(extent->address, extent->bytes);
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
}

SealOutcome Seal::close_by_moving(Extent* extent) {
  Extent* parking = move_away(extent);
  if (parking == nullptr) return SealOutcome::kFailed;
  SealOutcome outcome = prove(extent, parking->address);
  if (outcome == SealOutcome::kCold) {
    if (leave_parked(extent, parking).is_ok()) return outcome;
    outcome = SealOutcome::kFailed;
  }
  move_back(extent, parking, extent->bytes);
  heap_.drop_parking(parking);
  return outcome;
}

Extent* Seal::move_away(const Extent* extent) {
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

Status Seal::leave_parked(Extent* extent, Extent* parking) {
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

void Seal::move_back(const Extent* extent, const Extent* parking, uint64_t bytes) {
  uint64_t moved_bytes = 0;
  const Status status = move_in_parts(
      bytes, extent->mapping_count, &moved_bytes, [&](uint64_t offset, uint64_t part_bytes) {
        char* const parked = parking->address + offset;
        char* const address = extent->address + offset;
        if (heap_.arena().move_frames(parked, address, part_bytes).is_ok()) return Status::ok();
        // Mappings ran out meanwhile (vm.max_map_count): a copy needs none.
        return access_barrier_->copy_back(parked, address, part_bytes);
      });
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
  access_barrier_->reopen(extent->address, extent->bytes);
}

// Compares the slot's hash with that of a sealed extent's bytes, which are in `memory`. Returns
// kCold when they may go. When a pin has arrived meanwhile, its thread waits, so this gives up at
// once.
SealOutcome Seal::prove(const Extent* extent, const char* memory) {
  ContentHasher hasher;
  for (uint64_t offset = 0; offset < extent->bytes; offset += kPieceBytes) {
    if (Extent::pins_of(extent->load()) > 0) return SealOutcome::kInUse;
    const RacyReads racy;  // races with writes that fault, and are repeated after the window
    hasher.append(memory + offset, std::min<uint64_t>(kPieceBytes, extent->bytes - offset));
  }
  return hasher.finish() == extent->slot_hash ? SealOutcome::kCold : SealOutcome::kDiffers;
}

Status Seal::map_slot(Extent* extent) {
  TENCACHE_CHECK(extent->slot.bytes >= extent->bytes, "extent %llu has no slot",
                 static_cast<unsigned long long>(extent->id));
  TENCACHE_RETURN_IF_ERROR(BusErrors::ensure_installed());
  // The file is looked at before the mapping, and again after it, so that nobody takes another
  // file's bytes for those of the extent.
  disk_.require_own_file();
  const Status mapped =
      heap_.arena().map_cold(extent->address, extent->bytes, disk_.fd(), extent->slot.offset);
  disk_.require_own_file();
  TENCACHE_RETURN_IF_ERROR(mapped);
  heap_.set_mapping_count(extent, 1);
  return Status::ok();
}

}  // namespace tencache
