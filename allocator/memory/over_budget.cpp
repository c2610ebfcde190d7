// SPDX-License-Identifier: Apache-2.0
#include "memory/over_budget.h"

#include <algorithm>

#include "base/units.h"

namespace tencache {
namespace {

enum class Cause : uint8_t { kInUse, kKept, kUnnamed, kSmall, kWritten };

Cause main_cause(const StuckBytes& stuck) {
  const uint64_t most =
      std::max({stuck.in_use, stuck.kept, stuck.unnamed, stuck.small, stuck.written});
  if (stuck.in_use == most) return Cause::kInUse;
  if (stuck.small == most) return Cause::kSmall;
  if (stuck.written == most) return Cause::kWritten;
  return stuck.kept == most ? Cause::kKept : Cause::kUnnamed;
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
  switch (main_cause(stuck)) {
    case Cause::kInUse:
      return "what it uses at once";
    case Cause::kKept:
      return "with " + format_bytes(stuck.kept) +
             " of tensors that packed weights or graphs keep in place, the total";
    case Cause::kUnnamed:
      return "with " + format_bytes(stuck.unnamed) + " that no op has used yet, the total";
    case Cause::kSmall:
      return "with " + format_bytes(stuck.small) + " of tensors smaller than " +
             format_bytes(extent_min_bytes) + ", which stay, the total";
    case Cause::kWritten:
      return "with " + format_bytes(stuck.written) +
             " that it wrote outside of ops to tensors that had left, the total";
  }
  return {};
}

std::string remedy_for_excess(const StuckBytes& stuck, bool may_be_smaller) {
  if (main_cause(stuck) != Cause::kSmall || !may_be_smaller) return {};
  return ", and a lower --extent-min lets smaller tensors leave";
}

}  // namespace tencache
