// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/stream_evictions.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/clock.h"

namespace tencache {
namespace {

// One part has at most kPartMax extents, and one thread has at most kPartsMax parts under way.
// Extents under way have a hash each, and those that are proved have two. Two threads may evict at
// once.
constexpr size_t kPartMax = 6;
constexpr size_t kPartsMax = 4;
static_assert(2 * (kPartsMax + 1) * kPartMax <= DeviceHasher::kPlaceCount);
// While one part is finished, the link has as much to do as this many parts of full size.
constexpr uint64_t kPartsBehind = 3;
// While a part is copied, the thread waits for more requests, and looks whether the copy has ended,
// at intervals that grow from kPollMin to kPollMax.
constexpr std::chrono::nanoseconds kPollMin{50'000};
constexpr std::chrono::nanoseconds kPollMax{500'000};

/// Returns the first request, and more until they add up to `bytes`, but at most kPartMax.
std::span<const MoveRequest> first_part(std::span<const MoveRequest> requests, uint64_t bytes) {
  size_t count = 0;
  uint64_t part_bytes = 0;
  while (count < std::min(requests.size(), kPartMax) && (count == 0 || part_bytes < bytes)) {
    part_bytes += requests[count++].bytes;
  }
  return requests.first(count);
}

// The first extent that is requested to leave while it is on its way to the GPU. A program that is
// ahead of the link gives up what it has not used yet on the device. Such an extent arrives before
// that use, which its eviction waits for in any case.
const Extent* first_arriving(std::span<const MoveRequest> requests) {
  for (const MoveRequest& request : requests) {
    if (!request.is_current() || request.is_outdated()) continue;
    if (request.extent->state() == ExtentState::kArriving) return request.extent;
  }
  return nullptr;
}

}  // namespace

uint64_t StreamEvictions::Part::bytes() const {
  uint64_t bytes = 0;
  for (const Eviction& eviction : clean) bytes += eviction.extent->bytes;
  for (const Eviction& eviction : dirty) bytes += eviction.extent->bytes;
  return bytes;
}

bool StreamEvictions::Part::is_copied() const {
  const auto is_done = [](const Eviction& eviction) { return eviction.done.poll(); };
  return std::ranges::all_of(clean, is_done) && std::ranges::all_of(dirty, is_done);
}

uint64_t StreamEvictions::bytes_of(const std::deque<Part>& parts) {
  uint64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes();
  return bytes;
}

void StreamEvictions::Run::tell() {
  if (result.count == 0 && result.failure.is_ok()) return;
  count += result.count;
  source.on_evicted(std::exchange(result, {}));
}

void StreamEvictions::evict(EvictionSource& source) {
  for (;;) {
    std::vector<MoveRequest> requests = take(source, 0);
    if (requests.empty()) return;
    evict_taken(std::move(requests), source);
  }
}

// Evicts what was taken. An eviction that is put off is tried again before more is taken from the
// source: it finds host memory once those before it are cold and can be demoted.
void StreamEvictions::evict_taken(std::vector<MoveRequest> requests, EvictionSource& source) {
  bool is_first = true;
  for (bool may_put_off = blocks_.has_disk(); !requests.empty();) {
    Run run = {MigrationPermit(parts_.fork_latch), source, std::exchange(is_first, false),
               may_put_off};
    evict_once(std::move(requests), &run);
    may_put_off &= run.count > 0;
    requests = std::move(run.again);
  }
}

// Takes requests from the source. Where a request comes without a moment, this makes one for all
// that were taken, which later requests may use, too.
std::vector<MoveRequest> StreamEvictions::take(EvictionSource& source, uint64_t bytes_under_way) {
  std::vector<MoveRequest> requests = source.take(bytes_under_way);
  const auto is_marked = [](const MoveRequest& request) { return request.queued != nullptr; };
  if (!std::ranges::all_of(requests, is_marked)) (void)mark_users(requests);
  return requests;
}

void StreamEvictions::evict_once(std::vector<MoveRequest> requests, Run* run) {
  std::span<const MoveRequest> left = requests;
  for (;;) {
    if (run->permit.is_awaited()) {
      finish_all(run);
      run->permit.renew();
    }
    flights_.settle(false);
    if (left.empty()) {
      requests = take_more(run);
      left = requests;
    }
    if (left.empty()) {
      if (run->under_way.empty()) return;
      finish_oldest(run);
      continue;
    }
    const std::span<const MoveRequest> part = first_part(left, link_.bytes_at_once());
    left = left.subspan(part.size());
    begin(part, run);
    while (run->under_way.size() == kPartsMax || keeps_link_busy(run->under_way)) {
      finish_oldest(run);
    }
  }
}

// Returns what the source has. Until the oldest part under way is copied, this waits for requests.
// Requests that are tried again go first, and so does a fork that waits.
std::vector<MoveRequest> StreamEvictions::take_more(Run* run) {
  if (!run->takes_more || !run->again.empty()) return {};
  for (auto poll = kPollMin;; poll = std::min(poll + poll / 8, kPollMax)) {
    if (run->permit.is_awaited()) return {};
    std::vector<MoveRequest> requests = take(run->source, bytes_of(run->under_way));
    const bool may_wait = !run->under_way.empty() && !run->under_way.front().is_copied();
    if (!requests.empty() || !may_wait) return requests;
    run->source.await_more(poll);
  }
}

// Phases 1 and 2: claim, then blocks and copies. From the claim on the extents are ours, and still
// usable by the program. Before the thread waits, for an arrival or for room for a block, the parts
// under way leave.
void StreamEvictions::begin(std::span<const MoveRequest> requests, Run* run) {
  if (first_arriving(requests) != nullptr) {
    finish_all(run);
    await_arrival(requests);
  }
  while (is_any_called_off(requests, run->under_way)) finish_oldest(run);
  Part part = claim(requests);
  if (!take_blocks_at_once(part.dirty)) finish_all(run);
  take_blocks(part.dirty, run);
  queue(part, run);
  if (!part.is_empty()) run->under_way.push_back(std::move(part));
  run->tell();  // a failure
}

// Whether one of the extents is under way, was used since, and is requested to leave after that
// use.
bool StreamEvictions::is_any_called_off(std::span<const MoveRequest> requests,
                                        const std::deque<Part>& under_way) {
  const auto is_requested_anew = [&](const Eviction& eviction) {
    const Extent* extent = eviction.extent;
    if (extent->last_use_at.load(std::memory_order_relaxed) <= eviction.claimed_at) return false;
    return std::ranges::any_of(requests, [extent](const MoveRequest& request) {
      return request.extent == extent && request.is_current() && !request.is_outdated();
    });
  };
  return std::ranges::any_of(under_way, [&](const Part& part) {
    return std::ranges::any_of(part.clean, is_requested_anew) ||
           std::ranges::any_of(part.dirty, is_requested_anew);
  });
}

void StreamEvictions::await_arrival(std::span<const MoveRequest> requests) {
  while (const Extent* extent = first_arriving(requests)) {
    if (!flights_.await(extent)) {
      std::this_thread::yield();  // it is about to take off, or has just landed
      continue;
    }
    flights_.settle(false);
  }
}

// Whether the link has enough to do while the oldest part is finished.
bool StreamEvictions::keeps_link_busy(const std::deque<Part>& under_way) const {
  if (under_way.size() < 2) return false;
  return bytes_of(under_way) - under_way.front().bytes() >= kPartsBehind * link_.bytes_at_once();
}

// Takes the oldest part through phases 3 and 4. Extents that are presumed clean wait for no copy.
void StreamEvictions::finish_oldest(Run* run) {
  Part part = std::move(run->under_way.front());
  run->under_way.pop_front();
  for (std::vector<Eviction>* evictions : {&part.clean, &part.dirty}) {
    wait_until_done(*evictions, run);
    prove_and_leave(*evictions, run);
    run->tell();
  }
}

void StreamEvictions::finish_all(Run* run) {
  while (!run->under_way.empty()) finish_oldest(run);
}

StreamEvictions::Part StreamEvictions::claim(std::span<const MoveRequest> requests) {
  Part part;
  for (const MoveRequest& request : requests) {
    Extent* extent = request.extent;
    if (!request.is_current() || request.is_outdated()) continue;
    const uint64_t claimed_at = timestamp();
    if (!extent->claim_for_eviction()) continue;
    const bool is_clean = parts_.hasher != nullptr && extent->is_presumed_clean();
    Eviction& eviction = (is_clean ? part.clean : part.dirty).emplace_back();
    eviction.extent = static_cast<CudaExtent*>(extent);
    eviction.extent_id = request.extent_id;
    eviction.claimed_at = claimed_at;
    eviction.needs_copy = !is_clean;
    eviction.users_done = moments_.after_uses(request);
  }
  return part;
}

// Takes blocks as far as that is quick. Returns false when the rest keeps this thread busy: host
// memory has to grow, a demotion has to make room in it, or the thread takes part in the copy to a
// block that is not pinned.
bool StreamEvictions::take_blocks_at_once(const std::vector<Eviction>& evictions) {
  return std::ranges::all_of(evictions, [this](const Eviction& eviction) {
    HostBlock& block = eviction.extent->host_block;
    if (!block.is_valid()) block = blocks_.take_at_once(eviction.extent->bytes);
    return block.is_valid() && block.is_pinned;
  });
}

// Takes a block for each eviction. One that finds no room fails, unless it can be put off.
void StreamEvictions::take_blocks(std::vector<Eviction>& evictions, Run* run) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status status = ensure_block(eviction.extent);
    if (status.is_ok()) return false;
    const bool may_find_room_later =
        status.code() == StatusCode::kNoSpace || status.code() == StatusCode::kUnavailable;
    if (run->may_put_off && may_find_room_later) {
      try_again(eviction, run);
    } else {
      fail(eviction, status, run);
    }
    return true;
  });
}

Status StreamEvictions::ensure_block(CudaExtent* extent) {
  TENCACHE_DCHECK(extent->has(kFlagBusy));
  extent->has_copy_below = false;
  parts_.heap.copies().release_slot(extent);  // of other bytes
  if (extent->host_block.is_valid()) return Status::ok();
  return blocks_.take(extent->bytes).move_to(&extent->host_block);
}

// Queues the hashes and copies of the part. Evictions that could be queued stay in it.
void StreamEvictions::queue(Part& part, Run* run) {
  // The memory of an extent that is freed from now on is used again only after hash and copy.
  std::erase_if(part.dirty, [&](const Eviction& eviction) {
    eviction.extent->note_streams(parts_.streams.eviction_numbers);
    if (eviction.extent->reaffirm_eviction()) return false;
    abandon(eviction);
    return true;
  });
  let_wait_for_users(*parts_.streams.out, part.clean, run);
  queue_copies(part.clean, run);
  if (parts_.hasher != nullptr) {
    queue_hashes(part.dirty, run);
  } else {
    let_wait_for_users(*parts_.streams.out, part.dirty, run);
  }
  queue_copies(part.dirty, run);
}

// Queues the hashes, and lets the copies wait for all hashes of the part, and so for the users.
void StreamEvictions::queue_hashes(std::vector<Eviction>& evictions, Run* run) {
  let_wait_for_users(*parts_.streams.hash, evictions, run);
  for (size_t index = 0; index < evictions.size(); ++index) {
    const Status status =
        queue_hash(*parts_.streams.hash, *evictions[index].extent, &evictions[index].before);
    if (!status.is_ok()) fail_from(index, status, evictions, run);
  }
  if (evictions.empty()) return;
  const Result<StreamMark> mark = parts_.streams.hash->mark();
  const Status status = mark.is_ok() ? parts_.streams.out->wait_for(mark.value()) : mark.status();
  if (!status.is_ok()) fail_from(0, status, evictions, run);
}

Status StreamEvictions::queue_hash(CopyStream& stream, const CudaExtent& extent,
                                   std::optional<PendingHash>* hash) const {
  return parts_.hasher->hash(stream.handle(), extent.device_address(), extent.bytes).move_to(hash);
}

void StreamEvictions::queue_copies(std::vector<Eviction>& evictions, Run* run) {
  for (size_t index = 0; index < evictions.size(); ++index) {
    const Status status = queue_copy(evictions[index]);
    if (!status.is_ok()) return fail_from(index, status, evictions, run);
  }
}

// Gives up the evictions from `first` on. Some of what was refused may be under way: nobody else
// may get its block and hash until that has ended.
void StreamEvictions::fail_from(size_t first, const Status& failure,
                                std::vector<Eviction>& evictions, Run* run) {
  wait_until_idle();
  for (size_t index = first; index < evictions.size(); ++index) {
    fail(evictions[index], failure, run);
  }
  evictions.erase(evictions.begin() + static_cast<std::ptrdiff_t>(first), evictions.end());
}

void StreamEvictions::wait_until_idle() {
  (void)parts_.streams.hash->wait_until_idle();
  (void)parts_.streams.out->wait_until_idle();
}

// Queues the copy, where one is needed, and a mark behind it. An extent that is presumed clean
// waits for its users only.
Status StreamEvictions::queue_copy(Eviction& eviction) {
  const CudaExtent* extent = eviction.extent;
  if (eviction.needs_copy) {
    TENCACHE_RETURN_IF_ERROR(link_.queue_out(extent->host_block, extent->device_address()));
  }
  return parts_.streams.out->mark().move_to(&eviction.done);
}

// The stream waits for what the users had been given by the first moment after the last use, or
// else for everything so far: a thread that used an extent has given up its pin, and so had queued
// its work before. An extent whose users cannot be marked is given up, and keeps no other from
// leaving.
void StreamEvictions::let_wait_for_users(CopyStream& stream, std::vector<Eviction>& evictions,
                                         Run* run) {
  if (let_wait(stream, evictions).is_ok()) return;
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status status = wait_for(moments_.users_of(*eviction.extent), &stream);
    if (!status.is_ok()) fail(eviction, status, run);
    return !status.is_ok();
  });
}

Status StreamEvictions::let_wait(CopyStream& stream, const std::vector<Eviction>& evictions) {
  StreamSet users = kNoStreams;
  const Moment* awaited = nullptr;
  for (const Eviction& eviction : evictions) {
    const Moment* moment = eviction.users_done.get();
    if (moment == nullptr) {
      users |= moments_.users_of(*eviction.extent);
    } else if (moment != awaited) {
      for (const StreamMark& mark : moment->marks) {
        TENCACHE_RETURN_IF_ERROR(stream.wait_for(mark));
      }
      awaited = moment;
    }
  }
  return wait_for(users, &stream);
}

// Waits for all that the users have been given by now: the stream does, or this thread if `stream`
// is null.
Status StreamEvictions::wait_for(StreamSet users, CopyStream* stream) {
  std::vector<StreamMark> marks;
  const Status marked = parts_.heap.streams().mark_all(users, &marks);
  // Whatever the reason, the tier below is not to blame.
  if (!marked.is_ok()) return {StatusCode::kUnavailable, marked.message()};
  for (const StreamMark& mark : marks) {
    TENCACHE_RETURN_IF_ERROR(stream != nullptr ? stream->wait_for(mark) : mark.wait());
  }
  return Status::ok();
}

}  // namespace tencache
