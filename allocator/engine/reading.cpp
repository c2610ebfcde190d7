// SPDX-License-Identifier: Apache-2.0
#include "engine/reading.h"

#include <unordered_set>

namespace tencache {

Reading::Reading(Engine& engine, std::span<const void* const> addresses) : engine_(engine) {
  if (engine_.mover() == nullptr) return;  // nothing is ever cold
  uint64_t room_bytes = engine_.is_passive() ? 0 : engine_.budget().limit() / 2;
  std::unordered_set<const Extent*> distinct;
  std::vector<Access> accesses;
  for (const void* address : addresses) {
    Extent* extent = engine_.heap().find(address);
    if (extent == nullptr || !distinct.insert(extent).second) continue;
    if (extent->bytes <= room_bytes) {
      room_bytes -= extent->bytes;
      accesses.push_back({extent->address, AccessMode::kRead});
    } else {
      mapped_.push_back(extent);
    }
  }
  if (!accesses.empty()) hold_ = engine_.gate().hold(accesses, /*and_inner=*/false);
  check_mapped();
}

Reading::~Reading() {
  engine_.gate().unhold(hold_);
  check_mapped();
}

void Reading::check_mapped() {
  if (!mapped_.empty()) engine_.mover()->check_cold(mapped_, engine_.is_passive());
}

}  // namespace tencache
