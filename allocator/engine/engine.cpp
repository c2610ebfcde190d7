// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <pthread.h>

#include <mutex>

#include "backend/write_barrier.h"

namespace tencache {
namespace {

// The newest engine and its table, for handlers that the process calls without an argument. The
// table is read inside a signal handler.
std::atomic<Engine*> g_engine{nullptr};
std::atomic<const ExtentTable*> g_table{nullptr};

// What a disk is taken to give before anything was moved.
constexpr double kUnknownBytesPerS = 1e9;
// System calls and table entries of one migration, besides its bytes.
constexpr uint64_t kFixedNs = 50'000;

FaultVerdict judge_fault(const void* address) {
  const ExtentTable* table = g_table.load(std::memory_order_acquire);
  const Extent* extent = table != nullptr ? table->find(address) : nullptr;
  if (extent == nullptr) return FaultVerdict::kForeign;
  switch (extent->state()) {
    case ExtentState::kSealing:
    case ExtentState::kMerging:
      return FaultVerdict::kWait;
    case ExtentState::kVacant:
      return FaultVerdict::kForeign;
    default:
      return FaultVerdict::kRetry;
  }
}

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

Result<std::unique_ptr<Engine>> Engine::create(EngineConfig config) {
  std::unique_ptr<Engine> engine(new Engine(std::move(config)));
  Status status = engine->open_tiers();
  if (!status.is_ok()) return status;
  engine->wire();
  return engine;
}

Engine::Engine(EngineConfig config) : config_(std::move(config)) {}

Engine::~Engine() {
  Engine* self = this;
  g_engine.compare_exchange_strong(self, nullptr);
  if (g_table.load() == table_.get()) g_table.store(nullptr);
}

Status Engine::open_tiers() {
  Result<std::unique_ptr<AddressArena>> arena = AddressArena::reserve(config_.arena_bytes);
  if (!arena.is_ok()) return arena.status();
  arena_ = std::move(arena).value();
  Result<std::unique_ptr<ExtentTable>> table = ExtentTable::create(*arena_);
  if (!table.is_ok()) return table.status();
  table_ = std::move(table).value();
  if (!config_.disk) return Status::ok();
  Result<std::unique_ptr<PageMap>> page_map = PageMap::open();
  if (!page_map.is_ok()) {
    return Status(StatusCode::kUnavailable,
                  "tensors cannot be spilled: " + page_map.status().message() +
                      "; make /proc available or use --strict");
  }
  page_map_ = std::move(page_map).value();
  Result<std::unique_ptr<DiskTier>> disk = DiskTier::open(*config_.disk);
  if (!disk.is_ok()) return disk.status();
  disk_ = std::move(disk).value();
  return Status::ok();
}

void Engine::wire() {
  const double arm_at = config_.chaos ? 0.0 : config_.arm_at;
  budget_ = std::make_unique<Budget>(
      config_.budget_bytes,
      static_cast<uint64_t>(static_cast<double>(config_.budget_bytes) * arm_at),
      stats_.peak_device_bytes);
  heap_ = std::make_unique<Heap>(config_.heap, *arena_, *table_, page_map_.get(), disk_.get(),
                                 *budget_, stats_);
  if (disk_) migrations_ = std::make_unique<Migrations>(*heap_, *disk_, *page_map_, stats_);
  if (migrations_ && config_.plans) wire_plans();
  MigratorConfig migrator_config;
  migrator_config.on_arm = config_.on_arm;
  migrator_config.before_pass = config_.before_pass;
  migrator_config.on_first_spill = config_.on_first_spill;
  migrator_config.current_op = [this] { return gate_->current_op(); };
  migrator_config.on_wait = [this](uint64_t ns) { gate_->on_wait(ns); };
  if (cursor_) {
    migrator_config.on_room = [this] { prefetcher_->on_room(); };
    migrator_config.next_uses = [this] { return cursor_->next_uses(); };
  }
  migrator_ = std::make_unique<Migrator>(*heap_, migrations_.get(), std::move(migrator_config));
  heap_->set_room_maker(migrator_.get());
  wire_gate();
  WriteBarrier::configure(arena_->base(), arena_->bytes(), &judge_fault);
  g_table.store(table_.get(), std::memory_order_release);
  g_engine.store(this, std::memory_order_release);
  static std::once_flag fork_handlers_installed;
  std::call_once(fork_handlers_installed,
                 [] { pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child); });
  if (migrations_) migrator_->start();
  if (prefetcher_) prefetcher_->start();
  if (learner_) learner_->start();
}

void Engine::wire_plans() {
  prefetcher_ = std::make_unique<Prefetcher>(*heap_, *migrations_);
  PlanCursor::Config cursor_config;
  cursor_config.evict = [this](std::span<const Order> orders) { migrator_->order(orders); };
  cursor_config.fetch = [this](std::span<const Order> orders) { prefetcher_->order(orders); };
  cursor_config.forget_fetches = [this] { prefetcher_->forget(); };
  cursor_config.on_period = [this] { learner_->nudge(); };
  cursor_ = std::make_unique<PlanCursor>(std::move(cursor_config));
  LearnerConfig learner_config;
  learner_config.measure = [this](uint64_t* fixed_bytes) { return measure(fixed_bytes); };
  learner_config.budget_bytes = config_.budget_bytes;
  learner_config.peak_bytes_min = config_.budget_bytes / 2;
  learner_config.on_script = config_.on_script;
  learner_ = std::make_unique<Learner>(recorder_, *cursor_, std::move(learner_config));
}

void Engine::wire_gate() {
  Gate::Config gate_config;
  if (config_.chaos) gate_config.on_outermost_close = [this] { maybe_cause_chaos(); };
  if (learner_) gate_config.on_events = [this] { learner_->nudge(); };
  gate_ = std::make_unique<Gate>(*heap_, migrations_.get(), cursor_.get(), recorder_, stats_,
                                 std::move(gate_config));
}

// A plan leaves the migrator its headroom, so that passes only have to make up for deviations.
Machine Engine::measure(uint64_t* fixed_bytes) {
  uint64_t fixed = heap_->small_blocks().used();
  for (const ListedExtent& listed : heap_->extents()) {
    const uint64_t word = listed.extent->load();
    if (Extent::state_of(word) != ExtentState::kResident) continue;
    const bool may_leave = (word & (kFlagSeen | kFlagKeepResident)) == kFlagSeen;
    if (!may_leave) fixed += listed.bytes;
  }
  *fixed_bytes = fixed;
  Machine machine;
  machine.budget_bytes = config_.budget_bytes - migrator_->headroom_bytes();
  machine.read_bytes_per_s = migrations_->read_speed().bytes_per_s(kUnknownBytesPerS);
  machine.write_bytes_per_s = migrations_->write_speed().bytes_per_s(kUnknownBytesPerS);
  machine.read_fixed_ns = kFixedNs;
  machine.write_fixed_ns = kFixedNs;
  const double share = processors_.used_share();
  machine.read_work_ns_per_byte = share * migrations_->read_work().ns_per_byte(0);
  machine.write_work_ns_per_byte = share * migrations_->write_work().ns_per_byte(0);
  machine.drop_work_ns_per_byte = share * migrations_->drop_work().ns_per_byte(0);
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
void Engine::before_fork() {
  Engine* engine = g_engine.load(std::memory_order_acquire);
  if (engine == nullptr || engine->is_passive() || !engine->migrations_) return;
  engine->migrations_->gate().close();
  engine->disk_->freeze_before_fork();
  add(engine->stats_.forks, 1);
}

void Engine::after_fork_in_parent() {
  Engine* engine = g_engine.load(std::memory_order_acquire);
  if (engine == nullptr || engine->is_passive() || !engine->migrations_) return;
  engine->disk_->after_fork_in_parent();
  engine->migrations_->gate().reopen();
}

void Engine::after_fork_in_child() {
  Engine* engine = g_engine.load(std::memory_order_acquire);
  if (engine == nullptr) return;
  engine->is_passive_.store(true, std::memory_order_relaxed);
  engine->heap_->become_passive();
  engine->gate_->become_passive();
}

}  // namespace tencache
