// SPDX-License-Identifier: Apache-2.0
//
// The phases of a fetch (engine/move/disk/slot_mover.h tells the protocol and why it is safe).
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/racy_access.h"
#include "engine/move/disk/slot_mover.h"
#include "engine/move/migration_permit.h"
#include "engine/move/slot_reader.h"
#include "memory/move_in_parts.h"
#include "platform/write_barrier.h"

namespace tencache {
namespace {

// What is known of a transfer is kept until it ends, and only then are its speed and its work told.
constexpr size_t kFetchesPerTransferMax = 256;

}  // namespace

LateFetches SlotMover::fetch(std::span<Extent* const> extents, StreamSet streams) {
  begin_demand();
  LateFetches late;
  // Phase 1: claim what is cold. What another thread moves is awaited at the end.
  std::vector<const Extent*> left_cold;
  std::vector<Fetch> fetches = claim_fetches(extents, &left_cold);
  if (!fetches.empty()) {
    // Phase 2: room. No permit is held: room comes from the evictor, which needs one itself.
    take_room(fetches);
    for (const Fetch& fetch : fetches) late.bytes += fetch.extent->bytes;
    late.count = fetches.size();
    move_in(fetches, &left_cold);
  }
  // Phase 5: others' work.
  std::vector<Extent*> cold_again;
  for (Extent* extent : extents) {
    bool has_waited = false;
    for (;;) {
      const uint64_t word = extent->load();
      const ExtentState state = Extent::state_of(word);
      if (Extent::usable_in(state)) break;
      if (state == ExtentState::kCold) {
        // An eviction that was sealed before our pin went through, unless we just left it cold.
        const bool is_left = std::ranges::find(left_cold, extent) != left_cold.end();
        if (!is_left) cold_again.push_back(extent);
        break;
      }
      TENCACHE_CHECK(state != ExtentState::kVacant && state != ExtentState::kCached,
                     "an op uses freed memory at %p", static_cast<void*>(extent->address));
      extent->wait_while(word);
      has_waited = true;
    }
    // It was on its way already; early enough only if it has landed since the op looked.
    if (has_waited) {
      note_late(extent, &late);
    } else {
      count_early(extent);
    }
  }
  end_demand();
  if (cold_again.empty()) return late;
  const LateFetches again = fetch(cold_again, streams);
  return {late.count + again.count, late.bytes + again.bytes};
}

uint64_t SlotMover::prefetch(RequestSource& requests) {
  std::vector<Fetch> fetches;
  uint64_t lacking_bytes = 0;
  if (!begin_next(requests, &fetches, &lacking_bytes)) return lacking_bytes;
  // The disk does not run dry between two of them, for as long as there are requests and room.
  const NextRead next_read = [&](SlotRead* read) {
    if (fetches.size() == kFetchesPerTransferMax || fork_latch_.is_closed()) return false;
    if (!begin_next(requests, &fetches, &lacking_bytes)) return false;
    *read = {fetches.back().extent, fetches.back().scratch};
    return true;
  };
  std::vector<const Extent*> left_cold;
  move_in(fetches, &left_cold, next_read);
  return lacking_bytes;
}

// False when there is no order, or no room for the next one.
bool SlotMover::begin_next(RequestSource& requests, std::vector<Fetch>* fetches,
                           uint64_t* lacking_bytes) {
  *lacking_bytes = 0;
  while (const std::optional<MoveRequest> request = requests.take()) {
    if (!request->is_current() || request->is_outdated()) continue;
    wait_while_sealing(*request->extent);
    if (!request->extent->claim_for_fetch()) continue;
    Fetch fetch = {request->extent, true};
    const AheadOutcome outcome = begin_ahead(&fetch);
    if (outcome == AheadOutcome::kLeftCold) continue;
    if (outcome == AheadOutcome::kBegun) {
      fetches->push_back(fetch);
      return true;
    }
    requests.put_back(*request);
    *lacking_bytes = request->bytes;
    return false;
  }
  return false;
}

// The extent is cold again where this does not begin.
SlotMover::AheadOutcome SlotMover::begin_ahead(Fetch* fetch) {
  const uint64_t bytes = fetch->extent->bytes;
  // Told before the room is taken, so that whoever misses the room finds out why.
  bytes_ahead_.fetch_add(bytes);
  AheadOutcome outcome = AheadOutcome::kNoRoom;
  if (!heap_.may_have_room(bytes)) {
    fetch->extent->abandon_fetch();
  } else if (!make_scratch(fetch)) {
    outcome = AheadOutcome::kLeftCold;
  } else {
    furnish(fetch);
    const uint64_t lacking_bytes = bytes - fetch->room_bytes;
    if (lacking_bytes == 0 || heap_.budget().try_reserve(lacking_bytes)) {
      fetch->room_bytes = bytes;
      return AheadOutcome::kBegun;
    }
    heap_.arena().drop_scratch(fetch->scratch, bytes);
    heap_.budget().release(fetch->room_bytes);
    fetch->extent->abandon_fetch();
  }
  bytes_ahead_.fetch_sub(bytes);
  return outcome;
}

void SlotMover::move_in(const std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold,
                        const NextRead& next_read) {
  MigrationPermit permit(fork_latch_);
  const uint64_t begin_ns = now_ns();
  const uint64_t begin_work_ns = thread_work_ns();
  // Phase 3: bytes, into pages that nobody sees. Phase 4, as soon as all of an extent is there: its
  // pages take their place.
  read_back(fetches, left_cold, next_read);
  uint64_t bytes = 0;
  for (const Fetch& fetch : fetches) bytes += fetch.extent->bytes;
  read_speed_.add(bytes, now_ns() - begin_ns);
  read_work_.add(bytes, thread_work_ns() - begin_work_ns);
}

std::vector<SlotMover::Fetch> SlotMover::claim_fetches(std::span<Extent* const> extents,
                                                       std::vector<const Extent*>* left_cold) {
  std::vector<Fetch> fetches;
  for (Extent* extent : extents) {
    if (!extent->claim_for_fetch()) continue;
    Fetch fetch = {extent};
    if (make_scratch(&fetch)) {
      fetches.push_back(fetch);
    } else {
      left_cold->push_back(extent);
    }
  }
  return fetches;
}

// False when the kernel refuses; the extent is cold again then.
bool SlotMover::make_scratch(Fetch* fetch) {
  const Result<char*> scratch = heap_.arena().make_scratch(fetch->extent->bytes);
  if (!scratch.is_ok()) {
    leave_cold(*fetch, scratch.status());
    return false;
  }
  fetch->scratch = scratch.value();
  return true;
}

void SlotMover::furnish(Fetch* fetch) {
  const Frames frames = heap_.gather_frames(fetch->scratch, fetch->extent->bytes);
  fetch->room_bytes = frames.bytes;
  fetch->mapping_count = frames.mapping_count;
}

void SlotMover::take_room(std::span<Fetch> fetches) {
  uint64_t lacking_bytes = 0;
  for (Fetch& fetch : fetches) {
    furnish(&fetch);
    lacking_bytes += fetch.extent->bytes - fetch.room_bytes;
  }
  if (lacking_bytes > 0) heap_.reserve_or_exceed(lacking_bytes);
  for (Fetch& fetch : fetches) fetch.room_bytes = fetch.extent->bytes;
}

void SlotMover::read_back(const std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold,
                          const NextRead& next_read) {
  std::vector<SlotRead> reads;
  reads.reserve(fetches.size());
  for (const Fetch& fetch : fetches) reads.push_back({fetch.extent, fetch.scratch});
  const auto on_read = [&](size_t index) {
    const Fetch& fetch = fetches[index];
    const uint64_t bytes_ahead = fetch.is_ahead ? fetch.extent->bytes : 0;
    merge_and_move(fetch, left_cold);
    bytes_ahead_.fetch_sub(bytes_ahead);
  };
  const SlotReadResult result = read_slots(disk_, reads, on_read, stats_, next_read);
  if (result.done == fetches.size()) return;
  const std::span<const Fetch> unread = std::span(fetches).subspan(result.done);
  // A guess must not end the program: it may never need these bytes.
  if (!unread.front().is_ahead) end_for_unreadable_slots(disk_, result.status);
  give_up_fetches(unread, result.status, left_cold);
}

void SlotMover::give_up_fetches(std::span<const Fetch> fetches, const Status& reason,
                                std::vector<const Extent*>* left_cold) {
  for (const Fetch& fetch : fetches) {
    if (fetch.is_ahead) bytes_ahead_.fetch_sub(fetch.extent->bytes);
    heap_.arena().drop_scratch(fetch.scratch, fetch.extent->bytes);
    leave_cold(fetch, reason);
    left_cold->push_back(fetch.extent);
  }
}

void SlotMover::merge_and_move(const Fetch& fetch, std::vector<const Extent*>* left_cold) {
  Extent* extent = fetch.extent;
  extent->begin_merge();
  TouchedPages touched;
  uint64_t moved_bytes = 0;
  Status status = merge_written_pages(fetch, &touched);
  if (status.is_ok()) status = move_scratch(fetch, &moved_bytes);
  if (!status.is_ok()) {
    // What has moved stays, like pages that the program wrote: the next fetch merges them.
    Status unprotected = heap_.arena().unprotect(extent->address, extent->bytes);
    TENCACHE_CHECK(unprotected.is_ok(), "%s", unprotected.message().c_str());
    heap_.arena().drop_scratch(fetch.scratch + moved_bytes, extent->bytes - moved_bytes);
    leave_cold(fetch, status);
    left_cold->push_back(extent);
    return;
  }
  add(stats_.fetched_bytes, extent->bytes);
  heap_.count_unannounced(touched);
  if (!touched.written.empty()) extent->set_flags(kFlagDirty);
  // Only now are the pages of the page cache no longer mapped and can be dropped.
  if (touched.read_count > 0) disk_.drop_page_cache(extent->slot);
  // Who waits for it already counts it as late, so the mark has to be there first.
  if (fetch.is_ahead) extent->set_flags(kFlagAhead);
  heap_.set_mapping_count(extent, fetch.mapping_count);
  extent->become_resident();
}

// Whichever of the two stands behind an address meanwhile, the bytes are the same.
Status SlotMover::move_scratch(const Fetch& fetch, uint64_t* moved_bytes) {
  char* const address = fetch.extent->address;
  return move_in_parts(fetch.extent->bytes, fetch.mapping_count, moved_bytes,
                       [&](uint64_t offset, uint64_t part_bytes) {
                         return heap_.arena().move_onto(fetch.scratch + offset, address + offset,
                                                        part_bytes);
                       });
}

// Pages that were written behind the gate's back win over what the slot holds.
Status SlotMover::merge_written_pages(const Fetch& fetch, TouchedPages* touched) {
  const Extent* extent = fetch.extent;
  TENCACHE_RETURN_IF_ERROR(WriteBarrier::ensure_installed());
  TENCACHE_RETURN_IF_ERROR(heap_.arena().protect(extent->address, extent->bytes));
  TENCACHE_RETURN_IF_ERROR(page_map_.scan(extent->address, extent->bytes, touched));
  for (const uint32_t page : touched->written) {
    const uint64_t offset = uint64_t{page} * kPageBytes;
    const RacyReads racy;  // whoever wrote them did so without a gate
    memcpy(fetch.scratch + offset, extent->address + offset, kPageBytes);
  }
  return Status::ok();
}

void SlotMover::leave_cold(const Fetch& fetch, const Status& reason) {
  if (!warned_left_cold_.exchange(true)) {
    TENCACHE_LOG_WARNING("a tensor stays in the spill file, where it can be used but slowly: %s",
                         reason.clause().c_str());
  }
  heap_.budget().release(fetch.room_bytes);
  fetch.extent->abandon_fetch();
}

}  // namespace tencache
