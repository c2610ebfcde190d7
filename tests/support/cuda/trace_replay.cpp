// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/trace_replay.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "engine/cuda_device.h"
#include "support/cuda/simulated_device_hash.h"
#include "support/cuda/simulated_stream.h"
#include "support/faulty_channel.h"

namespace tencache {
namespace {

SimulatedDriverConfig driver_config(const Trace& trace, const ReplayConfig& config) {
  SimulatedDriverConfig driver;
  driver.capacity_bytes = 2 * trace.peak_bytes() + kGiB;  // the budget is the limit, not the device
  driver.to_device_bytes_per_s = config.link_bytes_per_s;
  driver.to_host_bytes_per_s = config.link_bytes_per_s;
  driver.on_device_bytes_per_s = config.device_bytes_per_s;
  driver.kernel_bytes_per_s = config.device_bytes_per_s;
  driver.reads_may_race = true;  // a copy of memory in use is expected and found out afterwards
  return driver;
}

// The pace of one direction of a disk, where the pieces pass one after another.
Fault pace(IoDirection direction, uint64_t bytes_per_s) {
  auto engine = std::make_shared<CopyEngine>(bytes_per_s, 0);
  Fault fault;
  fault.direction = direction;
  fault.kind = FaultKind::kCall;
  fault.call = [engine] {
    // Extents are whole granules, so their pieces are all of one size.
    const std::chrono::nanoseconds passed(engine->take(now_ns(), kPieceBytes));
    std::this_thread::sleep_until(std::chrono::steady_clock::time_point(passed));
  };
  return fault;
}

uint64_t& word_at(char* address) { return *reinterpret_cast<uint64_t*>(address); }

}  // namespace

Trace scaled_for_replay(Trace trace, uint64_t compute_ns) {
  const double scale = static_cast<double>(compute_ns) /
                       static_cast<double>(std::max<uint64_t>(trace.compute_ns(), 1));
  for (TraceOp& op : trace.ops) {
    op.compute_ns = static_cast<uint64_t>(static_cast<double>(op.compute_ns) * scale);
  }
  for (TraceTensor& tensor : trace.tensors) tensor.bytes = round_up(tensor.bytes, kGranuleBytes);
  trace.fixed_bytes = 0;
  return trace;
}

TraceReplay::TraceReplay(const Trace& trace, const ReplayConfig& config)
    : trace_(trace),
      config_(config),
      born_at_(trace.tick_count()),
      freed_at_(trace.tick_count()),
      driver_(driver_config(trace, config)),
      context_(driver_.api()),
      tensors_(trace.tensors.size()) {
  for (uint32_t tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (trace.tensors[tensor].is_persistent()) continue;
    born_at_[trace.tensors[tensor].allocated_at].push_back(tensor);
    freed_at_[trace.tensors[tensor].freed_at].push_back(tensor);
  }
  add_hash_kernel(driver_, true);
  start_engine();
  const CUresult made =
      driver_.api().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0);
  TENCACHE_CHECK(made == CUDA_SUCCESS, "%d", static_cast<int>(made));
  for (const std::string& name : trace.op_names) {
    op_numbers_.push_back(engine_->recorder().register_op(name));
  }
  fill_number_ = engine_->recorder().register_op("fill");
}

TraceReplay::~TraceReplay() {
  driver_.wait_until_idle();
  for (uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) free(tensor);
  engine_.reset();
  driver_.api().cuStreamDestroy(stream_);
}

void TraceReplay::start_engine() {
  CudaDeviceConfig config;
  config.budget_bytes = config_.budget_bytes;
  config.arena_bytes = 64 * kGiB;
  config.heap.extent_min_bytes = kGranuleBytes;
  config.host.emplace();
  config.host->budget_bytes = 2 * trace_.peak_bytes() + kGiB;
  if (config_.host_bytes > 0) {
    config.host->budget_bytes = config_.host_bytes;
    config.disk = disk_config();
  }
  config.host->chunk_bytes = 64 * kMiB;
  config.host->threads = 1;
  config.host->bytes_left = [] { return 64 * kGiB; };
  config.probe_bytes = 16 * kMiB;
  config.wait_resolution_ns = config_.wait_resolution_ns;
  config.nvrtc = nvrtc_.api();
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(driver_.api(), config);
  TENCACHE_CHECK(device.is_ok(), "%s", device.status().message().c_str());
  EngineConfig engine_config;
  engine_config.plans = config_.plans;
  engine_config.hooks.on_learned_plan = [this](const LearnedPlan& learned) { note_plan(learned); };
  Result<std::unique_ptr<Engine>> engine =
      Engine::create(std::move(engine_config), std::move(device).value());
  TENCACHE_CHECK(engine.is_ok(), "%s", engine.status().message().c_str());
  engine_ = std::move(engine).value();
}

DiskTierConfig TraceReplay::disk_config() {
  directory_.emplace();
  DiskTierConfig disk;
  disk.directory = directory_->path();
  disk.quota_bytes = 2 * trace_.peak_bytes();
  auto paces = std::make_shared<FaultPlan>();
  paces->add(pace(IoDirection::kRead, config_.disk_read_bytes_per_s));
  paces->add(pace(IoDirection::kWrite, config_.disk_write_bytes_per_s));
  disk.channel_factory = faulty_channel_factory(std::move(paces));
  return disk;
}

void TraceReplay::note_plan(const LearnedPlan& learned) {
  MutexLock lock(plans_.mutex);
  plans_.bound_ns = learned.bound_ns;
  plans_.simulation = learned.planned.simulation;
}

Status TraceReplay::allocate(uint32_t tensor) {
  const Result<void*> address = engine_->allocate(trace_.tensors[tensor].bytes, stream_);
  if (!address.is_ok()) return address.status();
  tensors_[tensor] = {static_cast<char*>(address.value()), 0};
  return Status::ok();
}

// Allocates the tensor and lets an op fill it, as a program fills its parameters before the first
// step: a tensor that no op has named would stay resident.
Status TraceReplay::make_persistent(uint32_t tensor) {
  TENCACHE_RETURN_IF_ERROR(allocate(tensor));
  const std::vector<Access> accesses = {{tensors_[tensor].address, AccessMode::kWrite}};
  engine_->open_op(fill_number_, accesses, stream_);
  const Status status = queue_kernel({{tensor, true}}, 0);
  engine_->gate().close();
  return status;
}

void TraceReplay::free(uint32_t tensor) {
  char* address = std::exchange(tensors_[tensor].address, nullptr);
  if (address != nullptr) engine_->free(address);
}

// Runs the op of this tick. Once past the gate, the op fills the tensors that it allocates.
Status TraceReplay::run_op(Tick tick) {
  const TraceOp& op = trace_.ops[tick];
  std::vector<Access> accesses;
  std::vector<Named> named;
  for (const TraceAccess& access : op.accesses) {
    // This very op allocates the tensor, and so names it inside.
    if (std::ranges::find(born_at_[tick], access.tensor) != born_at_[tick].end()) continue;
    if (tensors_[access.tensor].address == nullptr) continue;  // of the period before the first
    accesses.push_back({tensors_[access.tensor].address,
                        access.is_write ? AccessMode::kReadWrite : AccessMode::kRead});
    named.emplace_back(access.tensor, access.is_write);
  }
  engine_->open_op(op_numbers_[op.name], accesses, stream_);
  Status status;
  for (const uint32_t tensor : born_at_[tick]) {
    if (status.is_ok()) status = allocate(tensor);
    named.emplace_back(tensor, true);
  }
  if (status.is_ok()) status = queue_kernel(named, op.compute_ns);
  engine_->gate().close();
  for (const uint32_t tensor : freed_at_[tick]) free(tensor);
  return status;
}

Status TraceReplay::queue_kernel(const std::vector<Named>& named, uint64_t duration_ns) {
  std::vector<Use> uses;
  std::vector<DeviceRange> touches;
  for (const auto& [number, is_written] : named) {
    Tensor& tensor = tensors_[number];
    const uint64_t bytes = trace_.tensors[number].bytes;
    const uint64_t after = is_written ? ++writes_ : tensor.stamp;
    uses.push_back({tensor.address, bytes, tensor.stamp, after});
    touches.push_back({reinterpret_cast<CUdeviceptr>(tensor.address), bytes, is_written});
    tensor.stamp = after;
  }
  const CUresult launched = driver_.launch(
      stream_, std::move(touches),
      [this, uses] {
        for (const Use& use : uses) {
          for (char* place : {use.address, use.address + use.bytes - sizeof(uint64_t)}) {
            if (use.before != 0 && word_at(place) != use.before) differences_.fetch_add(1);
            if (use.after != use.before) word_at(place) = use.after;
          }
        }
      },
      std::chrono::nanoseconds(duration_ns));
  return cuda_status(driver_.api(), launched, "A kernel was refused");
}

Status TraceReplay::run_period() {
  const uint64_t begin_ns = now_ns();
  for (Tick tick = 0; tick < trace_.tick_count(); ++tick) TENCACHE_RETURN_IF_ERROR(run_op(tick));
  engine_->gate().on_step();
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver_.api(), driver_.api().cuStreamSynchronize(stream_), "A kernel failed"));
  period_ns_.push_back(now_ns() - begin_ns);
  return Status::ok();
}

uint64_t TraceReplay::periods_followed() {
  if (!config_.plans) return period_ns_.size();
  return engine_->learner()->summary().following.periods_ever;
}

ReplayResult TraceReplay::run() {
  ReplayResult result;
  Status status;
  for (uint32_t tensor = 0; status.is_ok() && tensor < tensors_.size(); ++tensor) {
    if (trace_.tensors[tensor].is_persistent()) status = make_persistent(tensor);
  }
  while (status.is_ok() && periods_followed() < config_.learned_after &&
         period_ns_.size() < config_.periods_max) {
    status = run_period();
  }
  const bool has_learned = periods_followed() >= config_.learned_after;
  if (status.is_ok() && has_learned) status = run_period();  // with the last plan from its start
  const Stats& stats = engine_->settled_stats();
  const uint64_t early = stats.early_fetches;
  const uint64_t late = stats.late_fetches;
  const uint64_t wasted = stats.wasted_fetches;
  const uint64_t early_bytes = stats.early_fetched_bytes;
  const uint64_t stalled = stats.stall_ns;
  const uint64_t fetched = stats.fetched_bytes;
  const uint64_t evicted = stats.evicted_bytes;
  const uint64_t dropped = stats.clean_dropped_bytes;
  const uint64_t disk_read = stats.disk_read_bytes;
  const uint64_t disk_written = stats.disk_written_bytes;
  const uint64_t exceeded = stats.over_budget_events;
  for (uint64_t count = 0; status.is_ok() && count < config_.measured_periods; ++count) {
    status = run_period();
  }
  (void)engine_->settled_stats();
  result.periods = period_ns_.size();
  result.peak_bytes = stats.peak_device_bytes;
  result.over_budget_events = stats.over_budget_events - exceeded;
  result.early_fetches = stats.early_fetches - early;
  result.late_fetches = stats.late_fetches - late;
  result.wasted_fetches = stats.wasted_fetches - wasted;
  result.early_fetched_bytes = stats.early_fetched_bytes - early_bytes;
  result.stall_ns = stats.stall_ns - stalled;
  result.fetched_bytes = stats.fetched_bytes - fetched;
  result.evicted_bytes = stats.evicted_bytes - evicted;
  result.dropped_bytes = stats.clean_dropped_bytes - dropped;
  result.disk_read_bytes = stats.disk_read_bytes - disk_read;
  result.disk_written_bytes = stats.disk_written_bytes - disk_written;
  result.differences = differences_;
  if (!status.is_ok()) {
    result.failure = status.message();
  } else if (!has_learned) {
    result.failure = "It followed no plan for so many periods.";
  }
  measure(&result);
  return result;
}

void TraceReplay::measure(ReplayResult* result) {
  MutexLock lock(plans_.mutex);
  const Simulation simulation = plans_.simulation;
  result->simulated_ns = simulation.step_ns;
  result->compute_ns = simulation.compute_ns;
  result->bound_ns = plans_.bound_ns;
  result->simulated_stall_ns = simulation.total_stall_ns();
  result->simulated_late_bytes = simulation.bytes_late;
  result->simulated_fetched_bytes = simulation.bytes_read;
  result->simulated_evicted_bytes = simulation.bytes_written + simulation.bytes_dropped;
  result->simulated_disk_read_bytes = simulation.disk_bytes_read;
  result->simulated_disk_written_bytes = simulation.disk_bytes_written;
  const auto count =
      static_cast<std::ptrdiff_t>(std::min<uint64_t>(config_.measured_periods, period_ns_.size()));
  if (count == 0) return;
  std::vector<uint64_t> last(period_ns_.end() - count, period_ns_.end());
  std::ranges::sort(last);
  result->measured_ns = last[last.size() / 2];
}

}  // namespace tencache
