// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cpu/slot_fetches.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/racy_access.h"
#include "memory/move_in_parts.h"
#include "platform/blocked_signals.h"
#include "platform/write_barrier.h"

namespace tencache {
namespace {

// The most fetches of one transfer. They are kept until it ends, and only then are its speed and
// work told.
constexpr size_t kFetchesPerTransferMax = 256;

}  // namespace

LateFetches SlotFetches::fetch(std::span<Extent* const> extents) {
  LateFetches late;
  std::vector<Extent*> cold_again = fetch_once(extents, &late);
  while (!cold_again.empty()) cold_again = fetch_once(cold_again, &late);
  return late;
}

// Tries once to fetch the extents. Returns those that are cold and may be fetched now.
std::vector<Extent*> SlotFetches::fetch_once(std::span<Extent* const> extents, LateFetches* late) {
  std::vector<const Extent*> left_cold;
  {
    const Demand demand(ledger_);
    // Phase 1: claim what is cold. Extents that another thread moves are awaited at the end.
    std::vector<Fetch> fetches = claim(extents, &left_cold);
    if (!fetches.empty()) {
      for (const Fetch& fetch : fetches) late->bytes += fetch.extent->bytes;
      late->count += fetches.size();
      move_in_as_room_appears(fetches, &left_cold);
    }
  }
  // Phase 5: others' work. This thread moves nothing more, so the prefetcher need not pause.
  std::vector<Extent*> cold_again;
  for (Extent* extent : extents) {
    if (await_others(extent, late)) continue;
    // The extent is cold. We have just left it so, or an eviction went through that was sealed
    // before our pin.
    const bool is_left = std::ranges::find(left_cold, extent) != left_cold.end();
    if (!is_left) cold_again.push_back(extent);
  }
  return cold_again;
}

// The extents that an op names may need more room than there is at once. Reading begins with the
// first one that has room, while the evictor makes room for the others.
void SlotFetches::move_in_as_room_appears(std::span<Fetch> fetches,
                                          std::vector<const Extent*>* left_cold) {
  while (!fetches.empty()) {
    // Phase 2: room. No permit is held: room comes from the evictor, which needs one itself.
    await_room(fetches);
    std::vector<Fetch> begun = {fetches.front()};
    const NextRead next_read = [&](SlotRead* read) {
      if (begun.size() == fetches.size() || fork_latch_.is_closed()) return false;
      if (!try_take_room(&fetches[begun.size()])) return false;
      begun.push_back(fetches[begun.size()]);
      *read = {begun.back().extent, begun.back().scratch};
      return true;
    };
    move_in(begun, left_cold, next_read);
    fetches = fetches.subspan(begun.size());
  }
}

// Waits until nobody moves the extent any more. Returns false when it is cold then.
bool SlotFetches::await_others(Extent* extent, LateFetches* late) {
  bool has_waited = false;
  uint64_t word = extent->load();
  while (!Extent::usable_in(Extent::state_of(word)) &&
         Extent::state_of(word) != ExtentState::kCold) {
    const ExtentState state = Extent::state_of(word);
    TENCACHE_CHECK(state != ExtentState::kVacant && state != ExtentState::kCached,
                   "an op uses freed memory at %p", static_cast<void*>(extent->address));
    extent->wait_while(word);
    has_waited = true;
    word = extent->load();
  }
  // The extent was on its way already; it came early only if it has landed since the op looked.
  if (has_waited) {
    MoveLedger::note_late(extent, late);
  } else {
    ledger_.count_early(extent);
  }
  return Extent::state_of(word) != ExtentState::kCold;
}

uint64_t SlotFetches::prefetch(RequestSource& requests) {
  std::vector<Fetch> fetches;
  std::vector<const Extent*> left_cold;
  uint64_t lacking_bytes = 0;
  if (!begin_next(requests, &fetches, &left_cold, &lacking_bytes)) return lacking_bytes;
  // As long as there are requests and room, the disk does not run dry between two of them.
  const NextRead next_read = [&](SlotRead* read) {
    if (fetches.size() == kFetchesPerTransferMax || fork_latch_.is_closed()) return false;
    if (!begin_next(requests, &fetches, &left_cold, &lacking_bytes)) return false;
    *read = {fetches.back().extent, fetches.back().scratch};
    return true;
  };
  move_in(fetches, &left_cold, next_read);
  return lacking_bytes;
}

// Begins the next fetch that is requested. Returns false when there is none, or no room for it.
bool SlotFetches::begin_next(RequestSource& requests, std::vector<Fetch>* fetches,
                             std::vector<const Extent*>* left_cold, uint64_t* lacking_bytes) {
  *lacking_bytes = 0;
  while (const std::optional<MoveRequest> request = requests.take()) {
    if (!request->is_current() || request->is_outdated()) continue;
    wait_while_sealing(*request->extent);
    Fetch fetch = {request->extent, true};
    const AheadOutcome outcome =
        lacks_room(*request) ? AheadOutcome::kNoRoom : begin_ahead(&fetch, left_cold);
    if (outcome == AheadOutcome::kSkipped) continue;
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

// The caller asks this before it claims the extent and looks at its pages, which costs far more. An
// extent that the program is known to have written may need no room.
bool SlotFetches::lacks_room(const MoveRequest& request) const {
  const Extent& extent = *request.extent;
  return extent.state() == ExtentState::kCold && !heap_.may_have_room(request.bytes) &&
         extent.unannounced_bytes.load(std::memory_order_relaxed) == 0;
}

// Claims the extent; where its fetch does not begin then, it is cold again or left to its writers.
SlotFetches::AheadOutcome SlotFetches::begin_ahead(Fetch* fetch,
                                                   std::vector<const Extent*>* left_cold) {
  if (!claim_cold(fetch->extent)) return AheadOutcome::kSkipped;
  if (const std::optional<TouchedPages> touched = written_past_waiting(fetch->extent)) {
    leave_to_writers(fetch->extent, *touched, left_cold);
    return AheadOutcome::kSkipped;
  }
  const uint64_t bytes = fetch->extent->bytes;
  // The ledger is told before the room is taken, so that a thread which misses the room finds out
  // why.
  ledger_.bytes_ahead.fetch_add(bytes);
  AheadOutcome outcome = AheadOutcome::kNoRoom;
  if (!heap_.may_have_room(bytes)) {
    fetch->extent->abandon_fetch();
  } else if (!make_scratch(fetch, left_cold)) {
    outcome = AheadOutcome::kSkipped;
  } else {
    if (try_take_room(fetch)) return AheadOutcome::kBegun;
    heap_.arena().drop_scratch(fetch->scratch, bytes);
    heap_.budget().release(fetch->room_bytes);
    fetch->extent->abandon_fetch();
  }
  ledger_.bytes_ahead.fetch_sub(bytes);
  return outcome;
}

void SlotFetches::fetch_to_evict(std::span<Extent* const> extents) {
  std::vector<Extent*> to_merge;
  for (Extent* extent : extents) {
    if (!adopt(extent)) to_merge.push_back(extent);
  }
  std::vector<const Extent*> left_cold;
  std::vector<Fetch> fetches = claim(to_merge, &left_cold);
  if (fetches.empty()) return;
  for (Fetch& fetch : fetches) {
    const uint64_t bytes = fetch.extent->bytes;
    fetch.is_ahead = true;  // bytes that cannot be read are no reason to end the program now
    ledger_.bytes_ahead.fetch_add(bytes);
    furnish(&fetch);
    take_room_of_written(fetch.extent, fetch.room_bytes);
    note_room_taken(&fetch);
  }
  move_in(fetches, &left_cold);
  for (Extent* extent : to_merge) (void)extent->take_ahead();
}

std::optional<uint64_t> SlotFetches::count_written(Extent* extent) {
  const uint64_t before = extent->unannounced_bytes.load(std::memory_order_relaxed);
  uint64_t excess_bytes = 0;
  std::optional<uint64_t> written_bytes;
  {
    const MigrationPermit permit(fork_latch_);
    const Extent* other = nullptr;
    while (!counted_.compare_exchange_weak(other, extent)) {
      if (other != nullptr) counted_.wait(std::exchange(other, nullptr));
    }
    if (extent->claim_for_fetch()) {  // only to keep others away
      TouchedPages touched;
      if (page_map_.scan(extent->address, extent->bytes, &touched).is_ok()) {
        written_bytes = touched.written.size() * kPageBytes;
        excess_bytes = heap_.note_unannounced(extent, *written_bytes);
      }
      extent->abandon_fetch();
    }
    counted_.store(nullptr);
    counted_.notify_all();
  }
  if (excess_bytes > 0) {
    heap_.count_over_budget(*written_bytes - before, excess_bytes, "wrote");
  }
  return written_bytes;
}

bool SlotFetches::claim_cold(Extent* extent) const {
  while (!extent->claim_for_fetch()) {
    if (!is_counted(extent)) return false;
    counted_.wait(extent);
  }
  return true;
}

// When the program has overwritten a cold extent as a whole, every page of it is private. Such
// pages are anonymous, stay so, and the slot below shows nowhere. So the extent is resident as it
// is: nothing is read, copied, mapped or kept from anybody. Its pages cannot be parked.
bool SlotFetches::adopt(Extent* extent) {
  MigrationPermit permit(fork_latch_);
  if (!claim_cold(extent)) return false;
  TouchedPages touched;
  const bool may_be_whole =
      extent->unannounced_bytes.load(std::memory_order_relaxed) == extent->bytes;
  if (!may_be_whole || !page_map_.scan(extent->address, extent->bytes, &touched).is_ok() ||
      touched.written.size() * kPageBytes != extent->bytes) {
    extent->abandon_fetch();
    return false;
  }
  take_as_it_is(extent, touched);
  return true;
}

// The room of the private pages becomes the extent's. The room that it still lacks is taken at
// once, since the pages leave only with the extent.
void SlotFetches::take_room_of_written(Extent* extent, uint64_t room_bytes) {
  const uint64_t written_bytes = extent->unannounced_bytes.load(std::memory_order_relaxed);
  const uint64_t lacking_bytes = extent->bytes - room_bytes;
  heap_.forget_unannounced(extent);
  const uint64_t excess_bytes = heap_.budget().force_reserve(lacking_bytes);
  if (lacking_bytes <= written_bytes) return;
  heap_.count_over_budget(lacking_bytes - written_bytes, excess_bytes,
                          "wrote outside of ops, which took another");
}

void SlotFetches::take_as_it_is(Extent* extent, const TouchedPages& touched) {
  extent->begin_merge();
  note_written(extent, touched);
  heap_.count_unannounced(touched);
  take_room_of_written(extent, 0);
  extent->is_file_mapped.store(true, std::memory_order_relaxed);
  extent->become_resident();
}

void SlotFetches::move_in(const std::vector<Fetch>& fetches, std::vector<const Extent*>* left_cold,
                          const NextRead& next_read) {
  MigrationPermit permit(fork_latch_);
  const DuplexMeter::Begun begun = ledger_.duplex.begin(IoDirection::kRead, now_ns());
  const uint64_t begin_work_ns = thread_work_ns();
  // Phase 3: bytes, into pages that nobody sees. Phase 4 follows as soon as all of an extent is
  // there: its pages take their place.
  const bool is_read = read_back(fetches, left_cold, next_read);
  // By now an extent may have been freed and its object reused, so the sizes come from `fetches`.
  uint64_t bytes = 0;
  for (const Fetch& fetch : fetches) bytes += fetch.room_bytes;
  const uint64_t end_ns = now_ns();
  ledger_.duplex.end(IoDirection::kRead, begun, is_read ? bytes : 0, end_ns);
  if (!is_read) return;  // what fails may have taken any time
  ledger_.read_speed.add(bytes, end_ns - begun.at_ns);
  ledger_.read_work.add(bytes, thread_work_ns() - begin_work_ns);
}

std::vector<SlotFetches::Fetch> SlotFetches::claim(std::span<Extent* const> extents,
                                                   std::vector<const Extent*>* left_cold) {
  std::vector<Fetch> fetches;
  for (Extent* extent : extents) {
    if (!claim_cold(extent)) continue;
    if (const std::optional<TouchedPages> touched = written_past_waiting(extent)) {
      leave_to_writers(extent, *touched, left_cold);
      continue;
    }
    Fetch fetch = {extent};
    if (make_scratch(&fetch, left_cold)) fetches.push_back(fetch);
  }
  return fetches;
}

// Returns false when the kernel refuses; the extent is cold again then.
bool SlotFetches::make_scratch(Fetch* fetch, std::vector<const Extent*>* left_cold) {
  const Status status = heap_.arena().make_scratch(fetch->extent->bytes).move_to(&fetch->scratch);
  if (!status.is_ok()) leave_cold(*fetch, status, left_cold);
  return status.is_ok();
}

void SlotFetches::furnish(Fetch* fetch) {
  const Frames frames = heap_.gather_frames(fetch->scratch, fetch->extent->bytes);
  fetch->room_bytes = frames.bytes;
  fetch->mapping_count = frames.mapping_count;
}

// Waits for the room of the first fetch, or exceeds the budget. The others will need theirs soon.
void SlotFetches::await_room(std::span<Fetch> fetches) {
  Fetch& first = fetches.front();
  if (try_take_room(&first)) return;
  uint64_t soon_bytes = 0;
  for (const Fetch& fetch : fetches.subspan(1))
    soon_bytes += fetch.extent->bytes - fetch.room_bytes;
  if (first.room_bytes == 0) {
    heap_.await_any_room(first.extent->bytes, soon_bytes);
    if (try_take_room(&first)) return;
  }
  heap_.reserve_or_exceed(first.extent->bytes - first.room_bytes, soon_bytes);
  note_room_taken(&first);
}

bool SlotFetches::try_take_room(Fetch* fetch) {
  // Cached pages are taken once: those that are cached later could not be added to the others.
  if (fetch->room_bytes == 0 && heap_.may_have_room(fetch->extent->bytes)) furnish(fetch);
  const uint64_t lacking_bytes = fetch->extent->bytes - fetch->room_bytes;
  if (lacking_bytes > 0) {
    heap_.bound_cache(lacking_bytes);
    if (!heap_.budget().try_reserve(lacking_bytes)) return false;
  }
  note_room_taken(fetch);
  return true;
}

void SlotFetches::note_room_taken(Fetch* fetch) {
  fetch->room_bytes = fetch->extent->bytes;
  fetch->begun_at = timestamp();
}

// Reads the slots into the scratch pages, and moves each extent in once its slot is read. Returns
// whether all were read.
bool SlotFetches::read_back(const std::vector<Fetch>& fetches,
                            std::vector<const Extent*>* left_cold, const NextRead& next_read) {
  std::vector<SlotRead> reads;
  reads.reserve(fetches.size());
  for (const Fetch& fetch : fetches) reads.push_back({fetch.extent, fetch.scratch});
  const auto on_read = [&](size_t index) {
    const Fetch& fetch = fetches[index];
    const uint64_t bytes_ahead = fetch.is_ahead ? fetch.extent->bytes : 0;
    merge_and_move(fetch, left_cold);
    ledger_.bytes_ahead.fetch_sub(bytes_ahead);
  };
  const SlotReadResult result = read_slots(disk_, reads, on_read, ledger_.stats, next_read);
  if (result.done == fetches.size()) return true;
  const std::span<const Fetch> unread = std::span(fetches).subspan(result.done);
  // A guess must not end the program: it may never need these bytes.
  if (!unread.front().is_ahead) end_for_unreadable_slots(disk_, result.status);
  give_up(unread, result.status, left_cold);
  return false;
}

void SlotFetches::give_up(std::span<const Fetch> fetches, const Status& reason,
                          std::vector<const Extent*>* left_cold) {
  for (const Fetch& fetch : fetches) {
    if (fetch.is_ahead) ledger_.bytes_ahead.fetch_sub(fetch.extent->bytes);
    heap_.arena().drop_scratch(fetch.scratch, fetch.extent->bytes);
    leave_cold(fetch, reason, left_cold);
  }
}

void SlotFetches::merge_and_move(const Fetch& fetch, std::vector<const Extent*>* left_cold) {
  Extent* extent = fetch.extent;
  if (const std::optional<TouchedPages> touched = written_past_waiting(extent)) {
    heap_.arena().drop_scratch(fetch.scratch, extent->bytes);
    heap_.budget().release(fetch.room_bytes);
    leave_to_writers(extent, *touched, left_cold);
    return;
  }
  extent->begin_merge();
  TouchedPages touched;
  uint64_t moved_bytes = 0;
  Status status = merge_written_pages(fetch, &touched);
  if (status.is_ok()) status = move_scratch(fetch, &moved_bytes);
  if (!status.is_ok()) {
    // Pages that have moved stay, like pages that the program wrote: the next fetch merges them.
    Status unprotected = heap_.arena().unprotect(extent->address, extent->bytes);
    TENCACHE_CHECK(unprotected.is_ok(), "%s", unprotected.message().c_str());
    heap_.arena().drop_scratch(fetch.scratch + moved_bytes, extent->bytes - moved_bytes);
    leave_cold(fetch, status, left_cold);
    return;
  }
  add(ledger_.stats.fetched_bytes, extent->bytes);
  heap_.count_unannounced(touched);
  note_written(extent, touched);
  extent->is_file_mapped.store(false, std::memory_order_relaxed);
  // Only now are the pages of the page cache unmapped, so that they can be dropped.
  if (touched.read_count > 0) disk_.drop_page_cache(extent->slot);
  // A thread that already waits for the extent counts the fetch as late by this flag, so the flag
  // comes before the extent is resident.
  if (fetch.is_ahead) extent->set_flags(kFlagAhead);
  heap_.set_mapping_count(extent, fetch.mapping_count);
  heap_.forget_unannounced(extent);
  ledger_.log_move(fetch.is_ahead ? MoveKind::kFetchAhead : MoveKind::kFetch, extent->id,
                   extent->bytes, fetch.begun_at);
  extent->become_resident();
}

void SlotFetches::note_written(Extent* extent, const TouchedPages& touched) {
  if (touched.written.empty()) return;
  extent->set_flags(kFlagDirty);
  extent->is_written_unannounced.store(true, std::memory_order_relaxed);
}

// Note [Writers that block the signal]: what the program writes to a cold extent goes to private
// pages of a file's mapping, and the kernel lets nobody wait there but by SIGSEGV. A thread that
// blocks that signal would end the process. So where there is one, an extent that somebody has
// written so opens no window. It stays cold, which is slow and right, until all of it was written;
// then it is resident as it is. Returns the written pages where there are any and such a thread
// exists.
std::optional<TouchedPages> SlotFetches::written_past_waiting(const Extent* extent) const {
  TouchedPages touched;
  if (!page_map_.scan(extent->address, extent->bytes, &touched).is_ok()) return std::nullopt;
  if (touched.written.empty() || !is_blocked_by_any_thread(SIGSEGV)) return std::nullopt;
  return touched;
}

// REQUIRES: the extent is claimed, and has no room.
void SlotFetches::leave_to_writers(Extent* extent, const TouchedPages& touched,
                                   std::vector<const Extent*>* left_cold) {
  left_cold->push_back(extent);
  if (touched.written.size() * kPageBytes == extent->bytes) {
    take_as_it_is(extent, touched);
    return;
  }
  warn_once(Status(StatusCode::kUnavailable,
                   "it is written outside of ops, and a thread of the program blocks SIGSEGV, so "
                   "that it cannot be made to wait"));
  extent->abandon_fetch();
}

// While the pages move, an address shows the slot or the scratch page, and the bytes are the same.
Status SlotFetches::move_scratch(const Fetch& fetch, uint64_t* moved_bytes) {
  char* const address = fetch.extent->address;
  return move_in_parts(fetch.extent->bytes, fetch.mapping_count, moved_bytes,
                       [&](uint64_t offset, uint64_t part_bytes) {
                         return heap_.arena().move_onto(fetch.scratch + offset, address + offset,
                                                        part_bytes);
                       });
}

// Pages that were written behind the gate's back win over those of the slot.
Status SlotFetches::merge_written_pages(const Fetch& fetch, TouchedPages* touched) {
  const Extent* extent = fetch.extent;
  TENCACHE_RETURN_IF_ERROR(WriteBarrier::ensure_installed());
  TENCACHE_RETURN_IF_ERROR(heap_.arena().protect(extent->address, extent->bytes));
  TENCACHE_RETURN_IF_ERROR(page_map_.scan(extent->address, extent->bytes, touched));
  for (const uint32_t page : touched->written) {
    const uint64_t offset = uint64_t{page} * kPageBytes;
    const RacyReads racy;  // they were written without a gate
    memcpy(fetch.scratch + offset, extent->address + offset, kPageBytes);
  }
  return Status::ok();
}

void SlotFetches::leave_cold(const Fetch& fetch, const Status& reason,
                             std::vector<const Extent*>* left_cold) {
  left_cold->push_back(fetch.extent);
  warn_once(reason);
  heap_.budget().release(fetch.room_bytes);
  fetch.extent->abandon_fetch();
}

void SlotFetches::warn_once(const Status& reason) {
  if (has_warned_.exchange(true)) return;
  TENCACHE_LOG_WARNING("a tensor stays in the spill file, where it can be used but slowly: %s",
                       reason.clause().c_str());
}

}  // namespace tencache
