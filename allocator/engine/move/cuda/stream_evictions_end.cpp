// SPDX-License-Identifier: Apache-2.0
//
// How evictions end: phases 3 and 4 of stream_evictions.h, and the extents that stay.
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/move/cuda/stream_evictions.h"

namespace tencache {

// Waits for the copies, or for what the program had queued.
void StreamEvictions::wait_until_done(std::vector<Eviction>& evictions, Run* run) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status done = eviction.done.wait();
    if (done.is_ok()) return false;
    wait_until_idle();  // before the block is used again
    fail(eviction, done, run);
    return true;
  });
}

// Proves that the bytes are below, and lets the extents leave. On a mismatch, an eviction that
// relied on an old copy is tried again. Otherwise somebody is writing the extent, so it stays.
void StreamEvictions::prove_and_leave(std::vector<Eviction>& evictions, Run* run) {
  await_recorded(evictions, run);
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

// Since the copy, streams that the program has announced may have been given work of no op.
// This waits for all that the streams have been given by now, which may take as long as the program
// is ahead of its GPU. So the extents are not sealed yet: an op that names one, or its free, calls
// the eviction off.
void StreamEvictions::await_recorded(std::vector<Eviction>& evictions, Run* run) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    if (eviction.users_done != nullptr) return false;
    const Status status = wait_for(moments_.users_of(*eviction.extent), nullptr);
    if (!status.is_ok()) fail(eviction, status, run);
    return !status.is_ok();
  });
}

// Seals the extents that were not used since the claim; the others are given up.
void StreamEvictions::seal(std::vector<Eviction>& evictions) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const bool is_sealed =
        eviction.extent->seal() &&
        eviction.extent->last_use_at.load(std::memory_order_relaxed) <= eviction.claimed_at;
    if (!is_sealed) abandon(eviction);
    return !is_sealed;
  });
}

// Waits for the hashes; an extent whose hash cannot be had is given up.
void StreamEvictions::hash_sealed(std::vector<Eviction>& evictions, Run* run) {
  if (parts_.hasher == nullptr) return;
  std::vector<Status> queued;
  queued.reserve(evictions.size());
  for (Eviction& eviction : evictions) queued.push_back(queue_proof(eviction));
  size_t index = 0;
  std::erase_if(evictions, [&](const Eviction& eviction) {
    Status status = queued[index++];
    if (status.is_ok()) status = eviction.done.wait();
    if (status.is_ok()) return false;
    (void)parts_.streams.proof->wait_until_idle();  // before the hash's place is used again
    fail(eviction, status, run);
    return true;
  });
}

Status StreamEvictions::queue_proof(Eviction& eviction) {
  TENCACHE_RETURN_IF_ERROR(queue_hash(*parts_.streams.proof, *eviction.extent, &eviction.after));
  return parts_.streams.proof->mark().move_to(&eviction.done);
}

bool StreamEvictions::is_proved(const Eviction& eviction) const {
  if (parts_.hasher == nullptr) return true;
  return eviction.after->value() ==
         (eviction.needs_copy ? eviction.before->value() : eviction.extent->copy_hash);
}

void StreamEvictions::leave(const Eviction& eviction, Run* run) {
  CudaExtent* extent = eviction.extent;
  const Departure departure(*extent, eviction.claimed_at, eviction.needs_copy);
  const Status status = parts_.heap.take_away_frame(extent);
  if (!status.is_ok()) return fail(eviction, status, run);
  if (eviction.after.has_value()) extent->copy_hash = eviction.after->value();
  extent->has_copy_below = true;
  extent->used_by.fetch_and(~parts_.streams.eviction_numbers, std::memory_order_relaxed);
  TENCACHE_DCHECK(extent->host_block.is_valid() ||
                  (!eviction.needs_copy && extent->slot.is_valid()));
  extent->become_cold();
  parts_.heap.budget().release(departure.bytes);
  parts_.ledger.count_departure(departure, &run->result);
}

// Lets the extent stay, and gives up copies of it that are worth nothing now. One that was begun is
// worth nothing once the extent may be written again. An older one is worth nothing once the extent
// was freed, even if the extent was allocated anew.
void StreamEvictions::abandon(const Eviction& eviction) {
  CudaExtent* extent = eviction.extent;
  const bool is_freed =
      extent->state() == ExtentState::kCached || extent->id.load() != eviction.extent_id;
  if (eviction.needs_copy || is_freed) parts_.heap.copies().release(extent);
  extent->used_by.fetch_and(~parts_.streams.eviction_numbers, std::memory_order_relaxed);
  extent->abandon_eviction();
}

// Abandons the eviction and asks for it again, unless the extent is used meanwhile.
void StreamEvictions::try_again(const Eviction& eviction, Run* run) {
  CudaExtent* extent = eviction.extent;
  run->again.push_back(
      {extent, extent->id.load(), extent->bytes, eviction.claimed_at, eviction.users_done});
  abandon(eviction);
}

void StreamEvictions::fail(const Eviction& eviction, const Status& failure, Run* run) {
  abandon(eviction);
  // The extent cannot leave now, which is no failure: a stream captures a graph, or other threads
  // evict as well.
  if (failure.code() == StatusCode::kUnavailable) return;
  parts_.ledger.count_failure(failure, 1, "on the GPU", &run->result);
}

}  // namespace tencache
