// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/stream_fetches.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/move/cuda/staged_copies.h"
#include "engine/move/fork_latch.h"

namespace tencache {
namespace {

// How much of the link's time may be in flight ahead of use, unless a single flight is longer. That
// keeps the link busy between two batches, and a request that becomes outdated has not begun long
// before.
constexpr double kAheadS = 5e-3;
// A fetch that is refused is tried this often in all: it may be granted later, as long as the
// context is alive.
constexpr int kFetchTriesMax = 3;

}  // namespace

void StreamFetches::fetch(std::span<Extent* const> extents, StreamSet streams, OpWait* wait) {
  int tries = kFetchTriesMax;
  std::vector<Extent*> cold_again = fetch_once(extents, streams, &tries, wait);
  while (!cold_again.empty()) cold_again = fetch_once(cold_again, streams, &tries, wait);
}

// Returns the extents that are cold and are to be fetched again; a refusal costs one of the tries.
std::vector<Extent*> StreamFetches::fetch_once(std::span<Extent* const> extents, StreamSet streams,
                                               int* tries, OpWait* wait) {
  bool has_landed = false;
  std::vector<Extent*> cold_again;
  {
    const Demand demand(parts_.ledger);
    // Phase 1: claim what is cold.
    const std::vector<CudaExtent*> claimed = claim(extents);
    // Phases 2 and 3: room, then frames and copies.
    const std::vector<CudaExtent*> left_cold = bring_as_room_comes(claimed, streams);
    // Phase 4: the op's streams wait for the bytes, whoever brings them.
    const Extent* last_late = nullptr;
    for (Extent* extent : extents) {
      if (wait != nullptr && is_apart(last_late, extent)) wait->begin_part();
      LateFetches late;
      const bool is_coming =
          await_bytes(static_cast<CudaExtent*>(extent), streams, &late, &has_landed);
      if (is_coming && std::ranges::find(claimed, extent) != claimed.end()) {
        late = {1, extent->bytes};
      }
      if (late.count > 0) last_late = extent;
      if (wait != nullptr) wait->add(late);
      if (is_coming) continue;
      // The extent is cold: an eviction went through that was sealed before our pin, or a fetch was
      // refused.
      const bool is_left = std::ranges::find(left_cold, extent) != left_cold.end();
      if (!is_left || *tries > 1) cold_again.push_back(extent);
    }
    if (!left_cold.empty()) --*tries;
  }
  if (has_landed) flights_.settle(false);  // so that the next op finds the extent resident
  return cold_again;
}

// Whether the wait for the extent is a part of its own: of a batch the device sees only the end.
bool StreamFetches::is_apart(const Extent* last_late, const Extent* extent) {
  if (Extent::usable_in(extent->state())) return false;
  return last_late == nullptr || !flights_.are_together(last_late, extent);
}

std::vector<CudaExtent*> StreamFetches::claim(std::span<Extent* const> extents) {
  std::vector<CudaExtent*> claimed;
  for (Extent* extent : extents) {
    if (!extent->claim_for_fetch()) continue;
    claimed.push_back(static_cast<CudaExtent*>(extent));
  }
  return claimed;
}

// Waits until the extent is usable, or the streams wait for its bytes. Returns false when it is
// cold.
bool StreamFetches::await_bytes(CudaExtent* extent, StreamSet streams, LateFetches* late,
                                bool* has_landed) {
  bool has_waited = false;
  for (;;) {
    const uint64_t word = extent->load();
    const ExtentState state = Extent::state_of(word);
    std::optional<bool> has_arrived;
    if (Extent::usable_in(state)) {
      has_arrived = true;  // another thread has landed it
    } else if (state == ExtentState::kArriving) {
      has_arrived = flights_.join(extent, streams);
      *has_landed |= has_arrived.value_or(false);
    }
    if (has_arrived) {
      if (*has_arrived && !has_waited) {
        parts_.ledger.count_early(extent);
      } else {
        MoveLedger::note_late(extent, late);
      }
      return true;
    }
    if (state == ExtentState::kArriving) {
      std::this_thread::yield();  // it is about to take off, or has just landed
      continue;
    }
    // Nobody brings a cold extent that is not busy. A busy one is being demoted or copied, which
    // our pin calls off, or read back; the wait below lasts until that ends.
    if (state == ExtentState::kCold && (word & kFlagBusy) == 0) return false;
    // The extent was freed meanwhile: a launch may pass on stale addresses, and that memory was not
    // needed.
    if (state == ExtentState::kVacant || state == ExtentState::kCached) return true;
    extent->wait_while(word);
    has_waited = true;
  }
}

// Brings the claimed extents. Those that find room travel while room is made for the rest. Only one
// thread at a time works in this way: two that each have room for a part would both go over the
// budget for the rest. Returns those that stay cold. No permit is held while this waits: room comes
// from the evictor, which needs one.
std::vector<CudaExtent*> StreamFetches::bring_as_room_comes(std::span<CudaExtent* const> claimed,
                                                            StreamSet streams) {
  if (claimed.empty()) return {};
  FetchBatch batch;
  const bool one_by_one = !is_gathering_.exchange(true);
  while (!claimed.empty()) {
    const size_t count = take_room(claimed, one_by_one, streams);
    batch.extents.assign(claimed.begin(), claimed.begin() + static_cast<std::ptrdiff_t>(count));
    claimed = claimed.subspan(count);
    while (!batch.extents.empty()) bring(&batch);
  }
  if (one_by_one) is_gathering_.store(false);
  return std::move(batch.left_cold);
}

// Reserves room, for all extents if there is enough; returns for how many, from the first on. Where
// there is not enough, this waits for the room of the first one if `one_by_one`, else for that of
// all.
size_t StreamFetches::take_room(std::span<CudaExtent* const> extents, bool one_by_one,
                                StreamSet streams) {
  uint64_t bytes = 0;
  for (const CudaExtent* extent : extents) bytes += extent->bytes;
  if (parts_.heap.budget().try_reserve(bytes)) return extents.size();
  if (!one_by_one) {
    parts_.heap.reserve_or_exceed(bytes, 0, streams);
    return extents.size();
  }
  parts_.heap.reserve_or_exceed(extents.front()->bytes, bytes - extents.front()->bytes, streams);
  size_t count = 1;
  while (count < extents.size() && parts_.heap.budget().try_reserve(extents[count]->bytes)) ++count;
  return count;
}

uint64_t StreamFetches::prefetch(RequestSource& requests) {
  flights_.settle(false);
  // Fetches that ops wait for are in flight, too, and go first: streams that copy share the link.
  while (parts_.ledger.bytes_ahead.load() > link_.bytes_in(kAheadS) && flights_.wait_for_oldest()) {
  }
  std::vector<CudaExtent*> claimed;
  uint64_t claimed_bytes = 0;
  uint64_t lacking_bytes = 0;
  while (claimed_bytes < link_.bytes_at_once()) {
    const std::optional<MoveRequest> request = requests.take();
    if (!request) break;
    // An op that has the extent pinned, cold as it is, lets this request go first
    // (wait_while_ahead).
    const bool is_awaited = Extent::pins_of(request->extent->load()) > 0;
    if (!request->is_current() || (request->is_outdated() && !is_awaited)) continue;
    wait_while_sealing(*request->extent);
    if (!claim_when_demoted(request->extent)) continue;
    const uint64_t bytes = request->extent->bytes;
    // The ledger is told before the room is taken, so that a thread which misses the room finds out
    // why.
    parts_.ledger.bytes_ahead.fetch_add(bytes);
    if (!parts_.heap.budget().try_reserve(bytes)) {
      parts_.ledger.bytes_ahead.fetch_sub(bytes);
      request->extent->abandon_fetch();
      requests.put_back(*request);
      lacking_bytes = bytes;
      break;
    }
    claimed.push_back(static_cast<CudaExtent*>(request->extent));
    claimed_bytes += bytes;
  }
  bring_ahead(claimed);
  return lacking_bytes;
}

// A fetch ahead of use waits for the demotion of its extent, which the request has called off, or
// for the end of a read from disk.
bool StreamFetches::claim_when_demoted(Extent* extent) {
  while (!extent->claim_for_fetch()) {
    const uint64_t word = extent->load();
    if (Extent::state_of(word) != ExtentState::kCold) return false;
    if ((word & kFlagBusy) != 0) extent->wait_while(word);
  }
  return true;
}

// Brings the extents in parts with a mark each, so that an op that needs a small extent does not
// wait for a large one after it.
void StreamFetches::bring_ahead(std::span<CudaExtent* const> extents) {
  FetchBatch batch = {.is_ahead = true};
  uint64_t part_bytes = 0;
  for (CudaExtent* extent : extents) {
    if (!batch.extents.empty() && part_bytes + extent->bytes > link_.bytes_at_once()) {
      bring(&batch);
      part_bytes = 0;
    }
    batch.extents.push_back(extent);
    part_bytes += extent->bytes;
  }
  if (!batch.extents.empty()) bring(&batch);
}

// Brings the extents of the batch. Afterwards the batch holds those that found no room in host
// memory and are still to be brought.
void StreamFetches::bring(FetchBatch* batch) {
  const auto is_fetching = [](const CudaExtent* extent) {
    return extent->state() == ExtentState::kFetching;
  };
  TENCACHE_DCHECK(std::ranges::all_of(batch->extents, is_fetching));
  CopyStream& stream = batch->is_ahead ? *parts_.streams.in_ahead : *parts_.streams.in_on_demand;
  if (direct_reads_.is_open()) bring_directly(batch, stream);
  if (blocks_.has_disk()) blocks_.read_back(batch);
  map_frames(batch->extents, batch);
  MigrationPermit permit(parts_.fork_latch);
  if (!batch->extents.empty()) {
    StreamMark mark;
    const Status status = copy_in(batch->extents, stream, &mark);
    if (status.is_ok()) {
      flights_.take_off(batch->extents, std::move(mark),
                        parts_.heap.streams().set_of(stream.handle()), batch->is_ahead);
    } else {
      for (CudaExtent* extent : batch->extents) flights_.leave_cold(extent, batch, status);
    }
  }
  batch->extents = std::exchange(batch->later, {});
}

// Brings the extents that lie on disk alone; those that have arrived are no longer to be brought.
// The thread waits for the disk.
void StreamFetches::bring_directly(FetchBatch* batch, CopyStream& stream) {
  std::vector<CudaExtent*> direct;
  std::erase_if(batch->extents, [&](CudaExtent* extent) {
    if (extent->host_block.is_valid()) return false;
    direct.push_back(extent);
    return true;
  });
  if (direct.empty()) return;
  map_frames(direct, batch);
  const MigrationPermit permit(parts_.fork_latch);
  std::vector<CudaExtent*> arrived;
  for (CudaExtent* extent : direct) {
    const Status status = direct_reads_.read(*extent, stream);
    if (status.is_ok()) {
      arrived.push_back(extent);
      continue;
    }
    take_away_frames({&extent, 1});
    batch->extents.push_back(extent);
    direct_reads_.close(status);
  }
  if (arrived.empty()) return;
  // The bytes are there already, but a flight needs a mark.
  StreamMark mark;
  (void)stream.mark().move_to(&mark);
  flights_.take_off(arrived, std::move(mark), parts_.heap.streams().set_of(stream.handle()),
                    batch->is_ahead);
}

// Takes and maps frames for extents of the batch. Leaves in `extents` those that have one now.
void StreamFetches::map_frames(std::vector<CudaExtent*>& extents, FetchBatch* batch) {
  std::erase_if(extents, [&](CudaExtent* extent) {
    const Status status =
        parts_.heap.take_frame(extent->bytes, !batch->is_ahead).move_to(&extent->frame);
    if (!status.is_ok()) flights_.leave_cold(extent, batch, status);
    return !status.is_ok();
  });
  std::ranges::sort(extents, {}, [](const CudaExtent* extent) { return extent->address; });
  std::vector<FramePlace> places;
  places.reserve(extents.size());
  for (const CudaExtent* extent : extents) {
    places.push_back({extent->device_address(), extent->frame});
  }
  const Status mapped = parts_.heap.arena().map(places);
  if (mapped.is_ok()) return;
  for (CudaExtent* extent : extents) {
    parts_.heap.frame_pool().give_back(std::exchange(extent->frame, Frame{}));
    flights_.leave_cold(extent, batch, mapped);
  }
  extents.clear();
}

// Queues the copies, and a mark behind them. After a refusal, nothing that was queued uses the
// frames any more when this returns, and the frames are gone.
Status StreamFetches::copy_in(std::span<CudaExtent* const> extents, CopyStream& stream,
                              StreamMark* mark) {
  Status status;
  std::optional<StagedCopies> staged;
  for (const CudaExtent* extent : extents) {
    if (!status.is_ok()) break;
    status = link_.queue_in(extent->host_block, extent->device_address(), stream, &staged);
  }
  if (status.is_ok()) status = stream.mark().move_to(mark);
  if (status.is_ok()) return status;
  (void)stream.wait_until_idle();
  take_away_frames(extents);
  return status;
}

// REQUIRES: no work that uses the frames is queued.
void StreamFetches::take_away_frames(std::span<CudaExtent* const> extents) {
  for (CudaExtent* extent : extents) {
    const Status unmapped = parts_.heap.take_away_frame(extent);
    if (unmapped.is_ok()) continue;
    // The context is broken then, and its memory goes with it.
    TENCACHE_LOG_WARNING("%s", unmapped.message().c_str());
    parts_.heap.frame_pool().write_off(std::exchange(extent->frame, Frame{}));
  }
}

}  // namespace tencache
