// SPDX-License-Identifier: Apache-2.0
//
// The runtime's JSON: statistics (schema 1), the options, and the findings of `tencache doctor`.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "abi/runtime.h"
#include "base/clock.h"
#include "base/units.h"
#include "platform/access_barrier.h"
#include "platform/gpu_probe.h"
#include "platform/machine.h"
#include "platform/page_map.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

// Paths come from the program, so this replaces invalid UTF-8; otherwise dump() would throw.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

struct ColdAccesses {
  uint64_t reads = 0;
  uint64_t writes = 0;
  uint64_t written_bytes = 0;  // in pages written while cold; they take memory
  uint64_t cold_bytes = 0;
  uint64_t cold_count = 0;

  void add(const ColdAccesses& other) {
    reads += other.reads;
    writes += other.writes;
    written_bytes += other.written_bytes;
    cold_bytes += other.cold_bytes;
    cold_count += other.cold_count;
  }
};

// Looks at the extents that are cold now. Unannounced accesses to an extent are counted when it
// comes back. Until then they are looked up here, as far as there is a page map.
ColdAccesses look_at_cold_extents(Engine& engine, const PageMap* page_map) {
  ColdAccesses found;
  if (engine.mover() != nullptr) engine.mover()->look_for_writes();
  found.written_bytes = engine.heap().unannounced_bytes();
  for (const ListedExtent& listed : engine.heap().extents()) {
    const uint64_t word = listed.extent->load();
    if (Extent::state_of(word) != ExtentState::kCold) continue;
    found.cold_count += 1;
    found.cold_bytes += listed.bytes;
    TouchedPages touched;
    if (page_map == nullptr) continue;
    if (!page_map->scan(listed.address, listed.bytes, &touched).is_ok()) continue;
    // If the extent was fetched meanwhile, the scan saw pages of a resident one.
    if (listed.extent->state() != ExtentState::kCold) continue;
    found.reads += touched.read_count > 0 ? 1 : 0;
    found.writes += touched.written.empty() ? 0 : 1;
  }
  return found;
}

Json probe_json(const DiskProbe& probe) {
  return {{"directory", probe.directory},
          {"file_system", probe.file_system},
          {"free_bytes", probe.free_bytes},
          {"direct_io", probe.direct_io_reason.empty()},
          {"direct_io_reason", probe.direct_io_reason},
          {"io_uring", probe.io_uring_reason.empty()},
          {"io_uring_reason", probe.io_uring_reason},
          {"registered_buffers", probe.registered_buffers_reason.empty()},
          {"registered_buffers_reason", probe.registered_buffers_reason}};
}

// What was learned, and what the simulator says of one period under the plan of the summary.
Json plan_json(Learner* learner) {
  if (learner == nullptr) return nullptr;
  const LearnerSummary summary = learner->summary();
  const Following& following = summary.following;
  const double seen = static_cast<double>(std::max<uint64_t>(following.ticks_seen, 1));
  Json json = {{"kinds", summary.kinds},
               {"kind", following.kind},
               {"periods", following.periods},
               {"coverage", static_cast<double>(following.ticks_followed) / seen},
               {"ticks_seen", following.ticks_seen},
               {"ticks_followed", following.ticks_followed},
               {"replans", summary.replans},
               {"lost", following.lost},
               {"dropped", summary.dropped},
               {"passed_over", summary.passed_over},
               {"events_lost", summary.events_lost},
               {"planning_s", seconds(summary.planning_ns)},
               {"stored", nullptr},
               {"step_s", 0.0},
               {"timed_periods", 0}};
  if (summary.stored_ticks > 0) {
    json["stored"] = {{"ticks", summary.stored_ticks},
                      {"ticks_followed", following.stored_ticks_followed}};
  }
  if (summary.learned == nullptr) return json;
  if (following.last_period_kind == summary.learned->number) {
    json["step_s"] = seconds(following.last_times.median_ns());
    json["timed_periods"] = following.last_times.count();
  }
  const Simulation& simulation = summary.learned->planned.simulation;
  json["ideal_step_s"] = seconds(simulation.compute_ns);
  json["bound_step_s"] = seconds(summary.learned->bound_ns);
  json["bound_bytes_read"] = summary.learned->bound_bytes_read;
  json["predicted_step_s"] = seconds(simulation.step_ns);
  json["stall_free_budget_bytes"] = summary.stall_free_budget_bytes;
  json["simulated"] = {{"ticks", summary.learned->tick_count()},
                       {"tensors", summary.learned->period->trace.tensors.size()},
                       {"moves", simulation.moves.size()},
                       {"stall_s", seconds(simulation.total_stall_ns())},
                       {"work_s", seconds(simulation.work_ns)},
                       {"bytes_read", simulation.bytes_read},
                       {"bytes_late", simulation.bytes_late},
                       {"bytes_written", simulation.bytes_written},
                       {"bytes_dropped", simulation.bytes_dropped},
                       {"peak_bytes", summary.learned->period->trace.peak_bytes()},
                       {"read_bytes_per_s", summary.learned->machine.read_bytes_per_s},
                       {"write_bytes_per_s", summary.learned->machine.write_bytes_per_s}};
  return json;
}

Json gpu_json(const GpuProbe& probe) {
  Json devices = Json::array();
  for (const ProbedGpu& gpu : probe.gpus) {
    devices.push_back(gpu.reason.empty() ? gpu.name + ", " + format_bytes(gpu.total_bytes)
                                         : gpu.reason);
  }
  return {{"devices", devices}, {"reason", probe.reason}};
}

// The bytes on each tier, of one engine or of several.
struct Tiers {
  uint64_t device_budget = 0;
  uint64_t host_budget = 0;
  uint64_t disk_budget = 0;
  uint64_t device_peak = 0;
  uint64_t live_peak = 0;
  uint64_t host_peak = 0;
  uint64_t disk_peak = 0;
  uint64_t device_used = 0;
  uint64_t host_used = 0;
  uint64_t disk_used = 0;
  uint64_t live = 0;
  uint64_t cached = 0;

  void add(Engine& engine) {
    add_device(engine);
    if (const HostTier* host = engine.device().host()) add(*host);
    if (const DiskTier* disk = engine.device().disk()) add(*disk);
  }
  void add_device(Engine& engine) {
    device_budget += engine.budget().limit();
    device_peak += value_of(engine.stats().peak_device_bytes);
    live_peak += value_of(engine.stats().peak_live_bytes);
    device_used += engine.budget().used();
    live += engine.heap().live_bytes();
    cached += engine.heap().cached_bytes();
  }

 private:
  void add(const DiskTier& disk) {
    disk_budget += disk.quota_bytes();
    disk_peak += disk.peak_used_bytes();
    disk_used += disk.used_bytes();
  }
  void add(const HostTier& host) {
    const HostTierStats stats = host.stats();
    host_budget += host.budget_bytes();
    host_peak += stats.peak_asked_bytes;
    host_used += stats.asked_bytes;
  }
};

// The counters of several engines, added up.
class Counters {
 public:
  explicit Counters(std::vector<const Stats*> all) : all_(std::move(all)) {}
  uint64_t operator()(Counter Stats::*counter) const {
    uint64_t sum = 0;
    for (const Stats* stats : all_) sum += value_of(stats->*counter);
    return sum;
  }
  // The largest count, for a counter of what every engine is told. An engine that was opened late
  // has missed the beginning, so the largest count is the full one.
  uint64_t most(Counter Stats::*counter) const {
    uint64_t most = 0;
    for (const Stats* stats : all_) most = std::max(most, value_of(stats->*counter));
    return most;
  }

 private:
  std::vector<const Stats*> all_;
};

Json tiers_json(const Tiers& tiers, const ColdAccesses& cold) {
  return {
      {"budget",
       {{"device", tiers.device_budget}, {"host", tiers.host_budget}, {"disk", tiers.disk_budget}}},
      {"peak",
       {{"device", tiers.device_peak},
        {"live", tiers.live_peak},
        {"host", tiers.host_peak},
        {"disk", tiers.disk_peak}}},
      {"now",
       {{"device", tiers.device_used},
        {"live", tiers.live},
        {"cached", tiers.cached},
        {"cold", cold.cold_bytes},
        {"cold_extents", cold.cold_count},
        {"host", tiers.host_used},
        {"disk", tiers.disk_used}}}};
}

Json counters_json(const Counters& sum, const ColdAccesses& cold) {
  return {{"bytes",
           {{"evicted", sum(&Stats::evicted_bytes)},
            {"fetched", sum(&Stats::fetched_bytes)},
            {"disk_written", sum(&Stats::disk_written_bytes)},
            {"disk_read", sum(&Stats::disk_read_bytes)},
            {"clean_dropped", sum(&Stats::clean_dropped_bytes)},
            {"fetched_early", sum(&Stats::early_fetched_bytes)},
            {"fetched_wasted", sum(&Stats::wasted_fetched_bytes)},
            {"unannounced_written", cold.written_bytes}}},
          {"fetches",
           {{"early", sum(&Stats::early_fetches)},
            {"late", sum(&Stats::late_fetches)},
            {"wasted", sum(&Stats::wasted_fetches)}}},
          {"stall_s", seconds(sum(&Stats::stall_ns))},
          {"thread_wait_s", seconds(sum(&Stats::thread_wait_ns))},
          {"unannounced",
           {{"reads", sum(&Stats::unannounced_reads) + cold.reads},
            {"writes", sum(&Stats::unannounced_writes) + cold.writes}}},
          {"over_budget",
           {{"events", sum(&Stats::over_budget_events)},
            {"peak_bytes", sum(&Stats::over_budget_peak_bytes)}}},
          {"eviction_failures", sum(&Stats::eviction_failures)},
          {"chaos_evictions", sum(&Stats::chaos_evictions)},
          {"forks", sum.most(&Stats::forks)},
          {"ops", sum.most(&Stats::ops)},
          {"steps", sum.most(&Stats::steps)},
          {"extents", sum(&Stats::extents_allocated)}};
}

// The entry of one GPU.
Json one_gpu_json(const EngineEntry& gpu, const ColdAccesses& cold) {
  Tiers tiers;
  tiers.add(*gpu.engine);
  Json json = {{"ordinal", gpu.ordinal}};
  json.update(tiers_json(tiers, cold));
  json.update(counters_json(Counters({&gpu.engine->settled_stats()}), cold));
  json["plan"] = plan_json(gpu.engine->learner());
  const Status status = gpu.engine->device().status();
  const bool has_failed = !status.is_ok() && status.code() != StatusCode::kUnavailable;
  json["failure"] = has_failed ? Json(status.clause()) : Json(nullptr);
  return json;
}

}  // namespace

std::string Runtime::stats_json() const {
  if (!is_started()) return "{}";
  Engine* const cpu = cpu_engine();
  std::unique_ptr<PageMap> page_map;
  if (cpu != nullptr) (void)PageMap::open().move_to(&page_map);
  ColdAccesses cold;
  Tiers tiers;
  std::vector<const Stats*> counters;
  Json gpus = Json::array();
  Json plan = nullptr;
  for (const EngineEntry& entry : engines_.all()) {
    Engine& engine = *entry.engine;
    counters.push_back(&engine.settled_stats());
    if (engine.is_passive()) {
      // A forked child has a copy of the counters that nobody updates, and locks that may be held
      // for ever.
      if (cpu != nullptr) tiers.add_device(engine);
      continue;
    }
    const ColdAccesses own_cold = look_at_cold_extents(engine, page_map.get());
    cold.add(own_cold);
    tiers.add(engine);
    if (plan.is_null()) plan = plan_json(engine.learner());
    if (cpu == nullptr) gpus.push_back(one_gpu_json(entry, own_cold));
  }
  const Counters sum(std::move(counters));
  Json json = {{"schema", 1}, {"backend", cpu != nullptr ? "cpu" : "cuda"}};
  json.update(tiers_json(tiers, cold));
  json.update(counters_json(sum, cold));
  if (cpu == nullptr) {
    json["graph_extents"] = sum(&Stats::graph_extents);
    json["launches"] = {{"seen", sees_launches_.load(std::memory_order_relaxed)},
                        {"unannounced", launches_.unannounced()},
                        {"unreadable", launches_.unreadable()}};
  }
  json["plan"] = plan;
  json["armed"] = cpu != nullptr ? cpu->evictor().is_armed() : engines_.is_armed();
  if (cpu == nullptr) json["gpus"] = gpus;
  json["wall_s"] = seconds(now_ns() - start_ns_.load());
  json["run_id"] = run_id_;
  json["versions"] = {{"tencache", kVersion}};
  return dump(json);
}

std::string Runtime::doctor_json() const {
  const MachineMemory memory = probe_memory();
  const DefaultBudget budget = default_device_budget(memory);
  MutexLock lock(mutex_);
  Json json = {{"version", kVersion},
               {"memory",
                {{"total_bytes", memory.total_bytes},
                 {"available_bytes", memory.available_bytes},
                 {"swap_bytes", memory.swap_bytes},
                 {"cgroup_limit_bytes",
                  memory.cgroup_limit_bytes ? Json(*memory.cgroup_limit_bytes) : Json(nullptr)},
                 {"cgroup_used_bytes", memory.cgroup_used_bytes}}},
               {"default_device_budget", {{"bytes", budget.bytes}, {"reason", budget.reason}}},
               {"huge_pages", memory.huge_pages},
               {"map_count_max", memory.map_count_max}};
  const Result<std::unique_ptr<PageMap>> page_map = PageMap::open();
  json["page_map"] = {{"works", page_map.is_ok()}, {"reason", page_map.status().message()}};
  const Result<std::unique_ptr<AccessBarrier>> barrier = AccessBarrier::open();
  json["userfaultfd"] = {{"works", barrier.is_ok()}, {"reason", barrier.status().message()}};
  const Result<DiskProbe> probe = find_disk();
  json["disk"] =
      probe.is_ok() ? probe_json(probe.value()) : Json{{"error", probe.status().message()}};
  json["gpu"] = gpu_json(probe_gpus());
  json["options"] = tencache::options_json(options_);
  return dump(json);
}

Json Runtime::options_json() const {
  MutexLock lock(mutex_);
  return tencache::options_json(options_);
}

}  // namespace tencache
