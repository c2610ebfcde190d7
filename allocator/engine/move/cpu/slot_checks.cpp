// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cpu/slot_checks.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "engine/move/slot_reader.h"
#include "tier/content_hash.h"
#include "tier/io_channel.h"

namespace tencache {

void SlotChecks::check(std::span<Extent* const> extents) {
  for (Extent* extent : extents) {
    MigrationPermit permit(fork_latch_);
    if (!fetches_.claim_cold(extent)) continue;
    check_slot(*extent);
    extent->abandon_fetch();
  }
}

// Checks extents that are being fetched, too: one that was claimed for a fetch at the fork still
// shows its slot.
void SlotChecks::check_in_child(std::span<Extent* const> extents) const {
  for (const Extent* extent : extents) {
    const ExtentState state = extent->state();
    if (state == ExtentState::kCold || state == ExtentState::kFetching) check_slot(*extent);
  }
}

void SlotChecks::check_slot(const Extent& extent) const {
  std::vector<char> piece(std::min<uint64_t>(kPieceBytes, extent.bytes));
  ContentHasher hasher;
  for (uint64_t offset = 0; offset < extent.bytes; offset += piece.size()) {
    piece.resize(std::min<uint64_t>(kPieceBytes, extent.bytes - offset));
    const Status status = reader_.read(extent.slot.offset + offset, piece);
    if (status.code() == StatusCode::kUnavailable) {
      TENCACHE_LOG_DEBUG("a tensor is read unchecked: %s", status.message().c_str());
      return;
    }
    if (!status.is_ok()) end_for_unreadable_slots(disk_, status);
    hasher.append(piece.data(), piece.size());
  }
  if (hasher.finish() != extent.slot_hash) end_for_other_bytes(disk_, extent);
}

}  // namespace tencache
