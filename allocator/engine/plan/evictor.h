// SPDX-License-Identifier: Apache-2.0
//
// Evictor: decides what leaves the device tier when room is short, and evicts it on its own thread,
// so that an op waits only when it asks for more than is free. It keeps some headroom: a pass
// starts when less than half of the headroom is free, and evicts until all of it is. Victims are
// the extents that were used longest ago. Among the oldest, those go first that are presumed equal
// to their copy below, because they cost no write.
//
// An allocation that finds no room registers its demand and waits for a pass that began after it.
// If such a pass freed nothing, and no fetch ahead of use was under way meanwhile, then nothing may
// be evicted now, and the allocation takes the next rung of its ladder (memory/heap.cpp). Where the
// pass had victims, and all were used or written while they left, up to three more passes are made.
//
// Where passes free nothing because the disk takes nothing now, they are tried again for a while
// (engine/plan/disk_patience.h). Meanwhile the worker holds nothing: others fork, free and use what
// is resident.
//
// On the cpu backend a pass also evicts again extents that the program wrote to while they were
// cold (engine/move/cpu/unannounced_writes.h). Those of which at least half was written go before
// the victims, and the others go after them.
//
// Room for guesses (engine/plan/neighbours.h) is not made at the cost of what the program has just
// named.
//
// A plan's requests (engine/plan/plan_cursor.h) go before passes. While a plan is followed, a pass
// chooses by it, too: first what the plan does not know, then what it needs last. What the program
// is about to name (engine/plan/upcoming_uses.h) counts in the same way, with a plan or without.
//
// The evictor also arms: when live memory passes the attention mark for the first time, or a thread
// finds no room, the shim is told to report ops. Before that no gate has seen anything, so nothing
// could be evicted.
//
// Threads: one worker; any thread calls the rest. mutex_ guards the requests, the demand and the
// outcome of passes; it is never held while anything moves.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "engine/move/move_request.h"
#include "engine/move/mover.h"
#include "engine/parts.h"
#include "engine/plan/disk_patience.h"
#include "memory/budget.h"
#include "memory/heap.h"

namespace tencache {

class Evictor final : public RoomMaker {
 public:
  /// Without a mover (strict mode) nothing is ever evicted. The gate may be made later, but before
  /// the first call.
  explicit Evictor(const Parts& parts, const DiskPatienceConfig& patience = {});
  /// Stops the worker after what it is evicting.
  ~Evictor() override;

  void start();

  bool make_room(uint64_t bytes, uint64_t soon_bytes, Status* reason) override
      TENCACHE_EXCLUDES(mutex_);
  void await_any_room(uint64_t bytes, uint64_t soon_bytes) override TENCACHE_EXCLUDES(mutex_);
  void on_attention() override;
  /// Engine::on_budget_change() calls this after the budget's limit has changed.
  void on_budget_change();
  std::string current_op() const override;
  void begin_wait(StreamSet streams) override;
  void end_wait() override;
  bool is_disk_failing() const override;

  /// Evicts these extents soon, in the given order; what is presumed clean may go first.
  void request(std::span<const MoveRequest> evictions) TENCACHE_EXCLUDES(mutex_);

  /// Has the shim report ops from now on.
  void arm();
  bool is_armed() const override { return is_armed_.load(std::memory_order_relaxed); }

  /// Evicts whatever may be evicted, on the calling thread. Returns how many extents went cold.
  uint64_t evict_all();

  /// The part of the budget that passes keep free.
  uint64_t headroom_bytes() const { return headroom_of(heap_.budget().limit()); }

 private:
  /// What is needed at one moment: a demand that is met counts as used, and no longer as demand.
  struct Need {
    uint64_t used_bytes = 0;
    uint64_t demand_bytes = 0;
    uint64_t any_room_bytes = 0;
  };
  class RequestedEvictions;
  class PassEvictions;

  void work();
  std::vector<MoveRequest> take_requests() TENCACHE_EXCLUDES(mutex_);
  void await_requests(std::chrono::nanoseconds time) TENCACHE_EXCLUDES(mutex_);
  /// Makes one pass, and returns what it freed. Returns nullopt when there was enough room already.
  std::optional<EvictionResult> run_pass();
  uint64_t wanted_bytes(bool is_for_guesses) TENCACHE_EXCLUDES(mutex_);
  void evict_victims(uint64_t wanted_bytes, bool is_for_guesses, EvictionResult* total)
      TENCACHE_EXCLUDES(mutex_);
  void evict_written(uint64_t wanted_bytes, bool takes_all, EvictionResult* total);
  void shrink_to_budget();
  void pause_for_disk() TENCACHE_EXCLUDES(mutex_);
  void watch_budget();
  bool may_evict() const { return mover_ != nullptr; }
  uint64_t demand_bytes() TENCACHE_EXCLUDES(mutex_);
  bool has_demand() TENCACHE_EXCLUDES(mutex_) { return demand_bytes() > 0; }
  uint64_t guessed_bytes() const;
  uint64_t bytes_to_free(uint64_t guessed_bytes) TENCACHE_EXCLUDES(mutex_);
  uint64_t bytes_to_free_for(const Need& need, uint64_t guessed_bytes) const;
  std::vector<ListedExtent> victims(uint64_t wanted_bytes, bool is_for_guesses) const;
  void note_departure(const EvictionResult& part) TENCACHE_EXCLUDES(mutex_);
  void note_spill(const EvictionResult& result);
  void publish() TENCACHE_EXCLUDES(mutex_);

  // Nothing replaces these after construction.
  const Parts& parts_;
  Heap& heap_;
  Mover* const mover_;

  // The thread that arms sets this, once.
  std::atomic<bool> is_armed_{false};
  // Threads that call on_attention() and the worker set this flag, and the worker clears it. The
  // flag spares on_attention() the lock.
  std::atomic<bool> is_nudged_{false};
  std::atomic<bool> has_spilled_{false};

  // Only the worker uses these.
  DiskPatience patience_;
  uint32_t passes_in_vain_ = 0;  // in a row, that had victims and freed nothing

  Mutex mutex_;
  CondVar work_arrived_;
  CondVar room_changed_;
  uint64_t demand_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;    // of all who wait, now and soon
  uint64_t any_room_bytes_ TENCACHE_GUARDED_BY(mutex_) = 0;  // of those whom cached memory serves
  uint64_t passes_begun_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t last_fruitless_ TENCACHE_GUARDED_BY(mutex_) = 0;  // the last that proved to be in vain
  Status fruitless_reason_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<MoveRequest> requests_ TENCACHE_GUARDED_BY(mutex_);
  bool is_stopping_ TENCACHE_GUARDED_BY(mutex_) = false;
  std::thread worker_;
};

}  // namespace tencache
