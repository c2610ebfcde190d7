// SPDX-License-Identifier: Apache-2.0
//
// The phases of an eviction (engine/cuda/stream_migrations.h tells the protocol and why it is
// safe).
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/cuda/stream_migrations.h"
#include "engine/migration_permit.h"

namespace tencache {
namespace {

// While one batch is copied the next one is queued behind it, so that the link does not run dry.
// Together they have three hashes under way for each place in a batch.
constexpr size_t kBatchMax = DeviceHasher::kSlotCount / 8;
// What is ordered is moved in parts of this time of the link, so that room appears steadily.
constexpr double kAtOnceS = 300e-6;

// Its bytes are read by who has claimed it: until then it may be freed, and another one.
Order order_of(Extent* extent) { return {extent, extent->id.load(), 0, 0, {}}; }

}  // namespace

EvictionResult StreamMigrations::evict(std::span<Extent* const> extents) {
  std::vector<Order> orders;
  orders.reserve(extents.size());
  for (Extent* extent : extents) orders.push_back(order_of(extent));
  return evict_ordered(orders);
}

EvictionResult StreamMigrations::evict_ordered(std::span<const Order> orders) {
  MigrationPermit permit(gate_);
  EvictionResult result;
  settle(false);
  if (spill_ == nullptr) {
    evict_batches(orders, nullptr, &result);
    return result;
  }
  // What finds no host memory may find it once those before it are cold and can be demoted.
  std::vector<Order> left(orders.begin(), orders.end());
  for (bool may_put_off = true; !left.empty();) {
    const uint64_t count_before = result.count;
    std::vector<Order> put_off;
    evict_batches(left, may_put_off ? &put_off : nullptr, &result);
    may_put_off = result.count > count_before;
    left = std::move(put_off);
  }
  return result;
}

void StreamMigrations::evict_batches(std::span<const Order> orders, std::vector<Order>* put_off,
                                     EvictionResult* result) {
  std::vector<Eviction> under_way;
  while (!orders.empty() || !under_way.empty()) {
    const size_t count = std::min(orders.size(), kBatchMax);
    std::vector<Eviction> next = begin(orders.first(count), put_off, result);
    orders = orders.subspan(count);
    finish(under_way, result);
    under_way = std::move(next);
  }
}

// Returns those whose copies are queued.
std::vector<StreamMigrations::Eviction> StreamMigrations::begin(std::span<const Order> orders,
                                                                std::vector<Order>* put_off,
                                                                EvictionResult* result) {
  // Phase 1: claim. From here on the extents are ours, and still usable by the program.
  std::vector<Eviction> dirty = claim(orders);
  const auto first_clean = std::stable_partition(
      dirty.begin(), dirty.end(), [](const Eviction& eviction) { return eviction.needs_copy; });
  std::vector<Eviction> clean(std::make_move_iterator(first_clean),
                              std::make_move_iterator(dirty.end()));
  dirty.erase(first_clean, dirty.end());
  // What is presumed clean needs only the proof; what fails the proof is dirty.
  prove_and_leave(clean, result, &dirty);
  // Phase 2: blocks, then copies.
  for (Eviction& eviction : dirty) eviction.needs_copy = true;
  take_blocks(dirty, put_off, result);
  queue_copies(dirty, result);
  return dirty;
}

// Phases 3 and 4. What differs now is being written by somebody; it is no victim.
void StreamMigrations::finish(std::vector<Eviction>& evictions, EvictionResult* result) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status done = eviction.done.wait();
    if (done.is_ok()) return false;
    (void)out_->wait_until_idle();  // before the block is used again
    fail(eviction, done, result);
    return true;
  });
  std::vector<Eviction> differing;
  prove_and_leave(evictions, result, &differing);
  for (const Eviction& eviction : differing) abandon(eviction);
}

std::vector<StreamMigrations::Eviction> StreamMigrations::claim(std::span<const Order> orders) {
  std::vector<Eviction> evictions;
  evictions.reserve(orders.size());
  for (const Order& order : orders) {
    Extent* extent = order.extent;
    const uint64_t claimed_at_ticks = ticks();
    if (!extent->claim_for_eviction()) continue;
    Eviction& eviction = evictions.emplace_back();
    eviction.extent = static_cast<CudaExtent*>(extent);
    eviction.claimed_at_ticks = claimed_at_ticks;
    eviction.needs_copy = hasher_ == nullptr || !extent->is_presumed_clean();
    eviction.users_done = moment_after_uses(order);
  }
  return evictions;
}

// Null when it was used since. Whoever uses it after the claim calls the eviction off.
std::shared_ptr<const StreamMigrations::Moment> StreamMigrations::moment_after_uses(
    const Order& order) const {
  auto moment = std::static_pointer_cast<const Moment>(order.queued);
  if (moment == nullptr) return nullptr;
  const StreamSet users = order.extent->used_by.load(std::memory_order_relaxed) & ~out_number_;
  const bool is_after =
      order.extent->last_use_ticks.load(std::memory_order_relaxed) <= moment->at_ticks &&
      (users & ~moment->streams) == kNoStreams;
  return is_after ? moment : nullptr;
}

// Null when they cannot be marked now, and then are when the order is carried out.
std::shared_ptr<const QueuedWork> StreamMigrations::queued_work(std::span<const Order> orders) {
  auto moment = std::make_shared<Moment>();
  moment->at_ticks = ~uint64_t{0};
  for (const Order& order : orders) {
    moment->at_ticks = std::min(moment->at_ticks, order.given_at_ticks);
    moment->streams |= order.extent->used_by.load(std::memory_order_relaxed) & ~out_number_;
  }
  if (!heap_.streams().mark_all(moment->streams, &moment->marks).is_ok()) return nullptr;
  return moment;
}

uint64_t StreamMigrations::bytes_at_once() const {
  return std::min(bytes_in(kAtOnceS), Migrations::bytes_at_once());
}

// Those that find no room are failures, unless they can be put off.
void StreamMigrations::take_blocks(std::vector<Eviction>& evictions, std::vector<Order>* put_off,
                                   EvictionResult* result) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status status = ensure_block(eviction.extent);
    if (status.is_ok()) return false;
    const bool may_find_room_later =
        status.code() == StatusCode::kNoSpace || status.code() == StatusCode::kUnavailable;
    if (put_off != nullptr && may_find_room_later) {
      put_off->push_back(order_of(eviction.extent));
      put_off->back().queued = eviction.users_done;
      abandon(eviction);
    } else {
      fail(eviction, status, result);
    }
    return true;
  });
}

Status StreamMigrations::ensure_block(CudaExtent* extent) {
  extent->slot_is_written = false;
  heap_.release_slot(extent);  // of other bytes
  if (extent->host_block.is_valid()) return Status::ok();
  const Result<HostBlock> block = take_block(extent->bytes);
  if (block.is_ok()) extent->host_block = block.value();
  return block.status();
}

// Those whose copy is queued stay in `evictions`.
void StreamMigrations::queue_copies(std::vector<Eviction>& evictions, EvictionResult* result) {
  // Who frees one from now on waits for the copy before the memory is used again.
  std::erase_if(evictions, [&](const Eviction& eviction) {
    eviction.extent->note_streams(out_number_);
    if (eviction.extent->reaffirm_eviction()) return false;
    abandon(eviction);
    return true;
  });
  let_wait_for_users(*out_, evictions, result);
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
    fail(evictions[index], status, result);
  }
  evictions.erase(evictions.begin() + static_cast<std::ptrdiff_t>(queued), evictions.end());
}

Status StreamMigrations::queue_copy(Eviction& eviction) {
  const CudaExtent* extent = eviction.extent;
  if (hasher_ != nullptr) {
    Result<PendingHash> hash =
        hasher_->hash(out_->handle(), extent->device_address(), extent->bytes);
    if (!hash.is_ok()) return hash.status();
    eviction.before = std::move(hash).value();
  }
  TENCACHE_RETURN_IF_ERROR(copy_out(extent->host_block, extent->device_address()));
  Result<StreamMark> mark = out_->mark();
  if (!mark.is_ok()) return mark.status();
  eviction.done = std::move(mark).value();
  return Status::ok();
}

// Everything that the streams have been given so far: whoever used one of the extents has given up
// its pin, and so had queued its work before. An extent whose users cannot be marked is given up,
// and keeps no other from leaving.
void StreamMigrations::let_wait_for_users(CopyStream& stream, std::vector<Eviction>& evictions,
                                          EvictionResult* result) {
  if (let_wait(stream, evictions).is_ok()) return;
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const Status status =
        let_wait(stream, eviction.extent->used_by.load(std::memory_order_relaxed));
    if (!status.is_ok()) fail(eviction, status, result);
    return !status.is_ok();
  });
}

Status StreamMigrations::let_wait(CopyStream& stream, const std::vector<Eviction>& evictions) {
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

Status StreamMigrations::let_wait(CopyStream& stream, StreamSet users) {
  std::vector<StreamMark> marks;
  // Copies of other extents are no use of this one.
  const Status marked = heap_.streams().mark_all(users & ~out_number_, &marks);
  // Whatever the reason, it is none of the tier below.
  if (!marked.is_ok()) return {StatusCode::kUnavailable, marked.message()};
  for (const StreamMark& mark : marks) TENCACHE_RETURN_IF_ERROR(stream.wait_for(mark));
  return Status::ok();
}

// What differs is unsealed and handed on.
void StreamMigrations::prove_and_leave(std::vector<Eviction>& evictions, EvictionResult* result,
                                       std::vector<Eviction>* differing) {
  seal(evictions);
  hash_sealed(evictions, result);
  for (Eviction& eviction : evictions) {
    if (is_proved(eviction)) {
      leave(eviction, result);
      continue;
    }
    eviction.extent->unseal();
    eviction.after.reset();
    differing->push_back(std::move(eviction));
  }
}

// Those that were not used since the claim; the others are given up.
void StreamMigrations::seal(std::vector<Eviction>& evictions) {
  std::erase_if(evictions, [&](const Eviction& eviction) {
    const bool is_sealed = eviction.extent->seal() &&
                           eviction.extent->last_use_ticks.load(std::memory_order_relaxed) <=
                               eviction.claimed_at_ticks;
    if (!is_sealed) abandon(eviction);
    return !is_sealed;
  });
}

// Waits for the hashes; those that cannot be had are given up.
void StreamMigrations::hash_sealed(std::vector<Eviction>& evictions, EvictionResult* result) {
  if (hasher_ == nullptr) return;
  let_wait_for_users(*proof_, evictions, result);
  std::vector<Status> queued;
  queued.reserve(evictions.size());
  for (Eviction& eviction : evictions) queued.push_back(queue_proof(eviction));
  size_t index = 0;
  std::erase_if(evictions, [&](const Eviction& eviction) {
    Status status = queued[index++];
    if (status.is_ok()) status = eviction.done.wait();
    if (status.is_ok()) return false;
    (void)proof_->wait_until_idle();  // before the hash's slot is used again
    fail(eviction, status, result);
    return true;
  });
}

Status StreamMigrations::queue_proof(Eviction& eviction) {
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

bool StreamMigrations::is_proved(const Eviction& eviction) const {
  if (hasher_ == nullptr) return true;
  return eviction.after->value() ==
         (eviction.needs_copy ? eviction.before->value() : eviction.extent->copy_hash);
}

void StreamMigrations::leave(const Eviction& eviction, EvictionResult* result) {
  CudaExtent* extent = eviction.extent;
  const uint64_t bytes = extent->bytes;
  const bool was_fetched_in_vain = extent->has(kFlagAhead);
  const Status status = heap_.take_away_frame(extent);
  if (!status.is_ok()) return fail(eviction, status, result);
  if (eviction.after.has_value()) extent->copy_hash = eviction.after->value();
  extent->slot_is_written = true;
  extent->used_by.fetch_and(~out_number_, std::memory_order_relaxed);
  extent->become_cold();
  heap_.budget().release(bytes);
  add(stats_.evicted_bytes, bytes);
  if (!eviction.needs_copy) add(stats_.clean_dropped_bytes, bytes);
  if (was_fetched_in_vain) {
    add(stats_.wasted_fetches, 1);
    add(stats_.wasted_fetched_bytes, bytes);
  }
  result->count += 1;
  result->bytes += bytes;
}

// A copy that was begun is worth nothing as soon as the extent may be written again.
void StreamMigrations::abandon(const Eviction& eviction) {
  if (eviction.needs_copy) heap_.release_copy(eviction.extent);
  eviction.extent->used_by.fetch_and(~out_number_, std::memory_order_relaxed);
  eviction.extent->abandon_eviction();
}

void StreamMigrations::fail(const Eviction& eviction, const Status& failure,
                            EvictionResult* result) {
  abandon(eviction);
  // Not now: a stream captures a graph, or other threads evict as well.
  if (failure.code() == StatusCode::kUnavailable) return;
  add(stats_.eviction_failures, 1);
  if (result->failure.is_ok()) result->failure = failure;
  if (warned_failure_.exchange(true)) return;
  TENCACHE_LOG_WARNING(
      "an eviction failed: %s; the tensor stays on the GPU and nothing is lost (further failures "
      "are only counted)",
      failure.clause().c_str());
}

}  // namespace tencache
