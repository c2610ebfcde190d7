// SPDX-License-Identifier: Apache-2.0
#include "memory/over_budget.h"

#include <algorithm>

#include "base/units.h"

namespace tencache {
namespace {

uint64_t most_of(const StuckBytes& stuck) {
  return std::max({stuck.in_use, stuck.kept, stuck.unnamed, stuck.small, stuck.written});
}

}  // namespace

StuckBytes add_up_stuck(std::span<const ListedExtent> extents, uint64_t small_bytes,
                        uint64_t written_bytes) {
  StuckBytes stuck = {.small = small_bytes, .written = written_bytes};
  for (const ListedExtent& listed : extents) {
    const uint64_t word = listed.extent->load();
    const ExtentState state = Extent::state_of(word);
    if (state == ExtentState::kVacant || state == ExtentState::kCold) continue;
    if (Extent::pins_of(word) > 0) {
      stuck.in_use += listed.bytes;
    } else if ((word & kFlagKeepResident) != 0) {
      stuck.kept += listed.bytes;
    } else if (listed.extent->is_kept_unseen()) {
      stuck.unnamed += listed.bytes;
    }
  }
  return stuck;
}

std::string cause_of_excess(const StuckBytes& stuck, uint64_t extent_min_bytes) {
  const uint64_t most = most_of(stuck);
  if (stuck.in_use == most) return "what it uses at once";
  std::string what = " that no op has used yet";
  if (stuck.small == most) {
    what = " of tensors smaller than " + format_bytes(extent_min_bytes) + ", which stay";
  } else if (stuck.written == most) {
    what = " that it wrote outside of ops to tensors that had left";
  } else if (stuck.kept == most) {
    what = " of tensors that packed weights or graphs keep in place";
  }
  return "with " + format_bytes(most) + what + ", the total";
}

std::string remedy_for_excess(const StuckBytes& stuck, bool may_be_smaller) {
  const uint64_t most = most_of(stuck);
  const bool is_small = stuck.small == most && stuck.in_use < most;
  if (!is_small || !may_be_smaller) return {};
  return ", and a lower --extent-min lets smaller tensors leave";
}

}  // namespace tencache
