// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tencache {
namespace {

// All engines, for fork handlers, which the process calls without an argument. No engine is added
// between a fork's handlers, so what is closed is reopened.
Mutex g_engines_mutex;
std::array<Engine*, Gate::kGatesMax> g_engines TENCACHE_GUARDED_BY(g_engines_mutex) = {};
Mutex g_fork_mutex;
thread_local bool t_has_fork_locks = false;  // from before_fork() on

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config,
                                               std::unique_ptr<Device> device) {
  std::unique_ptr<Engine> engine(new Engine(std::move(config), std::move(device)));
  engine->make_parts();  // a thread may fail to start; the destructor then unlists the engine
  TENCACHE_RETURN_IF_ERROR(engine->device().measure());
  // The learner plans a stored period, now that the speeds are known.
  if (engine->learner() != nullptr && engine->config_.stored_period != nullptr) {
    engine->learner()->nudge();
  }
  return engine;
}

Engine::Engine(EngineConfig config, std::unique_ptr<Device> device)
    : config_(std::move(config)), device_(std::move(device)) {}

Engine::~Engine() {
  // The device's mover outlives the evictor and the cursor, and calls both.
  if (mover() != nullptr) {
    mover()->stop_looking();
    mover()->set_next_uses(nullptr);
  }
  MutexLock lock(g_engines_mutex);
  std::ranges::replace(g_engines, this, static_cast<Engine*>(nullptr));
}

// Threads start when all parts are there.
void Engine::make_parts() {
  parts_.heap = &device_->heap();
  parts_.mover = device_->mover();
  parts_.disk = device_->disk();
  parts_.has_host = device_->host() != nullptr;
  parts_.recorder = &recorder_;
  parts_.stats = &stats();
  parts_.wait_timer = device_->wait_timer();
  parts_.hooks = &config_.hooks;
  if (config_.chaos) {
    chaos_ = std::make_unique<Chaos>(parts_, *config_.chaos);
    parts_.chaos = chaos_.get();
  }
  if (mover() != nullptr && config_.plans) make_planning_parts();
  evictor_ = std::make_unique<Evictor>(parts_, config_.disk_patience);
  parts_.evictor = evictor_.get();
  heap().set_room_maker(evictor_.get());
  gate_ = std::make_unique<Gate>(parts_);
  parts_.gate = gate_.get();
  set_mark_to_arm();
  list_for_forks();
  if (mover() != nullptr) evictor_->start();
  if (prefetcher_) prefetcher_->start();
  if (learner_) learner_->start();
}

void Engine::make_planning_parts() {
  parts_.op_timer = device_->op_timer();
  machine_ = std::make_unique<MachineMeter>(parts_);
  parts_.machine = machine_.get();
  prefetcher_ = std::make_unique<Prefetcher>(heap(), *mover());
  parts_.prefetcher = prefetcher_.get();
  const FetchTime when = mover()->are_ops_queued() ? FetchTime::kAtClose : FetchTime::kAtOpen;
  cursor_ = std::make_unique<PlanCursor>(static_cast<PlanSink&>(*this), when);
  parts_.cursor = cursor_.get();
  mover()->set_next_uses(cursor_.get());
  upcoming_ = std::make_unique<UpcomingUses>(parts_);
  parts_.upcoming = upcoming_.get();
  neighbours_ = std::make_unique<Neighbours>(parts_);
  parts_.neighbours = neighbours_.get();
  learner_ = std::make_unique<Learner>(parts_, config_.stored_period);
  parts_.learner = learner_.get();
  if (config_.stored_period != nullptr) cursor_->expect_plan();
}

// Where a stored period shows that the program will use more than the mark, the mark is 0, so that
// its ops are watched from the first one on.
void Engine::set_mark_to_arm() {
  const double arm_at = config_.chaos ? 0.0 : config_.arm_at;
  const auto mark_bytes = static_cast<uint64_t>(static_cast<double>(budget().limit()) * arm_at);
  const bool will_arm = learner_ != nullptr && config_.stored_period != nullptr &&
                        config_.stored_period->trace.peak_bytes() > mark_bytes;
  budget().set_attention(will_arm ? 0 : mark_bytes);
}

void Engine::on_budget_change() {
  if (!evictor_->is_armed()) set_mark_to_arm();
  evictor_->on_budget_change();
}

std::vector<Extent*> Engine::extents_of(std::span<const Access> accesses, bool with_slabs) const {
  std::vector<Extent*> extents;
  extents.reserve(accesses.size());
  for (const Access& access : accesses) {
    Extent* extent = heap().find(access.address);
    if (extent != nullptr && (with_slabs || !extent->is_slab)) extents.push_back(extent);
  }
  return extents;
}

void Engine::expect(std::span<const Access> accesses) {
  if (upcoming_ != nullptr) upcoming_->expect(extents_of(accesses, /*with_slabs=*/false));
}

Status Engine::admit(std::span<const Access> accesses) {
  if (!heap().is_in_debt() && !evictor_->is_disk_failing()) return Status::ok();
  std::vector<Extent*> extents = extents_of(accesses, /*with_slabs=*/true);
  std::ranges::sort(extents);
  // clang 14 cannot compile std::ranges::unique().
  extents.erase(std::unique(extents.begin(), extents.end()), extents.end());
  return heap().admit(extents);
}

void Engine::reset_peaks() {
  const uint64_t used = budget().used();
  const uint64_t limit = budget().limit();
  stats().peak_device_bytes.store(used, std::memory_order_relaxed);
  stats().peak_live_bytes.store(heap().live_bytes(), std::memory_order_relaxed);
  stats().over_budget_peak_bytes.store(used - std::min(used, limit), std::memory_order_relaxed);
  if (HostTier* host = device().host()) host->reset_peaks();
  if (DiskTier* disk = device().disk()) disk->reset_peak();
}

void Engine::install_fork_handlers() {
  static std::once_flag once;
  std::call_once(once,
                 [] { pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child); });
}

Mutex& Engine::fork_mutex() {
  install_fork_handlers();  // before its first use, or a fork may find it locked
  return g_fork_mutex;
}

void Engine::list_for_forks() {
  install_fork_handlers();
  MutexLock lock(g_engines_mutex);
  Engine** const place = std::ranges::find(g_engines, nullptr);
  TENCACHE_CHECK(place != g_engines.end(), "there are more than %zu engines", g_engines.size());
  *place = this;
}

// A child sees the bytes as they were at the fork and never writes the parent's tiers. No migration
// is under way while the process is copied, the slots in use are frozen, and the child's engine is
// passive: from then on it allocates with malloc (not at all on cuda), its gate does nothing, and
// it has no evictor (that thread is not copied). Where tencache itself ends the process, the thread
// that forks may hold any lock, and the latch, so the handlers take none.
void Engine::before_fork() TENCACHE_NO_THREAD_SAFETY_ANALYSIS {
  t_has_fork_locks = !is_ending();
  if (!t_has_fork_locks) return;
  g_engines_mutex.lock();
  for (Engine* engine : g_engines) {
    if (engine == nullptr || engine->is_passive()) continue;
    raise_to(engine->stats().ops, engine->recorder().op_count());  // the child reads no rings
    if (engine->mover() == nullptr) continue;
    engine->mover()->fork_latch().close();
    engine->device().before_fork();
    add(engine->stats().forks, 1);
  }
  // This lock comes last, so that other threads go on as long as this one waits for moves.
  g_fork_mutex.lock();
}

void Engine::after_fork_in_parent() TENCACHE_NO_THREAD_SAFETY_ANALYSIS {
  if (!t_has_fork_locks) return;
  g_fork_mutex.unlock();
  for (Engine* engine : g_engines) {
    if (engine == nullptr || engine->is_passive() || engine->mover() == nullptr) continue;
    engine->device().after_fork_in_parent();
    engine->mover()->fork_latch().reopen();
  }
  g_engines_mutex.unlock();
}

void Engine::after_fork_in_child() TENCACHE_NO_THREAD_SAFETY_ANALYSIS {
  for (Engine* engine : g_engines) {
    if (engine == nullptr) continue;
    engine->is_passive_.store(true, std::memory_order_relaxed);
    engine->heap().become_passive();
    engine->gate_->become_passive();
  }
  if (!t_has_fork_locks) return;
  g_fork_mutex.unlock();
  g_engines_mutex.unlock();
}

}  // namespace tencache
