// SPDX-License-Identifier: Apache-2.0
//
// The phases of a fetch (engine/slot_migrations.h tells the protocol and why it is safe).
#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/write_barrier.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/racy_access.h"
#include "engine/migration_permit.h"
#include "engine/slot_migrations.h"
#include "engine/slot_reader.h"

namespace tencache {
void SlotMigrations::fetch(std::span<Extent* const> extents, StreamSet streams) {
  begin_demand();
  // Phase 1: claim what is cold. What another thread moves is awaited at the end.
  std::vector<Fetch> fetches = claim_fetches(extents);
  std::vector<const Extent*> left_cold;
  if (!fetches.empty()) {
    // Phase 2: room. No permit is held: room comes from the migrator, which needs one itself.
    uint64_t bytes = 0;
    for (Fetch& fetch : fetches) {
      fetch.frames = heap_.take_frames(fetch.extent->bytes);
      if (fetch.frames == nullptr) bytes += fetch.extent->bytes;
    }
    if (bytes > 0) heap_.reserve_or_exceed(bytes);
    add(stats_.late_fetches, fetches.size());
    move_in(std::move(fetches), &left_cold);
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
    count_ahead(extent, !has_waited);
  }
  end_demand();
  if (!cold_again.empty()) fetch(cold_again, streams);
}

size_t SlotMigrations::prefetch(std::span<const Order> orders, uint64_t* lacking_bytes) {
  std::vector<Fetch> fetches;
  size_t carried_out = 0;
  uint64_t bytes_ahead = 0;
  *lacking_bytes = 0;
  for (const Order& order : orders) {
    if (!order.is_current() || order.is_outdated()) {
      ++carried_out;
      continue;
    }
    wait_while_sealing(*order.extent);
    if (order.extent->claim_for_fetch()) {
      const uint64_t bytes = order.extent->bytes;
      // Told before the room is taken, so that whoever misses the room finds out why.
      bytes_ahead_.fetch_add(bytes);
      Extent* frames = heap_.take_frames(bytes);
      if (frames == nullptr && !heap_.budget().try_reserve(bytes)) {
        bytes_ahead_.fetch_sub(bytes);
        order.extent->abandon_fetch();
        *lacking_bytes = bytes;
        break;
      }
      bytes_ahead += bytes;
      fetches.push_back({order.extent, nullptr, true, frames});
    }
    ++carried_out;
  }
  std::vector<const Extent*> left_cold;
  if (!fetches.empty()) move_in(std::move(fetches), &left_cold);
  bytes_ahead_.fetch_sub(bytes_ahead);
  return carried_out;
}

void SlotMigrations::move_in(std::vector<Fetch> fetches, std::vector<const Extent*>* left_cold) {
  MigrationPermit permit(gate_);
  const uint64_t begin_ns = now_ns();
  const uint64_t begin_work_ns = thread_work_ns();
  uint64_t bytes = 0;
  // Phase 3: bytes, into pages that nobody sees.
  make_scratch(fetches, left_cold);
  for (const Fetch& fetch : fetches) bytes += fetch.extent->bytes;
  // Phase 4, as soon as all of an extent is there: its pages take their place.
  read_back(fetches, left_cold);
  read_speed_.add(bytes, now_ns() - begin_ns);
  read_work_.add(bytes, thread_work_ns() - begin_work_ns);
}

std::vector<SlotMigrations::Fetch> SlotMigrations::claim_fetches(std::span<Extent* const> extents) {
  std::vector<Fetch> fetches;
  for (Extent* extent : extents) {
    if (extent->claim_for_fetch()) fetches.push_back({extent, nullptr, false, nullptr});
  }
  return fetches;
}

void SlotMigrations::make_scratch(std::vector<Fetch>& fetches,
                                  std::vector<const Extent*>* left_cold) {
  std::vector<Fetch> ready;
  ready.reserve(fetches.size());
  for (Fetch& fetch : fetches) {
    Result<char*> scratch = fetch.frames != nullptr
                                ? Result<char*>(fetch.frames->address)
                                : heap_.arena().make_scratch(fetch.extent->bytes);
    if (scratch.is_ok()) {
      fetch.scratch = scratch.value();
      ready.push_back(fetch);
    } else {
      leave_cold(fetch, scratch.status());
      left_cold->push_back(fetch.extent);
    }
  }
  fetches = std::move(ready);
}

void SlotMigrations::read_back(const std::vector<Fetch>& fetches,
                               std::vector<const Extent*>* left_cold) {
  std::vector<SlotRead> reads;
  reads.reserve(fetches.size());
  for (const Fetch& fetch : fetches) reads.push_back({fetch.extent, fetch.scratch});
  const auto on_read = [&](size_t index) { merge_and_move(fetches[index], left_cold); };
  const SlotReadResult result = read_slots(disk_, reads, on_read, stats_);
  if (result.done == fetches.size()) return;
  const std::span<const Fetch> unread = std::span(fetches).subspan(result.done);
  // A guess must not end the program: it may never need these bytes.
  if (!unread.front().is_ahead) end_for_unreadable_slots(disk_, result.status);
  give_up_fetches(unread, result.status, left_cold);
}

void SlotMigrations::give_up_fetches(std::span<const Fetch> fetches, const Status& reason,
                                     std::vector<const Extent*>* left_cold) {
  for (const Fetch& fetch : fetches) {
    drop_scratch(fetch);
    leave_cold(fetch, reason);
    left_cold->push_back(fetch.extent);
  }
}

void SlotMigrations::merge_and_move(const Fetch& fetch, std::vector<const Extent*>* left_cold) {
  Extent* extent = fetch.extent;
  extent->begin_merge();
  TouchedPages touched;
  Status status = merge_written_pages(fetch, &touched);
  if (status.is_ok()) status = move_scratch(fetch);
  if (!status.is_ok()) {
    Status unprotected = heap_.arena().unprotect(extent->address, extent->bytes);
    TENCACHE_CHECK(unprotected.is_ok(), "%s", unprotected.message().c_str());
    drop_scratch(fetch);
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
  extent->become_resident();
  if (fetch.frames != nullptr) heap_.give_up_frames(fetch.frames);  // only addresses are left of it
}

Status SlotMigrations::move_scratch(const Fetch& fetch) {
  AddressArena& arena = heap_.arena();
  const Extent* extent = fetch.extent;
  if (fetch.frames == nullptr) {
    return arena.move_onto(fetch.scratch, extent->address, extent->bytes);
  }
  Status status = arena.move_frames(fetch.scratch, extent->address, extent->bytes);
  if (status.is_ok()) return status;
  // The program may have split the range's mapping (madvise, mlock of a part), and the kernel moves
  // only what is one.
  const Result<char*> fresh = arena.make_scratch(extent->bytes);
  if (!fresh.is_ok()) return status;
  memcpy(fresh.value(), fetch.scratch, extent->bytes);
  status = arena.move_onto(fresh.value(), extent->address, extent->bytes);
  if (!status.is_ok()) arena.drop_scratch(fresh.value(), extent->bytes);
  return status;
}

// Pages that were written behind the gate's back win over what the slot holds.
Status SlotMigrations::merge_written_pages(const Fetch& fetch, TouchedPages* touched) {
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

void SlotMigrations::drop_scratch(const Fetch& fetch) {
  if (fetch.frames != nullptr) {
    heap_.give_up_frames(fetch.frames);
  } else {
    heap_.arena().drop_scratch(fetch.scratch, fetch.extent->bytes);
  }
}

void SlotMigrations::leave_cold(const Fetch& fetch, const Status& reason) {
  if (!warned_left_cold_.exchange(true)) {
    TENCACHE_LOG_WARNING("a tensor stays in the spill file, where it can be used but slowly: %s",
                         reason.clause().c_str());
  }
  heap_.budget().release(fetch.extent->bytes);
  fetch.extent->abandon_fetch();
}

}  // namespace tencache
