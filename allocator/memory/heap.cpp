// SPDX-License-Identifier: Apache-2.0
#include "memory/heap.h"

#include <algorithm>

#include "base/log.h"
#include "base/units.h"
#include "memory/over_budget.h"
#include "memory/unnamed_extents.h"

namespace tencache {
namespace {

/// How many ops that may not stop halfway are open on this thread.
__attribute__((tls_model("initial-exec"))) thread_local uint32_t t_whole_ops = 0;

uint64_t cold_bytes_of(std::span<Extent* const> extents) {
  uint64_t bytes = 0;
  for (const Extent* extent : extents) {
    if (extent->state() == ExtentState::kCold) bytes += extent->bytes;
  }
  return bytes;
}

}  // namespace

void Heap::begin_whole_op() { ++t_whole_ops; }
void Heap::end_whole_op() { --t_whole_ops; }

Status Heap::reserve(uint64_t bytes, uint64_t requested_bytes, StreamSet streams) {
  if (budget_.try_reserve(bytes)) return Status::ok();
  while (drop_idle_cached(budget_.lacking(bytes)) > 0) {
    if (budget_.try_reserve(bytes)) return Status::ok();
  }
  const RoomWait wait(*this, streams);
  Status reason;
  Status status =
      climb({.bytes = bytes, .requested_bytes = requested_bytes, .streams = streams}, &reason);
  const bool is_disks_fault = !status.is_ok() && !reason.is_ok();
  if (!is_disks_fault || t_whole_ops == 0) return status;
  exceed(bytes, reason);
  return Status::ok();
}

void Heap::reserve_or_exceed(uint64_t bytes, uint64_t soon_bytes, StreamSet streams) {
  if (budget_.try_reserve(bytes)) return;
  const WantedRoom wanted = {
      .bytes = bytes, .requested_bytes = bytes, .soon_bytes = soon_bytes, .streams = streams};
  Status reason;
  if (!climb(wanted, &reason).is_ok()) exceed(bytes, reason);
}

void Heap::exceed(uint64_t bytes, const Status& reason) {
  const uint64_t excess_bytes = budget_.force_reserve(bytes);
  const bool is_full = reason.code() == StatusCode::kNoSpace;
  const bool is_to_blame = is_full || (!reason.is_ok() && room_maker_->is_disk_failing());
  if (excess_bytes > 0 && is_to_blame) note_debt(bytes, excess_bytes, reason);
  count_over_budget(bytes, excess_bytes);
}

// Puts the heap in debt: the op must not run without its bytes, and the gate cannot refuse it.
void Heap::note_debt(uint64_t bytes, uint64_t excess_bytes, const Status& reason) {
  is_in_debt_.store(true, std::memory_order_relaxed);
  if (warned_debt_.exchange(true)) return;
  warned_excess_bytes_.store(~uint64_t{0});  // that warning would name another cause
  const std::string op = room_maker_->current_op();
  TENCACHE_LOG_WARNING(
      "%s needs %s back in memory, nothing can leave for it, and the budget of %s is exceeded by "
      "%s (counted as over_budget): %s. As long as this is so, nothing is allocated: whatever asks "
      "for memory gets an out-of-memory error",
      op.empty() ? "the program" : op.c_str(), format_bytes(bytes).c_str(),
      format_bytes(budget_.limit()).c_str(), format_bytes(excess_bytes).c_str(),
      reason.clause().c_str());
}

Status Heap::pay_debt(uint64_t requested_bytes) {
  if (t_whole_ops > 0) return Status::ok();  // the debt stays
  constexpr uint64_t kLeast = 1;             // the last byte that must fit, too
  drop_cached_above_budget();
  if (budget_.used() > budget_.limit()) {
    const RoomWait wait(*this, kNoStreams);
    Status reason;
    TENCACHE_RETURN_IF_ERROR(climb({.bytes = kLeast, .requested_bytes = requested_bytes}, &reason));
    budget_.release(kLeast);
  }
  is_in_debt_.store(false, std::memory_order_relaxed);
  return Status::ok();
}

// Each round lets something leave that needs no write. The loop ends when the cold bytes have room,
// the disk takes something again, or nothing can leave. On a GPU, host memory takes what leaves, so
// one look at the debt has to do.
Status Heap::admit(std::span<Extent* const> extents) {
  uint64_t cold_bytes = cold_bytes_of(extents);
  if (is_in_debt()) TENCACHE_RETURN_IF_ERROR(pay_debt(cold_bytes));
  while (is_cold_usable() && t_whole_ops == 0 && room_maker_->is_disk_failing()) {
    const uint64_t room_bytes = budget_.free() + cached_bytes();
    if (cold_bytes <= room_bytes) break;
    const RoomWait wait(*this, kNoStreams);
    const WantedRoom wanted = {.bytes = room_bytes + 1, .requested_bytes = cold_bytes};
    Status reason;
    if (!await_room(wanted, &reason)) {
      return reason.is_ok() ? reason : out_of_memory(wanted, reason);
    }
    budget_.release(wanted.bytes);
    cold_bytes = cold_bytes_of(extents);
  }
  return Status::ok();
}

void Heap::await_any_room(uint64_t bytes, uint64_t soon_bytes) {
  if (!can_use_any_cached() || may_have_room(bytes)) return;
  room_maker_->await_any_room(bytes, soon_bytes);
}

bool Heap::evict_more(uint64_t bytes) {
  Status reason;
  return budget_.try_reserve(bytes) ||
         await_room({.bytes = bytes, .requested_bytes = bytes}, &reason);
}

bool Heap::await_room(const WantedRoom& wanted, Status* reason) {
  room_waiters_.fetch_add(1, std::memory_order_relaxed);
  const bool has_room = room_maker_->make_room(wanted.bytes, wanted.soon_bytes, reason);
  room_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return has_room;
}

// Climbs the ladder to reserve room. Its rungs are:
//   1. Drop cached memory that is idle or of the asking streams.
//   2. Evict, but not in strict mode.
//   3. Drop all cached memory.
//   4. In strict mode return an error.
//   5. Return an error if a full or failing disk is to blame.
//   6. On the cpu backend, evict also what no op has named, the oldest first.
//   7. Return an error if the program has set a bound, or the device holds no more.
//   8. Go over the budget.
Status Heap::climb(const WantedRoom& wanted, Status* reason) {
  const uint64_t bytes = wanted.bytes;
  if (take_cached_of(wanted)) return Status::ok();
  if (!config_.strict && await_room(wanted, reason)) return Status::ok();
  if (take_cached_of(wanted)) return Status::ok();
  do {
    if (budget_.try_reserve(bytes)) return Status::ok();
  } while (drop_cached(budget_.lacking(bytes)) > 0);
  if (config_.strict) return out_of_memory(wanted, Status::ok());
  // A full or failing disk keeps in memory what should leave it. Going on would end with the kernel
  // killing the process, so the program gets an error that it can handle.
  if (!reason->is_ok()) return out_of_memory(wanted, *reason);
  while (let_unnamed_leave(bytes + wanted.soon_bytes)) {
    if (await_room(wanted, reason)) return Status::ok();
    if (!reason->is_ok()) return out_of_memory(wanted, *reason);
  }
  if (is_bounded_.load(std::memory_order_relaxed)) {
    return out_of_memory(wanted, {StatusCode::kOutOfMemory,
                                  "The program allows itself no more of the GPU's memory "
                                  "(torch.cuda.set_per_process_memory_fraction)."});
  }
  const uint64_t used = budget_.used();
  if (used - std::min(used, others_bytes()) + bytes > device_bytes_max()) {
    return beyond_device(wanted);
  }
  count_over_budget(bytes, budget_.force_reserve(bytes));
  return Status::ok();
}

// Reserves room that was cached, without a wait for other streams than those that want it.
bool Heap::take_cached_of(const WantedRoom& wanted) {
  while (drop_cached_of(budget_.lacking(wanted.bytes), wanted.streams) > 0) {
    if (budget_.try_reserve(wanted.bytes)) return true;
  }
  return false;
}

bool Heap::let_unnamed_leave(uint64_t bytes) {
  return is_cold_usable() &&
         count_oldest_as_seen(extents(), bytes, headroom_of(budget_.limit())) > 0;
}

// The first op that needs more is seldom the largest, so the warning comes again as the excess
// doubles.
bool Heap::is_worth_a_warning(uint64_t excess_bytes) {
  uint64_t warned = warned_excess_bytes_.load(std::memory_order_relaxed);
  while (excess_bytes / 2 >= warned) {
    if (warned_excess_bytes_.compare_exchange_weak(warned, excess_bytes)) return true;
  }
  return false;
}

void Heap::count_over_budget(uint64_t bytes, uint64_t excess_bytes, const char* act) {
  if (excess_bytes == 0) return;
  add(stats_.over_budget_events, 1);
  raise_to(stats_.over_budget_peak_bytes, excess_bytes);
  if (!is_worth_a_warning(excess_bytes)) return;
  const std::string op = room_maker_->current_op();
  const StuckBytes stuck = add_up_stuck(extents(), small_bytes(), unannounced_bytes());
  TENCACHE_LOG_WARNING(
      "%s %s %s, and %s exceeds the budget of %s by %s (counted as over_budget); "
      "--device-memory %s would hold it%s",
      op.empty() ? "the program" : op.c_str(), act, format_bytes(bytes).c_str(),
      cause_of_excess(stuck, config_.extent_min_bytes).c_str(),
      format_bytes(budget_.limit()).c_str(), format_bytes(excess_bytes).c_str(),
      option_bytes(budget_.limit() + excess_bytes).c_str(),
      remedy_for_excess(stuck, may_extents_be_smaller()).c_str());
}

// The error for a refused request. `rest` completes the sentence that the message begins, and ends
// with what helps.
Status Heap::refusal(uint64_t requested_bytes, const std::string& rest) const {
  const std::string op = room_maker_->current_op();
  return Status(StatusCode::kOutOfMemory, "tencache ran out of memory. Tried to allocate " +
                                              format_bytes(requested_bytes) +
                                              (op.empty() ? "" : " in " + op) + " " + rest);
}

Status Heap::out_of_memory(const WantedRoom& wanted, const Status& reason) const {
  const uint64_t would_do = budget_.used() + wanted.bytes;
  std::string rest = "with " + format_bytes(budget_.used()) + " of the device budget of " +
                     format_bytes(budget_.limit()) + " in use. ";
  if (reason.is_ok()) {
    rest += "Strict mode does not spill; this allocation would have fitted into " +
            option_bytes(would_do) +
            ", and later ones may need more: raise --device-memory or leave out --strict.";
  } else {
    rest += "Nothing can be spilled: " + reason.clause() +
            ". The smallest budget that would do here without spilling more is " +
            option_bytes(would_do) + ".";
  }
  return refusal(wanted.requested_bytes, rest);
}

Status Heap::beyond_device(const WantedRoom& wanted) const {
  return refusal(wanted.requested_bytes,
                 "with " + format_bytes(live_bytes()) +
                     " in use, which cannot leave: no op has used it yet, or one is using it. The "
                     "GPU has " +
                     format_bytes(device_bytes_max()) + " in all; use less of it at once.");
}

Status Heap::never_fits(uint64_t requested_bytes, uint64_t bytes_max) const {
  return refusal(requested_bytes, "at once, and this machine holds at most " +
                                      format_bytes(bytes_max) + "; make the tensor smaller.");
}

}  // namespace tencache
