// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/machine_meter.h"

#include <algorithm>

#include "engine/gate/op_timer.h"
#include "engine/move/mover.h"
#include "memory/budget.h"
#include "memory/heap.h"

namespace tencache {
namespace {

// The assumed speed of a link before enough was moved to tell.
constexpr double kUnknownBytesPerS = 1e9;
// What one migration takes besides moving its bytes: system calls and table entries.
constexpr uint64_t kFixedNs = 50'000;

}  // namespace

// Small blocks count here, extents that are to stay resident, and those that no op has named yet,
// but not the period's own tensors. Those are in the period already: an op is about to name them,
// or none ever does.
uint64_t MachineMeter::fixed_bytes(const Period& period) const {
  uint64_t fixed = parts_.heap->small_bytes();
  for (const ListedExtent& listed : parts_.heap->extents()) {
    const uint64_t word = listed.extent->load();
    if (Extent::state_of(word) != ExtentState::kResident) continue;
    const bool is_kept = (word & kFlagKeepResident) != 0;
    const bool is_seen = (word & kFlagSeen) != 0;
    const uint64_t id = listed.extent->id.load(std::memory_order_relaxed);
    if (is_kept || (!is_seen && id < period.first_born_id)) fixed += listed.bytes;
  }
  return fixed;
}

// A plan leaves the evictor its headroom, so that passes only have to make up for deviations, and
// leaves other programs what they have.
uint64_t MachineMeter::budget_bytes() const {
  const uint64_t limit_bytes = parts_.heap->budget().limit();
  const uint64_t left_bytes = headroom_of(limit_bytes) + parts_.heap->others_bytes();
  return limit_bytes - std::min(limit_bytes, left_bytes);
}

Machine MachineMeter::measure() {
  const Mover& mover = *parts_.mover;
  const MoveLedger& moves = mover.ledger();
  Machine machine;
  machine.budget_bytes = budget_bytes();
  machine.read_bytes_per_s = moves.read_speed.bytes_per_s(kUnknownBytesPerS);
  machine.write_bytes_per_s = moves.write_speed.bytes_per_s(kUnknownBytesPerS);
  machine.is_half_duplex = moves.duplex.is_half_duplex();
  if (machine.is_half_duplex) {
    machine.gain_of_both = std::max(1.0, moves.duplex.gain_of_both());
    // Where reads and writes take turns, each is as fast as if it were alone.
    machine.read_bytes_per_s =
        moves.duplex.bytes_per_s_alone(IoDirection::kRead, machine.read_bytes_per_s);
    machine.write_bytes_per_s =
        moves.duplex.bytes_per_s_alone(IoDirection::kWrite, machine.write_bytes_per_s);
  }
  machine.is_read_guessed = moves.read_speed.bytes_per_s(0) == 0;
  machine.is_write_guessed = moves.write_speed.bytes_per_s(0) == 0;
  machine.read_fixed_ns = kFixedNs;
  machine.write_fixed_ns = kFixedNs;
  if (parts_.wait_timer != nullptr) {
    machine.wait_resolution_ns = parts_.wait_timer->resolution_ns();
  }
  mover.describe_below(&machine);
  const double share = processors_.used_share();
  machine.read_work_ns_per_byte = share * moves.read_work.ns_per_byte(0);
  machine.write_work_ns_per_byte = share * moves.write_work.ns_per_byte(0);
  machine.drop_work_ns_per_byte = share * moves.drop_work.ns_per_byte(0);
  return machine;
}

}  // namespace tencache
