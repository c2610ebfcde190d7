// SPDX-License-Identifier: Apache-2.0
//
// Engine: owns one whole allocator, from the address arena to the gate, and wires its parts.
// Several may live one after another in a process (tests); the process-wide hooks, i.e. the fault
// handler and the fork handlers, serve the newest. The C ABI holds one for the life of the process.
//
// Threads: create and destroy on one thread; the rest from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "backend/address_arena.h"
#include "backend/page_map.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/gate.h"
#include "engine/learner.h"
#include "engine/migrations.h"
#include "engine/migrator.h"
#include "engine/plan_cursor.h"
#include "engine/prefetcher.h"
#include "engine/processor_use.h"
#include "learn/recorder.h"
#include "memory/heap.h"
#include "tier/disk_tier.h"

namespace tencache {

struct ChaosConfig {
  uint64_t seed = 0;
  double probability = 1.0;  // that an outermost op's end evicts everything that may be
};

struct EngineConfig {
  uint64_t budget_bytes = 0;
  double arm_at = 0.70;  // share of the budget
  uint64_t arena_bytes = uint64_t{16} << 40;
  HeapConfig heap;
  std::optional<DiskTierConfig> disk;  // none: nothing ever goes cold
  std::optional<ChaosConfig> chaos;
  bool plans = true;                  // learn what repeats and move by plan; else by last use alone
  std::function<void()> on_arm;       // once, from an allocating thread, no lock held
  std::function<void()> before_pass;  // often, from the migrator
  std::function<void()> on_first_spill;          // once, from the migrator
  std::function<void(const Script&)> on_script;  // for every plan, from the learner
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(EngineConfig config);
  ~Engine();

  Result<void*> allocate(uint64_t bytes) {
    Result<Allocation> allocation = heap_->allocate(bytes);
    if (!allocation.is_ok()) return allocation.status();
    Extent* extent = allocation.value().extent;
    if (extent != nullptr && migrator_->is_armed()) gate_->on_allocate(extent);
    return allocation.value().address;
  }
  void free(void* address) {
    if (migrator_->is_armed() && arena_->contains(address)) {
      if (const Extent* extent = heap_->find(address)) gate_->on_free(extent);
    }
    heap_->free(address);
  }

  Gate& gate() { return *gate_; }
  Heap& heap() { return *heap_; }
  Budget& budget() { return *budget_; }
  Migrator& migrator() { return *migrator_; }
  Migrations* migrations() { return migrations_.get(); }
  Recorder& recorder() { return recorder_; }
  Stats& stats() { return stats_; }
  DiskTier* disk() { return disk_.get(); }
  /// Null where nothing is planned.
  Learner* learner() { return learner_.get(); }
  const AddressArena& arena() const { return *arena_; }

  /// Whether this process is a child of the one that made the engine.
  bool is_passive() const { return is_passive_.load(std::memory_order_relaxed); }

 private:
  explicit Engine(EngineConfig config);
  Status open_tiers();
  void wire();
  void wire_plans();
  void wire_gate();
  Machine measure(uint64_t* fixed_bytes);
  void maybe_cause_chaos();

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  EngineConfig config_;
  Stats stats_;
  Recorder recorder_;
  std::unique_ptr<AddressArena> arena_;
  std::unique_ptr<ExtentTable> table_;
  std::unique_ptr<PageMap> page_map_;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<Budget> budget_;
  std::unique_ptr<Heap> heap_;
  std::unique_ptr<Migrations> migrations_;
  ProcessorUse processors_;
  // Their threads use what stands above them.
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<PlanCursor> cursor_;
  std::unique_ptr<Migrator> migrator_;
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<Gate> gate_;
  std::atomic<uint64_t> chaos_draws_{0};
  std::atomic<bool> is_passive_{false};
};

}  // namespace tencache
