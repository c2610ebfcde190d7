// SPDX-License-Identifier: Apache-2.0
//
// The C ABI for GPUs over CudaEngine. Conversions only; nothing may throw across it.
#include "abi/tencache_gpu.h"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "abi/cuda/open_gpu.h"
#include "abi/error_text.h"
#include "backend/cuda/call_scope.h"
#include "base/units.h"
#include "engine/cuda/cuda_engine.h"

struct tencache_gpu {
  std::unique_ptr<tencache::DriverApi> own_driver;  // null where the caller brought one
  std::unique_ptr<tencache::CudaEngine> engine;
};

namespace tencache {
namespace {

constexpr double kDefaultFraction = 0.9;

CUstream as_stream(void* stream) { return static_cast<CUstream>(stream); }

std::span<const Access> as_span(const tencache_access* accesses, uint32_t count) {
  return {reinterpret_cast<const Access*>(accesses), count};
}

Status check_stream(void* stream) {
  if (as_stream(stream) != CU_STREAM_PER_THREAD) return Status::ok();
  return {StatusCode::kInvalidArgument,
          "The per-thread default stream is another stream on each thread, so memory cannot belong "
          "to it; use a stream that was created, or the default stream."};
}

Status check_config(const tencache_gpu_config& config) {
  if (!(config.device_fraction > 0.0 && config.device_fraction <= 1.0)) {
    return {StatusCode::kInvalidArgument, "The share of the GPU's memory is " +
                                              std::to_string(config.device_fraction) +
                                              "; it must be above 0 and at most 1."};
  }
  if (!(config.arm_at >= 0.0 && config.arm_at <= 1.0)) {
    return {StatusCode::kInvalidArgument, "The share of the budget at which ops are watched is " +
                                              std::to_string(config.arm_at) +
                                              "; it must be from 0 to 1."};
  }
  return Status::ok();
}

Result<uint64_t> total_bytes(const DriverApi& driver, int ordinal) {
  const std::string gpu = "GPU " + std::to_string(ordinal);
  CUdevice device = 0;
  TENCACHE_RETURN_IF_ERROR(
      cuda_status(driver, driver.cuDeviceGet(&device, ordinal), "There is no " + gpu));
  size_t bytes = 0;
  TENCACHE_RETURN_IF_ERROR(cuda_status(driver, driver.cuDeviceTotalMem(&bytes, device),
                                       "Cannot ask for the memory of " + gpu));
  return uint64_t{bytes};
}

Result<CudaEngineConfig> engine_config(const DriverApi& driver, const tencache_gpu_config& config) {
  TENCACHE_RETURN_IF_ERROR(check_config(config));
  const Result<uint64_t> total = total_bytes(driver, config.ordinal);
  if (!total.is_ok()) return total.status();
  CudaEngineConfig made;
  made.ordinal = config.ordinal;
  made.budget_bytes =
      static_cast<uint64_t>(static_cast<double>(total.value()) * config.device_fraction);
  if (config.device_budget_bytes > 0) {
    made.budget_bytes = std::min(made.budget_bytes, config.device_budget_bytes);
  }
  made.arm_at = config.arm_at;
  made.heap.extent_min_bytes = config.extent_min_bytes;
  made.heap.strict = config.strict != 0;
  if (config.host_budget_bytes > 0 && !made.heap.strict) {
    made.host.emplace();
    made.host->budget_bytes = config.host_budget_bytes;
  }
  if (config.has_chaos != 0) made.chaos = ChaosConfig{config.chaos_seed, config.chaos_probability};
  made.probe_bytes = config.probe_bytes;
  return made;
}

tencache_gpu_count converted(const UseCount& count) {
  return {count.current, count.peak, count.added, count.removed};
}

tencache_gpu_uses converted(const UsesOfKind& uses) {
  return {converted(uses.bytes), converted(uses.requested_bytes), converted(uses.allocations)};
}

tencache_gpu_reserve converted(const BlockFigures& figures) {
  return {figures.segment_bytes,
          figures.segment_count,
          figures.waiting_bytes(),
          figures.waiting_count(),
          figures.free_bytes - figures.whole_bytes,
          figures.free_count - figures.whole_count};
}

int converted(BlockState state) {
  switch (state) {
    case BlockState::kFree:
      return TENCACHE_BLOCK_INACTIVE;
    case BlockState::kActive:
      return TENCACHE_BLOCK_ALLOCATED;
    case BlockState::kWaiting:
      return TENCACHE_BLOCK_PENDING_FREE;
  }
  return TENCACHE_BLOCK_INACTIVE;
}

void fill_memory(CudaHeap& heap, tencache_gpu_stats* stats) {
  const ProgramUses uses = heap.uses();
  stats->all = converted(uses.all);
  stats->small = converted(uses.small);
  stats->large = converted(uses.large);
  const CudaHeapFigures figures = heap.figures();
  stats->small_reserve = converted(figures.small);
  stats->large_reserve = converted(figures.large);
  stats->large_reserve.reserved_bytes +=
      figures.resident_bytes + figures.cached_bytes + figures.waiting_bytes;
  stats->large_reserve.reserved_count +=
      figures.resident_count + figures.cached_count + figures.waiting_count;
  stats->large_reserve.waiting_bytes += figures.waiting_bytes;
  stats->large_reserve.waiting_count += figures.waiting_count;
  stats->device_bytes = converted(figures.frames.bytes);
  stats->device_allocations = converted(figures.frames.frames);
  stats->cached_bytes = figures.cached_bytes;
  stats->cold_bytes = figures.cold_bytes;
  stats->others_bytes = heap.others_bytes();
}

}  // namespace

Result<tencache_gpu*> open_gpu(const DriverApi& driver, const tencache_gpu_config& config) {
  const Result<CudaEngineConfig> made = engine_config(driver, config);
  if (!made.is_ok()) return made.status();
  Result<std::unique_ptr<CudaEngine>> engine = CudaEngine::create(driver, made.value());
  if (!engine.is_ok()) return engine.status();
  auto gpu = std::make_unique<tencache_gpu>();
  gpu->engine = std::move(engine).value();
  return gpu.release();
}

namespace {

Result<tencache_gpu*> open_with_own_driver(const tencache_gpu_config& config) {
  const Result<DriverApi> loaded = load_driver();
  if (!loaded.is_ok()) return loaded.status();
  auto driver = std::make_unique<DriverApi>(loaded.value());
  Result<tencache_gpu*> gpu = open_gpu(*driver, config);
  if (gpu.is_ok()) gpu.value()->own_driver = std::move(driver);
  return gpu;
}

}  // namespace
}  // namespace tencache

using tencache::CudaHeap;
using tencache::Result;
using tencache::SegmentView;
using tencache::Status;

extern "C" {

void tencache_gpu_default_config(int ordinal, tencache_gpu_config* config) {
  const tencache::CudaEngineConfig defaults;
  *config = {};
  config->ordinal = ordinal;
  config->device_fraction = tencache::kDefaultFraction;
  config->extent_min_bytes = defaults.heap.extent_min_bytes;
  config->arm_at = defaults.arm_at;
  config->chaos_probability = 1.0;
  config->probe_bytes = defaults.probe_bytes;
}

tencache_gpu* tencache_gpu_open(const tencache_gpu_config* config, tencache_error* error) {
  const Result<tencache_gpu*> gpu = tencache::open_with_own_driver(*config);
  if (gpu.is_ok()) return gpu.value();
  tencache::report(gpu.status(), error);
  return nullptr;
}

void tencache_gpu_close(tencache_gpu* gpu) {
  if (gpu == nullptr) return;
  gpu->engine.reset();  // before the table it calls
  delete gpu;
}

tencache_arena tencache_gpu_arena(const tencache_gpu* gpu) {
  const tencache::DeviceArena& arena = gpu->engine->heap().arena();
  return {static_cast<uintptr_t>(arena.base()), arena.bytes()};
}

void* tencache_gpu_allocate(tencache_gpu* gpu, size_t bytes, void* stream, tencache_error* error) {
  Result<void*> address = tencache::check_stream(stream);
  if (address.status().is_ok()) {
    address = gpu->engine->allocate(bytes, tencache::as_stream(stream));
  }
  if (address.is_ok()) return address.value();
  tencache::report(address.status(), error);
  return nullptr;
}

void tencache_gpu_free(tencache_gpu* gpu, void* address) { gpu->engine->free(address); }

int tencache_gpu_record_stream(tencache_gpu* gpu, const void* address, void* stream,
                               tencache_error* error) {
  const Status status = tencache::check_stream(stream);
  if (status.is_ok()) gpu->engine->record_stream(address, tencache::as_stream(stream));
  return tencache::report(status, error);
}

uint64_t tencache_gpu_empty_cache(tencache_gpu* gpu) { return gpu->engine->heap().empty_cache(); }

int tencache_gpu_memory(tencache_gpu* gpu, uint64_t* free_bytes, uint64_t* total_bytes,
                        tencache_error* error) {
  const tencache::Gpu& device = gpu->engine->backend().gpu();
  const tencache::CallScope scope(device.driver(), device.context());
  size_t free = 0;
  size_t total = 0;
  Status status = scope.status();
  if (status.is_ok()) {
    status = tencache::cuda_status(device.driver(), device.driver().cuMemGetInfo(&free, &total),
                                   "Cannot ask for the GPU's free memory");
  }
  *free_bytes = free;
  *total_bytes = total;
  return tencache::report(status, error);
}

uint64_t tencache_gpu_make_pool(tencache_gpu* gpu) {
  return gpu->engine->heap().private_pools().make();
}

void* tencache_gpu_allocate_in_pool(tencache_gpu* gpu, uint64_t pool, size_t bytes, void* stream,
                                    tencache_error* error) {
  Result<void*> address = tencache::check_stream(stream);
  if (address.status().is_ok()) {
    address = gpu->engine->allocate_private(pool, bytes, tencache::as_stream(stream));
  }
  if (address.is_ok()) return address.value();
  tencache::report(address.status(), error);
  return nullptr;
}

int tencache_gpu_drop_pool(tencache_gpu* gpu, uint64_t pool) {
  return gpu->engine->heap().private_pools().drop(pool) ? 1 : 0;
}

uint32_t tencache_gpu_register_op(tencache_gpu* gpu, const char* name) {
  return gpu->engine->is_passive() ? 0 : gpu->engine->recorder().register_op(name);
}

void tencache_gpu_open_op(tencache_gpu* gpu, uint32_t op, const tencache_access* accesses,
                          uint32_t count, void* stream) {
  gpu->engine->open_op(op, tencache::as_span(accesses, count), tencache::as_stream(stream));
}

void tencache_gpu_close_op(tencache_gpu* gpu) { gpu->engine->gate().close(); }

void tencache_gpu_keep_resident(tencache_gpu* gpu, const tencache_access* accesses,
                                uint32_t count) {
  gpu->engine->gate().keep_resident(tencache::as_span(accesses, count));
}

void tencache_gpu_get_stats(const tencache_gpu* gpu, tencache_gpu_stats* stats) {
  tencache::CudaEngine& engine = *gpu->engine;
  *stats = {};
  tencache::fill_memory(engine.heap(), stats);
  if (engine.host() != nullptr) stats->host_bytes = engine.host()->stats().chunk_bytes;
  stats->device_budget_bytes = engine.budget().limit();
  const tencache::Stats& counters = engine.stats();
  stats->over_budget_events = counters.over_budget_events;
  stats->over_budget_peak_bytes = counters.over_budget_peak_bytes;
  stats->evicted_bytes = counters.evicted_bytes;
  stats->fetched_bytes = counters.fetched_bytes;
  stats->early_fetches = counters.early_fetches;
  stats->late_fetches = counters.late_fetches;
  stats->wasted_fetches = counters.wasted_fetches;
  stats->stall_ns = counters.stall_ns;
}

void tencache_gpu_reset_peaks(tencache_gpu* gpu) { gpu->engine->heap().reset_peaks(); }

void tencache_gpu_reset_totals(tencache_gpu* gpu) { gpu->engine->heap().reset_totals(); }

int tencache_gpu_find(const tencache_gpu* gpu, const void* address, tencache_gpu_block* block,
                      tencache_gpu_segment* segment) {
  const std::optional<tencache::FoundBlock> found = gpu->engine->heap().find_block(address);
  if (!found) return 0;
  if (block != nullptr) {
    *block = {static_cast<uintptr_t>(found->address), found->bytes, found->requested_bytes,
              TENCACHE_BLOCK_ALLOCATED};
  }
  if (segment != nullptr) {
    *segment = {};
    segment->address = static_cast<uintptr_t>(found->segment_address);
    segment->bytes = found->segment_bytes;
  }
  return 1;
}

void tencache_gpu_walk(const tencache_gpu* gpu,
                       void (*visit)(void* context, const tencache_gpu_segment* segment),
                       void* context) {
  const CudaHeap& heap = gpu->engine->heap();
  const tencache::StreamNumbers& streams = gpu->engine->backend().streams();
  std::vector<tencache_gpu_block> blocks;
  for (const SegmentView& view : heap.segments()) {
    blocks.clear();
    for (const tencache::BlockView& block : view.blocks) {
      blocks.push_back({static_cast<uintptr_t>(block.address), block.bytes, block.requested_bytes,
                        tencache::converted(block.state)});
    }
    const tencache_gpu_segment segment = {static_cast<uintptr_t>(view.address),
                                          view.bytes,
                                          streams.stream_of(view.owner),
                                          view.pool,
                                          view.is_small ? 1 : 0,
                                          view.is_resident ? 1 : 0,
                                          blocks.data(),
                                          blocks.size()};
    visit(context, &segment);
  }
}

}  // extern "C"
