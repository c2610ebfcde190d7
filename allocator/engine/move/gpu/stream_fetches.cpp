// SPDX-License-Identifier: Apache-2.0
//
// The phases of a fetch (engine/move/gpu/stream_mover.h tells the protocol and why it is safe).
#include <algorithm>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "engine/move/gpu/stream_mover.h"
#include "engine/move/migration_permit.h"

namespace tencache {
namespace {

// What is in flight ahead of use, where more than one is: some milliseconds of the link, so that it
// never runs dry between two batches, and not so much that an order which becomes outdated has
// begun long ago.
constexpr double kAheadS = 5e-3;
// What is refused may be granted when it is asked for again, as long as the context is alive.
constexpr int kFetchTriesMax = 3;

}  // namespace

LateFetches StreamMover::fetch(std::span<Extent* const> extents, StreamSet streams) {
  LateFetches late;
  fetch(extents, streams, kFetchTriesMax, &late);
  return late;
}

void StreamMover::fetch(std::span<Extent* const> extents, StreamSet streams, int tries,
                        LateFetches* late) {
  begin_demand();
  // Phase 1: claim what is cold. What another thread brings is awaited at the end.
  std::vector<CudaExtent*> claimed;
  for (Extent* extent : extents) {
    if (!extent->claim_for_fetch()) continue;
    claimed.push_back(static_cast<CudaExtent*>(extent));
    ++late->count;
    late->bytes += extent->bytes;
  }
  // Phases 2 and 3: room, then frames and copies.
  const std::vector<CudaExtent*> left_cold = bring_as_room_comes(claimed);
  // Phase 4: the op's streams wait for the bytes, whoever brings them.
  bool has_landed = false;
  std::vector<Extent*> cold_again;
  for (Extent* extent : extents) {
    if (await_bytes(static_cast<CudaExtent*>(extent), streams, late, &has_landed)) continue;
    // An eviction that was sealed before our pin went through, or a fetch that was refused.
    const bool is_left = std::ranges::find(left_cold, extent) != left_cold.end();
    if (!is_left || tries > 1) cold_again.push_back(extent);
  }
  end_demand();
  if (has_landed) settle(false);  // so that the next op finds it resident
  if (!cold_again.empty()) {
    fetch(cold_again, streams, left_cold.empty() ? tries : tries - 1, late);
  }
}

// Returns when the extent is usable, or the streams wait for its bytes; false when it is cold.
bool StreamMover::await_bytes(CudaExtent* extent, StreamSet streams, LateFetches* late,
                              bool* has_landed) {
  bool has_waited = false;
  for (;;) {
    const uint64_t word = extent->load();
    const ExtentState state = Extent::state_of(word);
    std::optional<bool> has_arrived;
    if (Extent::usable_in(state)) {
      has_arrived = true;  // another thread has landed it
    } else if (state == ExtentState::kArriving) {
      has_arrived = join(extent, streams);
      *has_landed |= has_arrived.value_or(false);
    }
    if (has_arrived) {
      if (*has_arrived && !has_waited) {
        count_early(extent);
      } else {
        note_late(extent, late);
      }
      return true;
    }
    if (state == ExtentState::kArriving) {
      std::this_thread::yield();  // it is about to take off, or has just landed
      continue;
    }
    // Busy: it is being demoted, which our pin calls off.
    if (state == ExtentState::kCold && (word & kFlagBusy) == 0) return false;
    // Freed meanwhile: a launch may pass on addresses of old, and that memory was not needed.
    if (state == ExtentState::kVacant || state == ExtentState::kCached) return true;
    extent->wait_while(word);
    has_waited = true;
  }
}

// What finds room travels while room is made for the rest: on one thread at a time, for two that
// each have room for a part would both go over the budget for the other. Returns those that stay
// cold. No permit is held while this waits: room comes from the evictor, which needs one itself.
std::vector<CudaExtent*> StreamMover::bring_as_room_comes(std::span<CudaExtent* const> claimed) {
  std::vector<CudaExtent*> left_cold;
  if (claimed.empty()) return left_cold;
  const bool one_by_one = !is_gathering_.exchange(true);
  while (!claimed.empty()) {
    const size_t count = take_room(claimed, one_by_one);
    std::vector<CudaExtent*> part(claimed.begin(),
                                  claimed.begin() + static_cast<std::ptrdiff_t>(count));
    claimed = claimed.subspan(count);
    while (!part.empty()) {
      std::vector<CudaExtent*> later;
      const std::vector<CudaExtent*> refused =
          bring(std::exchange(part, {}), *in_on_demand_, false, &later);
      left_cold.insert(left_cold.end(), refused.begin(), refused.end());
      part = std::move(later);
    }
  }
  if (one_by_one) is_gathering_.store(false);
  return left_cold;
}

// For how many of them, from the first on, room is reserved now: for all where it is there. Else
// this waits for the room of the first one, or for that of all.
size_t StreamMover::take_room(std::span<CudaExtent* const> extents, bool one_by_one) {
  uint64_t bytes = 0;
  for (const CudaExtent* extent : extents) bytes += extent->bytes;
  if (heap_.budget().try_reserve(bytes)) return extents.size();
  if (!one_by_one) {
    heap_.reserve_or_exceed(bytes);
    return extents.size();
  }
  heap_.reserve_or_exceed(extents.front()->bytes, bytes - extents.front()->bytes);
  size_t count = 1;
  while (count < extents.size() && heap_.budget().try_reserve(extents[count]->bytes)) ++count;
  return count;
}

uint64_t StreamMover::prefetch(RequestSource& requests) {
  settle(false);
  if (bytes_ahead() > bytes_in(kAheadS)) wait_for_oldest();
  std::vector<CudaExtent*> claimed;
  uint64_t claimed_bytes = 0;
  uint64_t lacking_bytes = 0;
  while (claimed_bytes < bytes_at_once()) {
    const std::optional<MoveRequest> request = requests.take();
    if (!request) break;
    // An op that has it pinned, cold as it is, lets this order go first (wait_while_ahead).
    const bool is_awaited = Extent::pins_of(request->extent->load()) > 0;
    if (!request->is_current() || (request->is_outdated() && !is_awaited)) continue;
    wait_while_sealing(*request->extent);
    if (!claim_when_demoted(request->extent)) continue;
    const uint64_t bytes = request->extent->bytes;
    // Told before the room is taken, so that whoever misses the room finds out why.
    bytes_ahead_.fetch_add(bytes);
    if (!heap_.budget().try_reserve(bytes)) {
      bytes_ahead_.fetch_sub(bytes);
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

// A fetch ahead of use whose extent is being demoted waits for that, which the order has called
// off.
bool StreamMover::claim_when_demoted(Extent* extent) {
  while (!extent->claim_for_fetch()) {
    const uint64_t word = extent->load();
    if (Extent::state_of(word) != ExtentState::kCold) return false;
    if ((word & kFlagBusy) != 0) extent->wait_while(word);
  }
  return true;
}

// In parts with a mark each, so that who needs a small one need not wait for a large one after it.
void StreamMover::bring_ahead(std::span<CudaExtent* const> extents) {
  std::vector<CudaExtent*> part;
  uint64_t part_bytes = 0;
  for (CudaExtent* extent : extents) {
    if (!part.empty() && part_bytes + extent->bytes > bytes_at_once()) {
      bring(std::exchange(part, {}), *in_ahead_, true, nullptr);
      part_bytes = 0;
    }
    part.push_back(extent);
    part_bytes += extent->bytes;
  }
  if (!part.empty()) bring(std::move(part), *in_ahead_, true, nullptr);
}

// Returns those that stay cold. Where `later` is given, it gets those for which host memory has no
// room until the others have come back.
std::vector<CudaExtent*> StreamMover::bring(std::vector<CudaExtent*> extents, CopyStream& stream,
                                            bool is_ahead, std::vector<CudaExtent*>* later) {
  std::vector<CudaExtent*> left_cold;
  if (direct_.load() != nullptr) left_cold = bring_directly(extents, stream, is_ahead);
  if (spill_ != nullptr) {
    const std::vector<CudaExtent*> unread = read_back(extents, is_ahead, later);
    left_cold.insert(left_cold.end(), unread.begin(), unread.end());
  }
  const std::vector<CudaExtent*> without_frame = map_frames(extents, is_ahead);
  left_cold.insert(left_cold.end(), without_frame.begin(), without_frame.end());
  MigrationPermit permit(fork_latch_);
  if (!extents.empty()) {
    StreamMark mark;
    const Status status = copy_in(extents, stream, &mark);
    if (status.is_ok()) {
      take_off(extents, std::move(mark), heap_.streams().set_of(stream.handle()), is_ahead);
    } else {
      for (CudaExtent* extent : extents) leave_cold(extent, is_ahead, status);
      left_cold.insert(left_cold.end(), extents.begin(), extents.end());
    }
  }
  return left_cold;
}

// Takes those out of `extents` that get no frame, and returns them.
std::vector<CudaExtent*> StreamMover::map_frames(std::vector<CudaExtent*>& extents, bool is_ahead) {
  std::vector<CudaExtent*> left_cold;
  std::vector<CudaExtent*> with_frame;
  for (CudaExtent* extent : extents) {
    const Result<Frame> frame = heap_.take_frame(extent->bytes, !is_ahead);
    if (frame.is_ok()) {
      extent->frame = frame.value();
      with_frame.push_back(extent);
    } else {
      leave_cold(extent, is_ahead, frame.status());
      left_cold.push_back(extent);
    }
  }
  std::ranges::sort(with_frame, {}, [](const CudaExtent* extent) { return extent->address; });
  std::vector<FramePlace> places;
  places.reserve(with_frame.size());
  for (const CudaExtent* extent : with_frame) {
    places.push_back({extent->device_address(), extent->frame});
  }
  const Status mapped = heap_.arena().map(places);
  if (mapped.is_ok()) {
    extents = std::move(with_frame);
    return left_cold;
  }
  for (CudaExtent* extent : with_frame) {
    heap_.give_back_frame(std::exchange(extent->frame, Frame{}));
    leave_cold(extent, is_ahead, mapped);
    left_cold.push_back(extent);
  }
  extents.clear();
  return left_cold;
}

// What was queued when a call is refused has ended when this returns, so that the frames can go.
Status StreamMover::copy_in(std::span<CudaExtent* const> extents, CopyStream& stream,
                            StreamMark* mark) {
  Status status;
  std::optional<StagedCopies> staged;
  for (const CudaExtent* extent : extents) {
    if (!status.is_ok()) break;
    status = queue_copy_in(extent->host_block, extent->device_address(), stream, &staged);
  }
  if (status.is_ok()) {
    Result<StreamMark> made = stream.mark();
    status = made.status();
    if (made.is_ok()) *mark = std::move(made).value();
  }
  if (status.is_ok()) return status;
  (void)stream.wait_until_idle();
  take_away_frames(extents);
  return status;
}

// REQUIRES: no work that uses them is queued.
void StreamMover::take_away_frames(std::span<CudaExtent* const> extents) {
  for (CudaExtent* extent : extents) {
    const Status unmapped = heap_.take_away_frame(extent);
    if (unmapped.is_ok()) continue;
    // The context is broken then, and its memory goes with it.
    TENCACHE_LOG_WARNING("%s", unmapped.message().c_str());
    heap_.write_off_frame(extent);
  }
}

// Nobody lands what is not Arriving yet, so the flight is entered last.
void StreamMover::take_off(const std::vector<CudaExtent*>& extents, StreamMark mark,
                           StreamSet stream, bool is_ahead) {
  const auto flight = std::make_shared<Flight>();
  flight->extents = extents;
  flight->mark = std::move(mark);
  flight->stream = stream;
  for (CudaExtent* extent : extents) {
    add(stats_.fetched_bytes, extent->bytes);
    if (!is_ahead) bytes_ahead_.fetch_add(extent->bytes);  // until now its op has it pinned
    extent->note_streams(stream);
    if (is_ahead) extent->set_flags(kFlagAhead);
    extent->become_arriving();
  }
  MutexLock lock(mutex_);
  flights_.push_back(flight);
  for (const CudaExtent* extent : extents) flight_of_[extent] = flight;
}

void StreamMover::leave_cold(CudaExtent* extent, bool is_ahead, const Status& reason) {
  if (is_ahead) bytes_ahead_.fetch_sub(extent->bytes);
  if (!is_ahead && !warned_left_cold_.exchange(true)) {
    TENCACHE_LOG_WARNING(
        "a tensor cannot be brought back to the GPU: %s; an op that uses it fails with a CUDA "
        "error",
        reason.clause().c_str());
  }
  heap_.budget().release(extent->bytes);
  extent->abandon_fetch();
}

// The streams wait for it if it has not arrived; true if it has. Nullopt when it is in no flight,
// though it was Arriving a moment ago.
std::optional<bool> StreamMover::join(CudaExtent* extent, StreamSet streams) {
  FlightPtr flight;
  {
    MutexLock lock(mutex_);
    const auto found = flight_of_.find(extent);
    if (found == flight_of_.end()) return std::nullopt;
    flight = found->second;
  }
  const bool has_arrived = flight->mark.poll();
  if (!has_arrived) hold_back(streams, *flight);
  return has_arrived;
}

// On the device where that is possible, else here.
void StreamMover::hold_back(StreamSet streams, const Flight& flight) {
  if (StreamNumbers::is_one_stream(streams) &&
      heap_.streams().hold_back(streams, std::span(&flight.mark, 1)).is_ok()) {
    return;
  }
  flight.mark.await();
}

void StreamMover::settle(bool may_wait) {
  std::vector<FlightPtr> flights;
  {
    MutexLock lock(mutex_);
    flights.assign(flights_.begin(), flights_.end());
  }
  for (const FlightPtr& flight : flights) {
    if (may_wait) flight->mark.await();
    if (!flight->mark.poll()) continue;
    {
      MutexLock lock(mutex_);
      const auto found = std::ranges::find(flights_, flight);
      if (found == flights_.end()) continue;  // another thread lands it
      flights_.erase(found);
      for (const CudaExtent* extent : flight->extents) flight_of_.erase(extent);
    }
    land(*flight);
  }
}

void StreamMover::land(const Flight& flight) {
  uint64_t landed_bytes = 0;
  for (CudaExtent* extent : flight.extents) {
    const uint64_t bytes = extent->bytes;
    // The copy below may save one when the extent leaves again, as long as that can be proved.
    const bool is_wanted = extent->state() == ExtentState::kArriving;
    const bool is_loan = extent->host_block.is_beyond_budget();
    if (hasher_ == nullptr || !is_wanted || (is_loan && !extent->slot.is_valid())) {
      heap_.release_copy(extent);
    } else if (is_loan) {
      heap_.release_block(extent);
    }
    extent->used_by.fetch_and(~flight.stream, std::memory_order_relaxed);
    extent->settle();
    bytes_ahead_.fetch_sub(bytes);
    landed_bytes += bytes;
  }
  if (spill_ != nullptr) spill_->on_fetch(landed_bytes);
}

// One that is alone in flight is not waited for: another is queued behind it.
void StreamMover::wait_for_oldest() {
  FlightPtr oldest;
  {
    MutexLock lock(mutex_);
    if (flights_.size() > 1) oldest = flights_.front();
  }
  if (oldest != nullptr) oldest->mark.await();
  settle(false);
}

}  // namespace tencache
