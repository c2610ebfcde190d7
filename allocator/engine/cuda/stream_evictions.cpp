// SPDX-License-Identifier: Apache-2.0
//
// The phases of an eviction (engine/cuda/stream_migrations.h tells the protocol and why it is
// safe).
#include "base/clock.h"
#include "base/log.h"
#include "engine/cuda/stream_migrations.h"
#include "engine/migration_permit.h"

namespace tencache {

EvictionResult StreamMigrations::evict(std::span<Extent* const> extents) {
  MigrationPermit permit(gate_);
  EvictionResult result;
  settle(false);
  // Phase 1: claim. From here on the extents are ours, and still usable by the program.
  std::vector<Eviction> evictions = claim(extents);
  take_blocks(evictions, &result);
  if (evictions.empty()) return result;
  // Phase 2: copies, all of them queued before the first one is waited for.
  const uint64_t begin_ns = now_ns();
  queue_copies(evictions, &result);
  // Phases 3 and 4, in the order in which the copies end.
  uint64_t copied_bytes = 0;
  for (const Eviction& eviction : evictions) {
    const uint64_t bytes = eviction.extent->bytes;
    if (leave(eviction, &result)) copied_bytes += bytes;
  }
  write_speed_.add(copied_bytes, now_ns() - begin_ns);
  return result;
}

std::vector<StreamMigrations::Eviction> StreamMigrations::claim(std::span<Extent* const> extents) {
  std::vector<Eviction> evictions;
  evictions.reserve(extents.size());
  for (Extent* extent : extents) {
    const uint64_t claimed_at_ticks = ticks();
    if (!extent->claim_for_eviction()) continue;
    evictions.push_back({static_cast<CudaExtent*>(extent), claimed_at_ticks, {}});
  }
  return evictions;
}

void StreamMigrations::take_blocks(std::vector<Eviction>& evictions, EvictionResult* result) {
  std::vector<Eviction> with_block;
  for (Eviction& eviction : evictions) {
    CudaExtent* extent = eviction.extent;
    extent->slot_is_written = false;
    if (!extent->host_block.is_valid()) {
      const Result<HostBlock> block = host_.allocate(extent->bytes);
      if (!block.is_ok()) {
        abandon(eviction);
        count_failure(block.status(), 1, result);
        continue;
      }
      extent->host_block = block.value();
    }
    with_block.push_back(std::move(eviction));
  }
  evictions = std::move(with_block);
}

void StreamMigrations::queue_copies(std::vector<Eviction>& evictions, EvictionResult* result) {
  Status status = wait_for_users(evictions);
  size_t queued = 0;
  for (; status.is_ok() && queued < evictions.size(); ++queued) {
    Eviction& eviction = evictions[queued];
    const CudaExtent* extent = eviction.extent;
    status = out_->to_host(extent->host_block.memory, extent->device_address(), extent->bytes);
    if (!status.is_ok()) break;
    Result<StreamMark> mark = out_->mark();
    status = mark.status();
    if (!status.is_ok()) {
      // The copy may be under way, and the block must not be anybody else's until it has ended.
      (void)out_->wait_until_idle();
      break;
    }
    eviction.copied = std::move(mark).value();
  }
  for (size_t index = queued; index < evictions.size(); ++index) abandon(evictions[index]);
  if (queued < evictions.size()) count_failure(status, evictions.size() - queued, result);
  evictions.resize(queued);
}

// Everything that the streams have been given so far: whoever used one of the extents has given up
// its pin, and so had queued its work before.
Status StreamMigrations::wait_for_users(std::span<const Eviction> evictions) {
  StreamSet users = kNoStreams;
  for (const Eviction& eviction : evictions) {
    users |= eviction.extent->used_by.load(std::memory_order_relaxed);
  }
  std::vector<StreamMark> marks;
  TENCACHE_RETURN_IF_ERROR(heap_.streams().mark_all(users, &marks));
  for (const StreamMark& mark : marks) TENCACHE_RETURN_IF_ERROR(out_->wait_for(mark));
  return Status::ok();
}

// Whether its bytes were copied; then it is cold, unless it was used meanwhile.
bool StreamMigrations::leave(const Eviction& eviction, EvictionResult* result) {
  CudaExtent* extent = eviction.extent;
  const uint64_t bytes = extent->bytes;
  Status status = eviction.copied.wait();
  if (!status.is_ok()) {
    abandon(eviction);
    count_failure(status, 1, result);
    return false;
  }
  const bool was_fetched_in_vain = extent->has(kFlagAhead);
  if (!extent->seal() ||
      extent->last_use_ticks.load(std::memory_order_relaxed) > eviction.claimed_at_ticks) {
    abandon(eviction);
    return true;
  }
  status = heap_.take_away_frame(extent);
  if (!status.is_ok()) {
    abandon(eviction);
    count_failure(status, 1, result);
    return true;
  }
  extent->slot_is_written = true;
  extent->become_cold();
  heap_.budget().release(bytes);
  add(stats_.evicted_bytes, bytes);
  if (was_fetched_in_vain) {
    add(stats_.wasted_fetches, 1);
    add(stats_.wasted_fetched_bytes, bytes);
  }
  result->count += 1;
  result->bytes += bytes;
  return true;
}

// The block's bytes are worth nothing as soon as the extent may be written again.
void StreamMigrations::abandon(const Eviction& eviction) {
  heap_.release_copy(eviction.extent);
  eviction.extent->abandon_eviction();
}

void StreamMigrations::count_failure(const Status& failure, uint64_t count,
                                     EvictionResult* result) {
  add(stats_.eviction_failures, count);
  if (result->failure.is_ok()) result->failure = failure;
  if (warned_failure_.exchange(true)) return;
  TENCACHE_LOG_WARNING(
      "an eviction failed: %s; the tensor stays on the GPU and nothing is lost (further failures "
      "are only counted)",
      failure.clause().c_str());
}

}  // namespace tencache
