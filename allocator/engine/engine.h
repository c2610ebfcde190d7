// SPDX-License-Identifier: Apache-2.0
//
// Engine: owns one whole allocator, from its backend to the gate, and wires the parts. Allocation
// itself differs between backends: engine/cpu_engine.h, engine/cuda_engine.h. Several may live
// in a process, one for each GPU; the process-wide fork handlers serve all of them.
//
// Threads: create and destroy on one thread; the rest from any.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/options.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/device.h"
#include "engine/gate/gate.h"
#include "engine/parts.h"
#include "engine/plan/chaos.h"
#include "engine/plan/evictor.h"
#include "engine/plan/learner.h"
#include "engine/plan/machine_meter.h"
#include "engine/plan/plan_cursor.h"
#include "engine/plan/prefetcher.h"
#include "learn/recorder.h"
#include "memory/budget.h"

namespace tencache {

struct EngineConfig {
  uint64_t budget_bytes = 0;
  double arm_at = kDefaultArmAt;  // share of the budget
  std::optional<ChaosConfig> chaos;
  bool plans = true;  // learn what repeats and move by plan; else by last use alone
  EngineHooks hooks;
};

class Engine : private PlanSink {
 public:
  using DeviceOpener = std::function<Result<std::unique_ptr<Device>>(Budget& budget, Stats& stats)>;

  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Gate& gate() { return *gate_; }
  Heap& heap() { return device_->heap(); }
  Budget& budget() { return *budget_; }
  Evictor& evictor() { return *evictor_; }
  Mover* mover() { return device_->mover(); }
  Recorder& recorder() { return recorder_; }
  Stats& stats() { return stats_; }
  /// With what the device has waited for until now. Calls the driver.
  const Stats& settled_stats() {
    gate_->settle_waits();
    return stats_;
  }
  StreamSet set_of(void* stream) { return device_->set_of(stream); }
  StreamSet find_set_of(void* stream) { return device_->find_set_of(stream); }
  bool is_capturing(void* stream) { return device_->is_capturing(stream); }
  bool is_current() { return device_->is_current(); }
  Status device_status() { return device_->device_status(); }
  /// Null where nothing is planned.
  Learner* learner() { return learner_.get(); }

  /// Whether this process is a child of the one that made the engine.
  bool is_passive() const { return is_passive_.load(std::memory_order_relaxed); }

 protected:
  explicit Engine(EngineConfig config);
  /// Opens the backend and starts everything. Once, before anything else.
  Status start(const DeviceOpener& open_device);

  /// An extent was handed out (null: a small block), or is about to be freed.
  void note_allocation(Extent* extent) {
    if (extent != nullptr && evictor_->is_armed()) gate_->on_allocate(extent);
  }
  void note_free(const void* address) {
    if (!evictor_->is_armed()) return;
    if (const Extent* extent = heap().find(address)) gate_->on_free(extent);
  }

 private:
  void make_parts();
  void make_planning_parts();
  void list_for_forks();

  void evict(std::span<const MoveRequest> requests) override { evictor_->request(requests); }
  void fetch(std::span<const MoveRequest> requests) override { prefetcher_->request(requests); }
  void forget_fetches() override { prefetcher_->forget(); }
  void on_period() override { learner_->nudge(); }

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  EngineConfig config_;
  Stats stats_;
  Recorder recorder_;
  std::unique_ptr<Budget> budget_;
  std::unique_ptr<Device> device_;
  Parts parts_;
  std::unique_ptr<Chaos> chaos_;
  std::unique_ptr<MachineMeter> machine_;
  // Their threads use what stands above them.
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<PlanCursor> cursor_;
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<Gate> gate_;
  std::atomic<bool> is_passive_{false};
};

}  // namespace tencache
