// SPDX-License-Identifier: Apache-2.0
//
// What the runtime tells as JSON: statistics (schema 1) and the findings of `tencache doctor`.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "abi/runtime.h"
#include "backend/gpu_probe.h"
#include "backend/machine.h"
#include "backend/page_map.h"
#include "base/clock.h"
#include "base/units.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

uint64_t read(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

// Paths come from the program: what is no UTF-8 is replaced, not thrown at.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

struct ColdAccesses {
  uint64_t reads = 0;
  uint64_t writes = 0;
  uint64_t cold_bytes = 0;
  uint64_t cold_count = 0;
};

// Extents that are cold now: what happened to them unannounced is counted when they come back, so
// until then it is looked up here.
ColdAccesses look_at_cold_extents(CpuEngine& engine, const PageMap& page_map) {
  ColdAccesses found;
  for (const ListedExtent& listed : engine.heap().extents()) {
    const uint64_t word = listed.extent->load();
    if (Extent::state_of(word) != ExtentState::kCold) continue;
    found.cold_count += 1;
    found.cold_bytes += listed.bytes;
    TouchedPages touched;
    if (!page_map.scan(listed.address, listed.bytes, &touched).is_ok()) continue;
    // Fetched meanwhile: what was scanned were the pages of a resident extent.
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
          {"direct_io", probe.direct_io},
          {"direct_io_reason", probe.direct_io_reason},
          {"io_uring", probe.io_uring},
          {"io_uring_reason", probe.io_uring_reason},
          {"registered_buffers", probe.registered_buffers},
          {"registered_buffers_reason", probe.registered_buffers_reason}};
}

// What was learned, and of the script that was learned last what the simulator says of one period.
Json plan_json(Learner* learner) {
  if (learner == nullptr) return nullptr;
  const LearnerSummary summary = learner->summary();
  const Following& following = summary.following;
  const double seen = static_cast<double>(std::max<uint64_t>(following.ticks_seen, 1));
  Json json = {{"kinds", summary.kinds},
               {"kind", following.script_number},
               {"periods", following.periods},
               {"coverage", static_cast<double>(following.ticks_followed) / seen},
               {"replans", summary.replans},
               {"planning_s", seconds(summary.planning_ns)},
               {"step_s", 0.0}};
  if (summary.script == nullptr) return json;
  if (following.last_period_script == summary.script->number) {
    json["step_s"] = seconds(following.last_period_ns);
  }
  const Simulation& simulation = summary.script->planned.simulation;
  json["ideal_step_s"] = seconds(simulation.compute_ns);
  json["bound_step_s"] = seconds(summary.script->bound_ns);
  json["bound_bytes_read"] = summary.script->bound_bytes_read;
  json["predicted_step_s"] = seconds(simulation.step_ns);
  json["stall_free_budget_bytes"] = summary.stall_free_budget_bytes;
  json["simulated"] = {{"ticks", summary.script->tick_count()},
                       {"tensors", summary.script->period->trace.tensors.size()},
                       {"moves", simulation.moves.size()},
                       {"stall_s", seconds(simulation.total_stall_ns())},
                       {"work_s", seconds(simulation.work_ns)},
                       {"bytes_read", simulation.bytes_read},
                       {"bytes_written", simulation.bytes_written},
                       {"bytes_dropped", simulation.bytes_dropped},
                       {"peak_bytes", summary.script->period->trace.peak_bytes()},
                       {"read_bytes_per_s", summary.script->machine.read_bytes_per_s},
                       {"write_bytes_per_s", summary.script->machine.write_bytes_per_s}};
  return json;
}

Json gpu_json(const GpuProbe& probe) {
  Json devices = Json::array();
  for (const ProbedGpu& gpu : probe.gpus) {
    devices.push_back(gpu.reason.empty() ? gpu.name + ", " + format_bytes(gpu.total_bytes)
                                         : gpu.reason);
  }
  const std::string reason =
      probe.gpus.empty() ? probe.reason : "tensors in GPU memory are not moved yet";
  return {{"devices", devices}, {"reason", reason}};
}

}  // namespace

std::string Runtime::stats_json() const {
  CpuEngine* current = engine();
  if (current == nullptr) return "{}";
  const Stats& stats = current->stats();
  ColdAccesses cold;
  Result<std::unique_ptr<PageMap>> page_map = PageMap::open();
  // A forked child has a copy of the books that nobody keeps, and locks that may be held for ever.
  const bool is_live = !current->is_passive();
  if (is_live && page_map.is_ok()) cold = look_at_cold_extents(*current, *page_map.value());
  DiskTier* disk = is_live ? current->disk() : nullptr;
  Json json = {{"schema", 1},
               {"backend", "cpu"},
               {"budget",
                {{"device", current->budget().limit()},
                 {"host", 0},
                 {"disk", disk != nullptr ? disk->quota_bytes() : 0}}},
               {"peak",
                {{"device", read(stats.peak_device_bytes)},
                 {"host", 0},
                 {"disk", disk != nullptr ? disk->peak_used_bytes() : 0}}},
               {"now",
                {{"device", current->budget().used()},
                 {"cached", current->heap().cached_bytes()},
                 {"cold", cold.cold_bytes},
                 {"cold_extents", cold.cold_count},
                 {"disk", disk != nullptr ? disk->used_bytes() : 0}}},
               {"bytes",
                {{"evicted", read(stats.evicted_bytes)},
                 {"fetched", read(stats.fetched_bytes)},
                 {"disk_written", read(stats.disk_written_bytes)},
                 {"disk_read", read(stats.disk_read_bytes)},
                 {"clean_dropped", read(stats.clean_dropped_bytes)},
                 {"fetched_early", read(stats.early_fetched_bytes)},
                 {"fetched_wasted", read(stats.wasted_fetched_bytes)}}},
               {"fetches",
                {{"early", read(stats.early_fetches)},
                 {"late", read(stats.late_fetches)},
                 {"wasted", read(stats.wasted_fetches)}}},
               {"plan", is_live ? plan_json(current->learner()) : Json(nullptr)},
               {"stall_s", seconds(read(stats.stall_ns))},
               {"unannounced",
                {{"reads", read(stats.unannounced_reads) + cold.reads},
                 {"writes", read(stats.unannounced_writes) + cold.writes}}},
               {"over_budget",
                {{"events", read(stats.over_budget_events)},
                 {"peak_bytes", read(stats.over_budget_peak_bytes)}}},
               {"eviction_failures", read(stats.eviction_failures)},
               {"chaos_evictions", read(stats.chaos_evictions)},
               {"forks", read(stats.forks)},
               {"armed", current->migrator().is_armed()},
               {"ops", read(stats.ops)},
               {"steps", read(stats.steps)},
               {"extents", read(stats.extents_allocated)},
               {"wall_s", seconds(now_ns() - start_ns_.load())},
               {"versions", {{"tencache", kVersion}}}};
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
  const Result<DiskProbe> probe =
      options_.spill_dir.empty() ? find_spill_directory() : probe_directory(options_.spill_dir);
  json["disk"] =
      probe.is_ok() ? probe_json(probe.value()) : Json{{"error", probe.status().message()}};
  json["gpu"] = gpu_json(probe_gpus());
  Json options = Json::object();
  for (const OptionDescription& option : option_table()) {
    options[std::string(option.name)] = option_text(options_, option.name);
  }
  json["options"] = options;
  return dump(json);
}

}  // namespace tencache
