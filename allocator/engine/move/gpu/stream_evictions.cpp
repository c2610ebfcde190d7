// SPDX-License-Identifier: Apache-2.0
//
// The phases of an eviction (engine/move/gpu/stream_mover.h tells the protocol and why it is
// safe).
#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/move/gpu/stream_mover.h"
#include "engine/move/migration_permit.h"

namespace tencache {
namespace {

// While one part is copied the next one is queued behind it. Together they have three hashes under
// way for each place in a part.
constexpr size_t kPartMax = DeviceHasher::kPlaceCount / 8;

/// One of them, and more until they have so many bytes.
std::span<const MoveRequest> first_part(std::span<const MoveRequest> requests, uint64_t bytes) {
  size_t count = 0;
  uint64_t part_bytes = 0;
  while (count < std::min(requests.size(), kPartMax) && (count == 0 || part_bytes < bytes)) {
    part_bytes += requests[count++].bytes;
  }
  return requests.first(count);
}

}  // namespace

EvictionResult StreamMover::evict(std::span<Extent* const> extents) {
  std::vector<MoveRequest> requests;
  requests.reserve(extents.size());
  // The bytes are read by who has claimed an extent: until then it may be freed, and another one.
  for (Extent* extent : extents) {
    requests.push_back({extent, extent->id.load(), 0, MoveRequest::kAtAnyTime});
  }
  EvictionResult total;
  evict_in_parts(requests, ~uint64_t{0}, [&total](const EvictionResult& part) {
    total.count += part.count;
    total.bytes += part.bytes;
    if (total.failure.is_ok()) total.failure = part.failure;
  });
  return total;
}

void StreamMover::evict_requested(std::span<const MoveRequest> requests,
                                  const OnEvicted& on_evicted) {
  evict_in_parts(requests, bytes_at_once(), on_evicted);
}

// What is put off finds host memory once those before it are cold and can be demoted.
void StreamMover::evict_in_parts(std::span<const MoveRequest> requests, uint64_t part_bytes,
                                 const OnEvicted& on_evicted) {
  uint64_t count = 0;
  const OnEvicted count_too = [&](const EvictionResult& part) {
    count += part.count;
    on_evicted(part);
  };
  std::vector<MoveRequest> left(requests.begin(), requests.end());
  // For those that nothing was marked for, this time and the next.
  const auto is_marked = [](const MoveRequest& request) { return request.queued != nullptr; };
  if (!std::ranges::all_of(left, is_marked)) (void)mark_users(left);
  for (bool may_put_off = spill_ != nullptr; !left.empty(); may_put_off &= count > 0) {
    count = 0;
    EvictionRun run(fork_latch_, count_too, may_put_off);
    evict_once(left, part_bytes, &run);
    left = std::move(run.again);
  }
}

// While one part is copied the next one is queued behind it, so that the link does not run dry.
void StreamMover::evict_once(std::span<const MoveRequest> requests, uint64_t part_bytes,
                             EvictionRun* run) {
  EvictionPart under_way;
  while (!requests.empty() || !under_way.is_empty()) {
    if (run->permit.is_awaited()) {
      finish(std::exchange(under_way, {}), run);
      run->permit.renew();
    }
    settle(false);
    const std::span<const MoveRequest> part = first_part(requests, part_bytes);
    requests = requests.subspan(part.size());
    if (first_arriving(part) != nullptr) {
      finish(std::exchange(under_way, {}), run);
      await_arrival(part);
    }
    // Phase 1: claim. From here on the extents are ours, and still usable by the program.
    EvictionPart next = claim(part);
    if (next.is_empty() && !requests.empty()) continue;  // they came to nothing
    // Phase 2: blocks, then copies. Somebody may wait for the room of those under way.
    if (!can_be_queued_at_once(next.dirty)) finish(std::exchange(under_way, {}), run);
    take_blocks(next.dirty, run);
    queue(next, run);
    finish(std::exchange(under_way, std::move(next)), run);
  }
}

// A program that is ahead of the link gives up what it has not used yet on the device; it arrives
// before that use, which its eviction waits for in any case.
const Extent* StreamMover::first_arriving(std::span<const MoveRequest> requests) {
  for (const MoveRequest& request : requests) {
    if (!request.is_current() || request.is_outdated()) continue;
    if (request.extent->state() == ExtentState::kArriving) return request.extent;
  }
  return nullptr;
}

void StreamMover::await_arrival(std::span<const MoveRequest> requests) {
  while (const Extent* extent = first_arriving(requests)) {
    FlightPtr flight;
    {
      MutexLock lock(mutex_);
      const auto found = flight_of_.find(extent);
      if (found != flight_of_.end()) flight = found->second;
    }
    if (flight == nullptr) {
      std::this_thread::yield();  // it is about to take off, or has just landed
      continue;
    }
    flight->mark.await();
    settle(false);
  }
}

// Phases 3 and 4. What is presumed clean waits for no copy.
void StreamMover::finish(EvictionPart part, EvictionRun* run) {
  for (std::vector<Eviction>* evictions : {&part.clean, &part.dirty}) {
    wait_until_done(*evictions, run);
    prove_and_leave(*evictions, run);
    run->tell();
  }
}

// With the copies, or with what the program had queued.
void StreamMover::wait_until_done(std::vector<Eviction>& evictions, EvictionRun* run) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status done = eviction.done.wait();
    if (done.is_ok()) return false;
    (void)out_->wait_until_idle();  // before the block is used again
    fail(eviction, done, run);
    return true;
  });
}

StreamMover::EvictionPart StreamMover::claim(std::span<const MoveRequest> requests) {
  EvictionPart part;
  for (const MoveRequest& request : requests) {
    Extent* extent = request.extent;
    if (!request.is_current() || request.is_outdated()) continue;
    const uint64_t claimed_at = timestamp();
    if (!extent->claim_for_eviction()) continue;
    const bool is_clean = hasher_ != nullptr && extent->is_presumed_clean();
    Eviction& eviction = (is_clean ? part.clean : part.dirty).emplace_back();
    eviction.extent = static_cast<CudaExtent*>(extent);
    eviction.claimed_at = claimed_at;
    eviction.needs_copy = !is_clean;
    eviction.users_done = moment_after_uses(request);
  }
  return part;
}

// The first that is known; null when it was used since the last one, or when that cannot be told.
// Whoever uses it after the claim calls the eviction off.
StreamMover::MomentPtr StreamMover::moment_after_uses(const MoveRequest& request) {
  const auto& extent = static_cast<const CudaExtent&>(*request.extent);
  if (extent.is_recorded.load(std::memory_order_relaxed)) return nullptr;
  const StreamSet users = extent.used_by.load(std::memory_order_relaxed) & ~out_number_;
  MomentPtr requested = std::static_pointer_cast<const Moment>(request.queued);
  if (requested != nullptr && !requested->covers(extent, users)) requested = nullptr;
  MutexLock lock(mutex_);
  for (const MomentPtr& moment : moments_) {
    if (requested != nullptr && requested->at <= moment->at) break;
    if (moment->covers(extent, users)) return moment;
  }
  return requested;
}

// Takes blocks as far as that is quick. False when what follows keeps this thread: host memory has
// to grow, or room to be made in it on disk, or a copy takes the thread along.
bool StreamMover::can_be_queued_at_once(const std::vector<Eviction>& evictions) {
  return std::ranges::all_of(evictions, [this](const Eviction& eviction) {
    HostBlock& block = eviction.extent->host_block;
    const uint64_t bytes = eviction.extent->bytes;
    if (!block.is_valid()) {
      block = host_.take(bytes);
      while (!block.is_valid() && heap_.drop_spare_copies(bytes) > 0) block = host_.take(bytes);
      if (spill_ != nullptr) spill_->on_use();
    }
    return block.is_valid() && block.is_pinned;
  });
}

// Those that find no room are failures, unless they can be put off.
void StreamMover::take_blocks(std::vector<Eviction>& evictions, EvictionRun* run) {
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

// Unless it is used meanwhile.
void StreamMover::try_again(const Eviction& eviction, EvictionRun* run) {
  CudaExtent* extent = eviction.extent;
  run->again.push_back(
      {extent, extent->id.load(), extent->bytes, eviction.claimed_at, eviction.users_done});
  abandon(eviction);
}

Status StreamMover::ensure_block(CudaExtent* extent) {
  extent->has_copy_below = false;
  heap_.release_slot(extent);  // of other bytes
  if (extent->host_block.is_valid()) return Status::ok();
  const Result<HostBlock> block = take_block(extent->bytes);
  if (block.is_ok()) extent->host_block = block.value();
  return block.status();
}

// Those that could be queued stay in the part.
void StreamMover::queue(EvictionPart& part, EvictionRun* run) {
  // Who frees one from now on waits for the copy before the memory is used again.
  std::erase_if(part.dirty, [&](const Eviction& eviction) {
    eviction.extent->note_streams(out_number_);
    if (eviction.extent->reaffirm_eviction()) return false;
    abandon(eviction);
    return true;
  });
  for (std::vector<Eviction>* evictions : {&part.clean, &part.dirty}) {
    let_wait_for_users(*out_, *evictions, run);
    queue_copies(*evictions, run);
  }
}

void StreamMover::queue_copies(std::vector<Eviction>& evictions, EvictionRun* run) {
  Status status;
  size_t queued = 0;
  while (status.is_ok() && queued < evictions.size()) {
    status = queue_copy(evictions[queued]);
    if (status.is_ok()) ++queued;
  }
  if (queued == evictions.size()) return;
  // Of the one that was refused a part may be under way, and the block must not be anybody else's
  // until it has ended.
  (void)out_->wait_until_idle();
  for (size_t index = queued; index < evictions.size(); ++index) {
    fail(evictions[index], status, run);
  }
  evictions.erase(evictions.begin() + static_cast<std::ptrdiff_t>(queued), evictions.end());
}

// What is presumed clean waits for its users only.
Status StreamMover::queue_copy(Eviction& eviction) {
  const CudaExtent* extent = eviction.extent;
  if (eviction.needs_copy && hasher_ != nullptr) {
    Result<PendingHash> hash =
        hasher_->hash(out_->handle(), extent->device_address(), extent->bytes);
    if (!hash.is_ok()) return hash.status();
    eviction.before = std::move(hash).value();
  }
  if (eviction.needs_copy) {
    TENCACHE_RETURN_IF_ERROR(copy_out(extent->host_block, extent->device_address()));
  }
  Result<StreamMark> mark = out_->mark();
  if (!mark.is_ok()) return mark.status();
  eviction.done = std::move(mark).value();
  return Status::ok();
}

// What the streams had been given by the first moment after the last use, or everything so far:
// whoever used one of the extents has given up its pin, and so had queued its work before. An
// extent whose users cannot be marked is given up, and keeps no other from leaving.
void StreamMover::let_wait_for_users(CopyStream& stream, std::vector<Eviction>& evictions,
                                     EvictionRun* run) {
  if (let_wait(stream, evictions).is_ok()) return;
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status status =
        let_wait(stream, eviction.extent->used_by.load(std::memory_order_relaxed));
    if (!status.is_ok()) fail(eviction, status, run);
    return !status.is_ok();
  });
}

Status StreamMover::let_wait(CopyStream& stream, const std::vector<Eviction>& evictions) {
  StreamSet users = kNoStreams;
  const Moment* awaited = nullptr;
  for (const Eviction& eviction : evictions) {
    const Moment* moment = eviction.users_done.get();
    if (moment == nullptr) {
      users |= eviction.extent->used_by.load(std::memory_order_relaxed);
    } else if (moment != awaited) {
      for (const StreamMark& mark : moment->marks) {
        TENCACHE_RETURN_IF_ERROR(stream.wait_for(mark));
      }
      awaited = moment;
    }
  }
  return let_wait(stream, users);
}

Status StreamMover::let_wait(CopyStream& stream, StreamSet users) {
  std::vector<StreamMark> marks;
  // Copies of other extents are no use of this one.
  const Status marked = heap_.streams().mark_all(users & ~out_number_, &marks);
  // Whatever the reason, it is none of the tier below.
  if (!marked.is_ok()) return {StatusCode::kUnavailable, marked.message()};
  for (const StreamMark& mark : marks) TENCACHE_RETURN_IF_ERROR(stream.wait_for(mark));
  return Status::ok();
}

// What differs from its copy is left to another try where that copy is of the last time; else it is
// being written by somebody, and no victim.
void StreamMover::prove_and_leave(std::vector<Eviction>& evictions, EvictionRun* run) {
  seal(evictions);
  hash_sealed(evictions, run);
  for (Eviction& eviction : evictions) {
    if (is_proved(eviction)) {
      leave(eviction, run);
      continue;
    }
    eviction.extent->unseal();
    if (std::exchange(eviction.needs_copy, true)) {
      abandon(eviction);
    } else {
      try_again(eviction, run);
    }
  }
}

// Those that were not used since the claim; the others are given up.
void StreamMover::seal(std::vector<Eviction>& evictions) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const bool is_sealed =
        eviction.extent->seal() &&
        eviction.extent->last_use_at.load(std::memory_order_relaxed) <= eviction.claimed_at;
    if (!is_sealed) abandon(eviction);
    return !is_sealed;
  });
}

// Waits for the hashes; those that cannot be had are given up.
void StreamMover::hash_sealed(std::vector<Eviction>& evictions, EvictionRun* run) {
  if (hasher_ == nullptr) return;
  let_wait_for_users(*proof_, evictions, run);
  std::vector<Status> queued;
  queued.reserve(evictions.size());
  for (Eviction& eviction : evictions) queued.push_back(queue_proof(eviction));
  size_t index = 0;
  std::erase_if(evictions, [&](const Eviction& eviction) {
    Status status = queued[index++];
    if (status.is_ok()) status = eviction.done.wait();
    if (status.is_ok()) return false;
    (void)proof_->wait_until_idle();  // before the hash's place is used again
    fail(eviction, status, run);
    return true;
  });
}

Status StreamMover::queue_proof(Eviction& eviction) {
  const CudaExtent* extent = eviction.extent;
  Result<PendingHash> hash =
      hasher_->hash(proof_->handle(), extent->device_address(), extent->bytes);
  if (!hash.is_ok()) return hash.status();
  eviction.after = std::move(hash).value();
  Result<StreamMark> mark = proof_->mark();
  if (!mark.is_ok()) return mark.status();
  eviction.done = std::move(mark).value();
  return Status::ok();
}

bool StreamMover::is_proved(const Eviction& eviction) const {
  if (hasher_ == nullptr) return true;
  return eviction.after->value() ==
         (eviction.needs_copy ? eviction.before->value() : eviction.extent->copy_hash);
}

void StreamMover::leave(const Eviction& eviction, EvictionRun* run) {
  CudaExtent* extent = eviction.extent;
  const uint64_t bytes = extent->bytes;
  const bool was_fetched_in_vain = extent->has(kFlagAhead);
  const Status status = heap_.take_away_frame(extent);
  if (!status.is_ok()) return fail(eviction, status, run);
  if (eviction.after.has_value()) extent->copy_hash = eviction.after->value();
  extent->has_copy_below = true;
  extent->used_by.fetch_and(~out_number_, std::memory_order_relaxed);
  extent->become_cold();
  heap_.budget().release(bytes);
  add(stats_.evicted_bytes, bytes);
  if (!eviction.needs_copy) add(stats_.clean_dropped_bytes, bytes);
  if (was_fetched_in_vain) {
    add(stats_.wasted_fetches, 1);
    add(stats_.wasted_fetched_bytes, bytes);
  }
  run->result.count += 1;
  run->result.bytes += bytes;
}

// A copy that was begun is worth nothing as soon as the extent may be written again.
void StreamMover::abandon(const Eviction& eviction) {
  if (eviction.needs_copy) heap_.release_copy(eviction.extent);
  eviction.extent->used_by.fetch_and(~out_number_, std::memory_order_relaxed);
  eviction.extent->abandon_eviction();
}

void StreamMover::fail(const Eviction& eviction, const Status& failure, EvictionRun* run) {
  abandon(eviction);
  // Not now: a stream captures a graph, or other threads evict as well.
  if (failure.code() == StatusCode::kUnavailable) return;
  add(stats_.eviction_failures, 1);
  if (run->result.failure.is_ok()) run->result.failure = failure;
  if (warned_failure_.exchange(true)) return;
  TENCACHE_LOG_WARNING(
      "an eviction failed: %s; the tensor stays on the GPU and nothing is lost (further failures "
      "are only counted)",
      failure.clause().c_str());
}

}  // namespace tencache
