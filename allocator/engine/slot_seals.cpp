// SPDX-License-Identifier: Apache-2.0
//
// The last phases of an eviction (engine/slot_migrations.h): the window in which an extent is
// sealed, the proof that its slot holds its bytes, and the step that makes it cold. There are two
// kinds of window.
//
//   Write-protected (mprotect): reads go on, the program's writes wait in the fault handler, and
//   the pages go back to the kernel when the slot takes their place.
//
//   Moved (mremap behind an access barrier): the pages leave for a keeper, an extent without an
//   owner, in which they are hashed; whoever touches the address meanwhile waits, in a system call,
//   too. Afterwards the keeper is cached, so that its pages serve the next fetch or allocation and
//   nobody has to clear new ones (memory/cpu_heap_frames.cpp). Where room in the budget has to
//   become free, because somebody waits for it, or the kernel does not move the pages, the first
//   kind serves.
//
// In both, nobody can change what is hashed until the extent is cold or resident again.
#include <algorithm>

#include "backend/write_barrier.h"
#include "base/check.h"
#include "base/racy_access.h"
#include "engine/slot_migrations.h"
#include "memory/move_in_parts.h"

namespace tencache {

SlotMigrations::SealOutcome SlotMigrations::seal_one(const Eviction& eviction, Status* failure) {
  Extent* extent = eviction.extent;
  const bool is_unused = extent->seal() && extent->last_use_ticks.load(std::memory_order_relaxed) <=
                                               eviction.claimed_at_ticks;
  if (!is_unused) return SealOutcome::kInUse;
  if (keeps_pages()) {
    // Where it cannot be moved (the program has split its mapping, vm.max_map_count) it can leave
    // all the same.
    const SealOutcome outcome = seal_by_moving(extent);
    if (outcome != SealOutcome::kFailed) return outcome;
  }
  return seal_by_protecting(extent, failure);
}

bool SlotMigrations::keeps_pages() const {
  return access_barrier_ != nullptr && heap_.can_use_any_cached() && !heap_.needs_free_room();
}

SlotMigrations::SealOutcome SlotMigrations::seal_by_protecting(Extent* extent, Status* failure) {
  AddressArena& arena = heap_.arena();
  const uint64_t bytes = extent->bytes;  // once it is cold, anybody may free it
  *failure = WriteBarrier::ensure_installed();
  if (failure->is_ok()) *failure = arena.protect(extent->address, bytes);
  if (!failure->is_ok()) return SealOutcome::kFailed;
  const SealOutcome outcome = prove_and_map(extent, extent->address, failure);
  if (outcome == SealOutcome::kCold) {
    heap_.budget().release(bytes);
    return outcome;
  }
  Status status = arena.unprotect(extent->address, bytes);
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
  if (outcome == SealOutcome::kDiffers) extent->unseal();
  return outcome;
}

SlotMigrations::SealOutcome SlotMigrations::seal_by_moving(Extent* extent) {
  char* const address = extent->address;
  const uint64_t bytes = extent->bytes;
  const uint32_t mapping_count = extent->mapping_count;
  Extent* keeper = heap_.make_keeper(bytes);
  if (keeper == nullptr) return SealOutcome::kFailed;
  if (!access_barrier_->close(address, bytes).is_ok()) {
    heap_.drop_keeper(keeper);
    return SealOutcome::kFailed;
  }
  uint64_t moved_bytes = 0;
  Status failure =
      move_in_parts(bytes, mapping_count, &moved_bytes, [&](uint64_t offset, uint64_t part_bytes) {
        return heap_.arena().move_frames(address + offset, keeper->address + offset, part_bytes);
      });
  SealOutcome outcome = SealOutcome::kFailed;
  if (failure.is_ok()) outcome = prove_and_map(extent, keeper->address, &failure);
  if (outcome == SealOutcome::kCold) {
    access_barrier_->wake(address, bytes);
    heap_.set_mapping_count(keeper, mapping_count);
    heap_.keep(keeper);
    return outcome;
  }
  move_back(extent, keeper, moved_bytes);
  heap_.drop_keeper(keeper);
  if (outcome == SealOutcome::kDiffers) extent->unseal();
  return outcome;
}

// The first bytes of the extent come back from its keeper.
void SlotMigrations::move_back(const Extent* extent, const Extent* keeper, uint64_t bytes) {
  uint64_t moved_bytes = 0;
  const Status status = move_in_parts(
      bytes, extent->mapping_count, &moved_bytes, [&](uint64_t offset, uint64_t part_bytes) {
        char* const kept = keeper->address + offset;
        char* const address = extent->address + offset;
        if (heap_.arena().move_frames(kept, address, part_bytes).is_ok()) return Status::ok();
        // Mappings ran out meanwhile (vm.max_map_count): a copy needs none.
        return access_barrier_->copy_back(kept, address, part_bytes);
      });
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
  access_barrier_->reopen(extent->address, extent->bytes);
}

// `memory` holds the bytes of the extent, and nobody can write there.
SlotMigrations::SealOutcome SlotMigrations::prove_and_map(Extent* extent, const char* memory,
                                                          Status* failure) {
  ContentHash hash;
  if (!hash_sealed(extent, memory, &hash)) return SealOutcome::kInUse;
  if (hash != extent->slot_hash) return SealOutcome::kDiffers;
  TENCACHE_CHECK(extent->slot.bytes >= extent->bytes, "extent %llu has no slot",
                 static_cast<unsigned long long>(extent->id));
  *failure =
      heap_.arena().map_cold(extent->address, extent->bytes, disk_.fd(), extent->slot.offset);
  if (!failure->is_ok()) return SealOutcome::kFailed;
  heap_.set_mapping_count(extent, 1);
  extent->become_cold();
  return SealOutcome::kCold;
}

// False when a pin arrived meanwhile: its thread waits, so give up at once.
bool SlotMigrations::hash_sealed(const Extent* extent, const char* memory, ContentHash* hash) {
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
