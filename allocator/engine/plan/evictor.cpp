// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/evictor.h"

#include <algorithm>
#include <chrono>

#include "base/service_thread.h"
#include "base/units.h"
#include "engine/gate/gate.h"
#include "engine/move/fork_latch.h"
#include "engine/plan/prefetcher.h"
#include "engine/plan/upcoming_uses.h"
#include "memory/budget.h"

namespace tencache {
namespace {

constexpr std::chrono::microseconds kAheadPoll{100};
// This many passes in a row may lose all of their victims, which may have been used or written.
constexpr uint32_t kPassesInVainMax = 3;

}  // namespace

Evictor::Evictor(const Parts& parts, const DiskPatienceConfig& patience)
    : parts_(parts),
      heap_(*parts.heap),
      mover_(parts.mover),
      patience_(parts.disk, parts.has_host, patience) {}

Evictor::~Evictor() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    work_arrived_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

void Evictor::start() {
  worker_ = start_service_thread("tencache", [this] { work(); });
}

std::string Evictor::current_op() const { return parts_.gate->current_op(); }

void Evictor::begin_wait(StreamSet streams) { parts_.gate->begin_wait_for_room(streams); }

void Evictor::end_wait() { parts_.gate->end_wait_for_room(); }

bool Evictor::is_disk_failing() const {
  return parts_.disk != nullptr && parts_.disk->is_failing();
}

void Evictor::watch_budget() {
  Budget& budget = heap_.budget();
  const uint64_t limit_bytes = budget.limit();
  budget.set_attention(may_evict() ? limit_bytes - headroom_of(limit_bytes) / 2 : ~uint64_t{0});
}

void Evictor::on_budget_change() {
  if (is_armed()) watch_budget();
  if (heap_.budget().needs_attention()) on_attention();
}

void Evictor::on_attention() {
  if (!is_armed()) {
    // Cached memory alone is no reason to arm: it goes first where room is needed.
    if (heap_.live_bytes() > heap_.budget().attention()) arm();
    return;
  }
  if (!may_evict() || is_nudged_.load(std::memory_order_relaxed)) return;
  const bool is_short = bytes_to_free_for({.used_bytes = heap_.budget().used()}, guessed_bytes()) >
                            headroom_bytes() / 2 ||
                        heap_.needs_free_room();
  if (!is_short || is_nudged_.exchange(true)) return;
  MutexLock lock(mutex_);
  work_arrived_.notify_one();
}

void Evictor::arm() {
  if (is_armed_.exchange(true)) return;
  watch_budget();
  if (parts_.hooks->on_arm) parts_.hooks->on_arm();
}

bool Evictor::make_room(uint64_t bytes, uint64_t soon_bytes, Status* reason) {
  if (!may_evict()) return false;
  arm();
  // Fetches that were requested before come first, as long as the device does not wait for this
  // thread.
  parts_.gate->let_fetches_go_first();
  bool has_room = false;
  const Demand demand(mover_->ledger());
  MutexLock lock(mutex_);
  demand_bytes_ += bytes + soon_bytes;
  const uint64_t ticket = passes_begun_ + 1;  // the first pass that knows of this demand
  work_arrived_.notify_one();
  for (;;) {
    has_room = heap_.budget().try_reserve(bytes);
    if (has_room) break;
    if (last_fruitless_ >= ticket) {
      *reason = fruitless_reason_;
      break;
    }
    room_changed_.wait(mutex_);
  }
  demand_bytes_ -= bytes + soon_bytes;
  return has_room;
}

void Evictor::await_any_room(uint64_t bytes, uint64_t soon_bytes) {
  if (!may_evict()) return;
  arm();
  const Demand demand(mover_->ledger());
  MutexLock lock(mutex_);
  any_room_bytes_ += bytes + soon_bytes;
  const uint64_t ticket = passes_begun_ + 1;  // the first pass that knows of this demand
  work_arrived_.notify_one();
  while (last_fruitless_ < ticket && heap_.budget().free() + heap_.cached_bytes() < bytes) {
    room_changed_.wait(mutex_);
  }
  any_room_bytes_ -= bytes + soon_bytes;
}

uint64_t Evictor::evict_all() {
  if (!may_evict()) return 0;
  mover_->settle(true);
  std::vector<Extent*> all;
  for (const ListedExtent& victim : victims(~uint64_t{0} / 2, false)) all.push_back(victim.extent);
  const EvictionResult result = mover_->evict(all);
  note_spill(result);
  publish();
  return result.count;
}

/// Gives the mover what a plan has requested, and what the plan requests meanwhile.
class Evictor::RequestedEvictions final : public EvictionSource {
 public:
  explicit RequestedEvictions(Evictor& evictor) : evictor_(evictor) {}

  std::vector<MoveRequest> take(uint64_t /*bytes_under_way*/) override {
    return evictor_.take_requests();
  }
  void await_more(std::chrono::nanoseconds time) override { evictor_.await_requests(time); }
  void on_evicted(const EvictionResult& part) override { evictor_.note_departure(part); }

 private:
  Evictor& evictor_;
};

void Evictor::work() {
  for (;;) {
    uint64_t pass = 0;
    bool has_requests = false;
    {
      MutexLock lock(mutex_);
      while (!is_stopping_ && demand_bytes_ + any_room_bytes_ == 0 && requests_.empty() &&
             !is_nudged_.load()) {
        work_arrived_.wait(mutex_);
      }
      if (is_stopping_) return;
      has_requests = !requests_.empty();
      if (!has_requests) pass = ++passes_begun_;
    }
    if (has_requests) {
      RequestedEvictions source(*this);
      mover_->evict_requested(source);
      continue;
    }
    is_nudged_.store(false);
    const auto is_anything_ahead = [this] {
      return may_evict() && mover_->ledger().bytes_ahead.load(std::memory_order_relaxed) > 0;
    };
    const bool was_anything_ahead = is_anything_ahead();
    const std::optional<EvictionResult> result = run_pass();
    // Extents that are being fetched ahead of use can be evicted in a moment, so a pass during
    // which there are any proves nothing. A pass that lost all of its victims proves nothing,
    // either, unless more than kPassesInVainMax in a row have done so.
    const bool has_lost_victims = passes_in_vain_ > 0 && passes_in_vain_ <= kPassesInVainMax;
    const bool is_proof = !was_anything_ahead && !is_anything_ahead() && !has_lost_victims;
    const bool is_fruitless = result && result->bytes == 0 && is_proof;
    const bool had_victims = result && (passes_in_vain_ > 0 || !result->failure.is_ok());
    const bool goes_on = result && patience_.goes_on_after(*result, had_victims, has_demand());
    {
      MutexLock lock(mutex_);
      if (is_fruitless && !goes_on) {
        last_fruitless_ = pass;
        fruitless_reason_ = patience_.reason_of(*result);
      }
      room_changed_.notify_all();
    }
    // Without a result there was room already. Blocked allocations find it, or find that another
    // thread took it. Such a pass says nothing about what can be evicted, and the next one follows
    // at once.
    if (!result) std::this_thread::yield();
    if (result && result->bytes == 0 && !is_proof) {
      std::this_thread::sleep_for(kAheadPoll);
    }
    if (is_fruitless && goes_on) pause_for_disk();
  }
}

// The pause ends early for whoever else wants something of the worker.
void Evictor::pause_for_disk() {
  MutexLock lock(mutex_);
  if (is_stopping_ || !requests_.empty()) return;
  work_arrived_.wait_for(mutex_, patience_.next_pause());
}

void Evictor::request(std::span<const MoveRequest> evictions) {
  if (!may_evict()) return;
  // By the time the requests are carried out, the program may have queued much more work, for which
  // the evictions need not wait.
  const std::shared_ptr<const QueuedWork> queued = mover_->queued_work(evictions);
  MutexLock lock(mutex_);
  for (const MoveRequest& request : evictions) requests_.emplace_back(request).queued = queued;
  work_arrived_.notify_one();
}

std::vector<MoveRequest> Evictor::take_requests() {
  MutexLock lock(mutex_);
  if (is_stopping_) return {};
  return std::exchange(requests_, {});
}

void Evictor::await_requests(std::chrono::nanoseconds time) {
  MutexLock lock(mutex_);
  if (requests_.empty() || is_stopping_) work_arrived_.wait_for(mutex_, time);
}

// Makes one pass, and publishes each part of an eviction as it leaves.
std::optional<EvictionResult> Evictor::run_pass() {
  EvictionResult total;
  // 1. Release pins that outlived their op, and take note of fetches that have arrived.
  if (parts_.hooks->before_pass) parts_.hooks->before_pass();
  mover_->settle(false);
  // 2. Find out how much is wanted. Separate passes make room for guesses.
  const bool is_for_guesses = bytes_to_free(0) == 0;
  const uint64_t wanted = wanted_bytes(is_for_guesses);
  if (wanted == 0) return std::nullopt;
  const uint64_t demand = demand_bytes();
  const bool is_demanded = demand > 0;
  // 3. Give back idle cached memory, where a thread waits, the budget is exceeded, or cached memory
  // does not serve a request of every size.
  if (is_demanded || heap_.needs_free_room() || !heap_.can_use_any_cached()) {
    const MigrationPermit permit(mover_->fork_latch());
    total.bytes += heap_.drop_idle_cached(wanted);
    if (heap_.budget().free() < demand) {
      total.bytes += heap_.drop_idle_segments(heap_.budget().lacking(demand));
    }
    if (total.bytes >= wanted) return total;
    // The rest of the cache counts as headroom: the device will soon be done with it.
    if (!is_demanded && total.bytes + heap_.cached_bytes() >= wanted) return total;
  }
  // 4. Evict extents that the program wrote to while they were cold. No op has used them since they
  // left, so they go before all others.
  evict_written(wanted - total.bytes, false, &total);
  if (total.bytes >= wanted) return total;
  // 5. Choose victims, and move them while room is wanted.
  evict_victims(wanted - total.bytes, is_for_guesses, &total);
  // 6. Where a thread waits or the budget is exceeded, evict further extents that were written
  // while they were cold, also those that step 4 leaves: less than half written, or still being
  // written. If the budget is still exceeded and nobody waits, let extents that no op has named
  // leave in the next pass.
  if (is_demanded || heap_.needs_free_room()) evict_written(bytes_to_free(0), true, &total);
  if (!has_demand()) shrink_to_budget();
  return total;
}

// Pages that the program wrote in cold extents may exceed the budget although no thread waits for
// room. Then extents that no op has named have to leave, in the next pass. (A thread that waits
// sees to that itself, as a rung of its ladder.)
void Evictor::shrink_to_budget() {
  const uint64_t used_bytes = heap_.budget().used();
  const uint64_t limit_bytes = heap_.budget().limit();
  if (used_bytes <= limit_bytes || heap_.unannounced_bytes() == 0) return;
  if (heap_.let_unnamed_leave(used_bytes - limit_bytes)) is_nudged_.store(true);
}

// Evicts again extents that the program wrote to while they were cold: the written pages take room
// until then.
void Evictor::evict_written(uint64_t wanted_bytes, bool takes_all, EvictionResult* total) {
  if (wanted_bytes == 0 || heap_.unannounced_bytes() == 0) return;
  total->add(mover_->evict_written(wanted_bytes, takes_all));
  publish();
}

uint64_t Evictor::demand_bytes() {
  MutexLock lock(mutex_);
  return demand_bytes_;
}

uint64_t Evictor::wanted_bytes(bool is_for_guesses) {
  return bytes_to_free(is_for_guesses ? guessed_bytes() : 0);
}

uint64_t Evictor::guessed_bytes() const {
  return parts_.prefetcher != nullptr ? parts_.prefetcher->guessed_bytes() : 0;
}

uint64_t Evictor::bytes_to_free(uint64_t guessed_bytes) {
  Need need;
  {
    MutexLock lock(mutex_);
    need = {heap_.budget().used(), demand_bytes_, any_room_bytes_};
  }
  return bytes_to_free_for(need, guessed_bytes);
}

// Besides the demand, this counts room for the headroom, for extents that are wanted ahead of use,
// and for threads whom cached memory serves. Cached memory counts towards these three where it can
// serve every request.
uint64_t Evictor::bytes_to_free_for(const Need& need, uint64_t guessed_bytes) const {
  const uint64_t cached_bytes = heap_.can_use_any_cached() ? heap_.cached_bytes() : 0;
  const uint64_t missing_bytes = parts_.upcoming != nullptr ? parts_.upcoming->missing_bytes() : 0;
  const uint64_t wanted_bytes =
      headroom_bytes() + missing_bytes + guessed_bytes + need.any_room_bytes;
  const uint64_t lacking_bytes = wanted_bytes - std::min(cached_bytes, wanted_bytes);
  const uint64_t used_then = need.used_bytes + need.demand_bytes + lacking_bytes;
  const uint64_t limit_bytes = heap_.budget().limit();
  return used_then > limit_bytes ? used_then - limit_bytes : 0;
}

// A plan counts on the room soon after its request, so every part is published at once.
void Evictor::note_departure(const EvictionResult& part) {
  note_spill(part);
  publish();
}

void Evictor::note_spill(const EvictionResult& result) {
  if (result.count == 0 || has_spilled_.exchange(true)) return;
  if (parts_.hooks->on_first_spill) parts_.hooks->on_first_spill();
}

// Wakes blocked allocations before the prefetcher.
void Evictor::publish() {
  {
    MutexLock lock(mutex_);
    room_changed_.notify_all();
  }
  if (parts_.prefetcher != nullptr) parts_.prefetcher->on_room();
}

}  // namespace tencache
