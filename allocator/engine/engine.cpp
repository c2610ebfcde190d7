// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "base/check.h"
#include "base/mutex.h"

namespace tencache {
namespace {

// Every engine there is, for handlers that the process calls without an argument. The lock is held
// from before a fork until after it, so that none is added meanwhile: what is closed is reopened.
Mutex g_engines_mutex;
std::array<Engine*, Gate::kGatesMax> g_engines TENCACHE_GUARDED_BY(g_engines_mutex) = {};

// What a disk is taken to give before anything was moved.
constexpr double kUnknownBytesPerS = 1e9;
// System calls and table entries of one migration, besides its bytes.
constexpr uint64_t kFixedNs = 50'000;

// splitmix64: one number of a sequence, by its index, so that several threads draw from one
// sequence without a lock.
double uniform_draw(uint64_t seed, uint64_t index) {
  uint64_t value = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  value ^= value >> 31;
  return static_cast<double>(value >> 11) * 0x1.0p-53;
}

}  // namespace

Engine::Engine(EngineConfig config) : config_(std::move(config)) {}

Engine::~Engine() {
  // The backend outlives the cursor.
  if (backend_ != nullptr && migrations() != nullptr) migrations()->set_next_uses({});
  MutexLock lock(g_engines_mutex);
  std::ranges::replace(g_engines, this, static_cast<Engine*>(nullptr));
}

Status Engine::start(const BackendOpener& open_backend) {
  const double arm_at = config_.chaos ? 0.0 : config_.arm_at;
  budget_ = std::make_unique<Budget>(
      config_.budget_bytes,
      static_cast<uint64_t>(static_cast<double>(config_.budget_bytes) * arm_at),
      stats_.peak_device_bytes);
  Result<std::unique_ptr<Backend>> backend = open_backend(*budget_, stats_);
  if (!backend.is_ok()) return backend.status();
  backend_ = std::move(backend).value();
  wire();
  return Status::ok();
}

void Engine::wire() {
  if (migrations() != nullptr && config_.plans) wire_plans();
  MigratorConfig migrator_config;
  migrator_config.on_arm = config_.on_arm;
  migrator_config.before_pass = config_.before_pass;
  migrator_config.on_first_spill = config_.on_first_spill;
  migrator_config.current_op = [this] { return gate_->current_op(); };
  migrator_config.begin_wait = [this](StreamSet streams) { gate_->begin_wait_for_room(streams); };
  migrator_config.end_wait = [this] { gate_->end_wait_for_room(); };
  if (cursor_) {
    migrator_config.on_room = [this] { prefetcher_->on_room(); };
    migrator_config.let_fetches_go_first = [this] { gate_->let_fetches_go_first(); };
    migrator_config.next_uses = [this] { return cursor_->next_uses(); };
  }
  migrator_ = std::make_unique<Migrator>(heap(), migrations(), std::move(migrator_config));
  heap().set_room_maker(migrator_.get());
  wire_gate();
  wire_fork();
  if (migrations() != nullptr) migrator_->start();
  if (prefetcher_) prefetcher_->start();
  if (learner_) learner_->start();
}

void Engine::wire_fork() {
  static std::once_flag fork_handlers_installed;
  std::call_once(fork_handlers_installed,
                 [] { pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child); });
  MutexLock lock(g_engines_mutex);
  Engine** const place = std::ranges::find(g_engines, nullptr);
  TENCACHE_CHECK(place != g_engines.end(), "there are more than %zu engines", g_engines.size());
  *place = this;
}

void Engine::wire_plans() {
  prefetcher_ = std::make_unique<Prefetcher>(heap(), *migrations());
  PlanCursor::Config cursor_config;
  cursor_config.evict = [this](std::span<const Order> orders) { migrator_->order(orders); };
  cursor_config.fetch = [this](std::span<const Order> orders) { prefetcher_->order(orders); };
  cursor_config.forget_fetches = [this] { prefetcher_->forget(); };
  cursor_config.on_period = [this] { learner_->nudge(); };
  cursor_ = std::make_unique<PlanCursor>(std::move(cursor_config));
  migrations()->set_next_uses([this] { return cursor_->next_uses(); });
  LearnerConfig learner_config;
  learner_config.measure = [this](uint64_t* fixed_bytes) { return measure(fixed_bytes); };
  if (OpTimer* timer = backend_->op_timer()) {
    learner_config.op_times = [timer] { return timer->take_finished(); };
  }
  learner_config.budget_bytes = config_.budget_bytes;
  learner_config.peak_bytes_min = config_.budget_bytes / 2;
  learner_config.on_script = config_.on_script;
  learner_ = std::make_unique<Learner>(recorder_, *cursor_, std::move(learner_config));
}

void Engine::wire_gate() {
  Gate::Config gate_config;
  gate_config.wait_timer = backend_->wait_timer();
  if (config_.chaos) gate_config.on_outermost_close = [this] { maybe_cause_chaos(); };
  if (learner_) {
    gate_config.on_events = [this] { learner_->nudge(); };
    gate_config.timer = backend_->op_timer();
    gate_config.has_fetches = [this] { return prefetcher_->has_orders(); };
  }
  gate_ = std::make_unique<Gate>(heap(), migrations(), cursor_.get(), recorder_, stats_,
                                 std::move(gate_config));
}

// A plan leaves the migrator its headroom, so that passes only have to make up for deviations.
Machine Engine::measure(uint64_t* fixed_bytes) {
  uint64_t fixed = heap().small_bytes();
  for (const ListedExtent& listed : heap().extents()) {
    const uint64_t word = listed.extent->load();
    if (Extent::state_of(word) != ExtentState::kResident) continue;
    const bool may_leave = (word & (kFlagSeen | kFlagKeepResident)) == kFlagSeen;
    if (!may_leave) fixed += listed.bytes;
  }
  *fixed_bytes = fixed;
  Machine machine;
  const uint64_t limit_bytes = budget_->limit();
  machine.budget_bytes = limit_bytes - std::min(limit_bytes, migrator_->headroom_bytes());
  machine.read_bytes_per_s = migrations()->read_speed().bytes_per_s(kUnknownBytesPerS);
  machine.write_bytes_per_s = migrations()->write_speed().bytes_per_s(kUnknownBytesPerS);
  machine.read_fixed_ns = kFixedNs;
  machine.write_fixed_ns = kFixedNs;
  migrations()->describe_below(&machine);
  const double share = processors_.used_share();
  machine.read_work_ns_per_byte = share * migrations()->read_work().ns_per_byte(0);
  machine.write_work_ns_per_byte = share * migrations()->write_work().ns_per_byte(0);
  machine.drop_work_ns_per_byte = share * migrations()->drop_work().ns_per_byte(0);
  return machine;
}

void Engine::maybe_cause_chaos() {
  const uint64_t draw = chaos_draws_.fetch_add(1, std::memory_order_relaxed);
  if (uniform_draw(config_.chaos->seed, draw) >= config_.chaos->probability) return;
  if (config_.before_pass) config_.before_pass();
  add(stats_.chaos_evictions, migrator_->evict_all());
}

// Invariant 5 of the design: a child sees the bytes as of the fork and never writes the parent's
// tiers. No migration is under way while the process is copied, the slots in use are frozen, and
// the child's engine is passive: malloc from then on, no gate, no migrator (its thread is not
// copied).
void Engine::before_fork() TENCACHE_NO_THREAD_SAFETY_ANALYSIS {
  g_engines_mutex.lock();
  for (Engine* engine : g_engines) {
    if (engine == nullptr || engine->is_passive() || engine->migrations() == nullptr) continue;
    engine->migrations()->gate().close();
    engine->backend_->before_fork();
    add(engine->stats_.forks, 1);
  }
}

void Engine::after_fork_in_parent() TENCACHE_NO_THREAD_SAFETY_ANALYSIS {
  for (Engine* engine : g_engines) {
    if (engine == nullptr || engine->is_passive() || engine->migrations() == nullptr) continue;
    engine->backend_->after_fork_in_parent();
    engine->migrations()->gate().reopen();
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
  g_engines_mutex.unlock();
}

}  // namespace tencache
