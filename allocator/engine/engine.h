// SPDX-License-Identifier: Apache-2.0
//
// Engine: one whole allocator over one device, from the device's memory to the gate. It owns the
// parts, wires them, and tells the gate what the program allocates and frees. For what only one
// kind of device can do, callers ask the device, which its opener knows by its own type. Several
// engines may live in a process, one for each GPU; the process-wide fork handlers serve them all.
//
// Threads: create and destroy on one thread; call the rest from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/options.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/device.h"
#include "engine/gate/gate.h"
#include "engine/parts.h"
#include "engine/plan/chaos.h"
#include "engine/plan/disk_patience.h"
#include "engine/plan/evictor.h"
#include "engine/plan/learner.h"
#include "engine/plan/machine_meter.h"
#include "engine/plan/neighbours.h"
#include "engine/plan/plan_cursor.h"
#include "engine/plan/prefetcher.h"
#include "engine/plan/upcoming_uses.h"
#include "learn/recorder.h"
#include "memory/budget.h"

namespace tencache {

/// The settings that every device shares; CpuDeviceConfig and CudaDeviceConfig have the others.
struct EngineConfig {
  double arm_at = kDefaultArmAt;  // share of the budget
  std::optional<ChaosConfig> chaos;
  bool plans = true;  // the engine learns what repeats and moves by plan; else by last use alone
  DiskPatienceConfig disk_patience;
  /// With plans: the period of an earlier run, which is followed from the first step. It is null if
  /// there is none.
  std::shared_ptr<const Period> stored_period = {};
  EngineHooks hooks;
};

class Engine final : private PlanSink {
 public:
  /// Makes all parts over a device that was just opened, and starts their threads.
  static Result<std::unique_ptr<Engine>> create(EngineConfig config,
                                                std::unique_ptr<Device> device);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// The lock that is held while a fork copies the process: what it guards is whole in a child.
  static Mutex& fork_mutex();

  /// Does what Device::allocate() does. If the evictor has armed, tells the gate of the allocation.
  Result<void*> allocate(uint64_t bytes, void* stream = nullptr) {
    const Result<Allocation> allocation = device_->allocate(bytes, stream);
    if (!allocation.is_ok()) return allocation.status();
    Extent* const extent = allocation.value().extent;  // null for a small block
    if (extent != nullptr && evictor_->is_armed()) note_allocation(extent);
    return allocation.value().address;
  }
  void free(void* address) {
    // The pin goes only after the free, so that no eviction begins in between.
    Extent* pinned = nullptr;
    if (evictor_->is_armed()) {
      Extent* extent = heap().find(address);
      if (extent != nullptr && !extent->is_slab && gate_->on_free(extent)) pinned = extent;
    }
    device_->free(address);
    if (pinned != nullptr) pinned->unpin();
  }
  /// Calls gate().open() for an op that queues its work in this stream.
  void open_op(uint32_t op, std::span<const Access> accesses, void* stream) {
    gate_->open(op, accesses, device_->set_of(stream));
  }

  /// Call when the calling thread is about to name these extents, op by op, in this order: they are
  /// the chunks of one call. An empty sequence takes back the thread's last one.
  void expect(std::span<const Access> accesses);
  /// Calls Heap::admit() where that may wait or refuse.
  Status admit(std::span<const Access> accesses);

  Device& device() { return *device_; }
  Heap& heap() const { return *parts_.heap; }
  Mover* mover() const { return parts_.mover; }
  Budget& budget() { return device_->budget(); }
  Stats& stats() { return device_->stats(); }
  /// The stats, including all ops and how long the device has waited until now. Calls the driver.
  const Stats& settled_stats() {
    if (!is_passive()) raise_to(stats().ops, recorder_.op_count());
    gate_->settle_waits();
    return stats();
  }
  /// Call after the budget's limit has changed.
  void on_budget_change();
  /// Peaks begin anew with what is used now.
  void reset_peaks();
  Gate& gate() { return *gate_; }
  Evictor& evictor() { return *evictor_; }
  /// Returns null where nothing is planned.
  const Prefetcher* prefetcher() const { return prefetcher_.get(); }
  Recorder& recorder() { return recorder_; }
  /// Returns null where nothing is planned.
  Learner* learner() { return learner_.get(); }

  /// Whether this process is a child of the one that made the engine.
  bool is_passive() const { return is_passive_.load(std::memory_order_relaxed); }

 private:
  Engine(EngineConfig config, std::unique_ptr<Device> device);
  void note_allocation(Extent* extent) {
    if (extent->is_slab) {
      gate_->on_allocate_block(extent);
    } else {
      gate_->on_allocate(extent);
    }
  }
  std::vector<Extent*> extents_of(std::span<const Access> accesses, bool with_slabs) const;
  void make_parts();
  void make_planning_parts();
  void list_for_forks();
  void set_mark_to_arm();

  void evict(std::span<const MoveRequest> requests) override { evictor_->request(requests); }
  void fetch(std::span<const MoveRequest> requests) override { prefetcher_->request(requests); }
  void forget_fetches() override { prefetcher_->forget(); }
  void on_period() override { learner_->nudge(); }

  static void install_fork_handlers();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  const EngineConfig config_;
  const std::unique_ptr<Device> device_;
  Recorder recorder_;
  Parts parts_;
  std::unique_ptr<Chaos> chaos_;
  std::unique_ptr<MachineMeter> machine_;
  // The threads of the members below use members above them (a warning of the evictor's names the
  // op that the gate has open). Destruction runs from the bottom up, so each thread ends before
  // those members do.
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<PlanCursor> cursor_;
  std::unique_ptr<UpcomingUses> upcoming_;
  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Learner> learner_;
  std::atomic<bool> is_passive_{false};
};

}  // namespace tencache
