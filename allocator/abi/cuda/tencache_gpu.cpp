// SPDX-License-Identifier: Apache-2.0
//
// The C ABI for GPUs over an engine and its CudaDevice. It only converts; nothing may throw across
// it.
#include "abi/tencache_gpu.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi/cuda/gpu_count.h"
#include "abi/cuda/open_gpu.h"
#include "abi/error_text.h"
#include "base/check.h"
#include "base/units.h"

namespace tencache {
namespace {

static_assert(static_cast<int>(HeapEvent::kSegmentMade) == TENCACHE_SEGMENT_MADE);
static_assert(static_cast<int>(HeapEvent::kSegmentGone) == TENCACHE_SEGMENT_GONE);
static_assert(static_cast<int>(HeapEvent::kFreeCompleted) == TENCACHE_FREE_COMPLETED);
static_assert(static_cast<int>(BlockState::kFree) == TENCACHE_BLOCK_INACTIVE);
static_assert(static_cast<int>(BlockState::kActive) == TENCACHE_BLOCK_ALLOCATED);
static_assert(static_cast<int>(BlockState::kWaiting) == TENCACHE_BLOCK_PENDING_FREE);

CUstream as_stream(void* stream) { return static_cast<CUstream>(stream); }

Status check_stream(void* stream) {
  if (as_stream(stream) != CU_STREAM_PER_THREAD) return Status::ok();
  return {StatusCode::kInvalidArgument,
          "The per-thread default stream is another stream on each thread, so memory cannot belong "
          "to it; use a stream that was created, or the default stream."};
}

tencache_gpu_uses converted_uses(const UsesOfKind& uses, const FrameUse& frames) {
  return {
      converted(uses.bytes),        converted(uses.allocations),     converted(uses.active_bytes),
      converted(uses.active_count), converted(uses.requested_bytes), converted(uses.split_bytes),
      converted(uses.split_count),  converted(frames.bytes),         converted(frames.frames)};
}

}  // namespace
}  // namespace tencache

struct tencache_gpu_pool_state {
  uint64_t pool;
  std::vector<tencache::SegmentView> segments;
};

using tencache::Allocation;
using tencache::RestoredBlocks;
using tencache::Result;
using tencache::SegmentView;
using tencache::Status;

extern "C" {

tencache_arena tencache_gpu_arena(const tencache_gpu* gpu) {
  const tencache::DeviceArena& arena = gpu->device->heap().arena();
  return {static_cast<uintptr_t>(arena.base()), arena.bytes()};
}

void* tencache_gpu_allocate(tencache_gpu* gpu, size_t bytes, void* stream, tencache_error* error) {
  const Status checked = tencache::check_stream(stream);
  return tencache::value_or_null(
      checked.is_ok() ? gpu->engine->allocate(bytes, stream) : Result<void*>(checked), error);
}

void tencache_gpu_free(tencache_gpu* gpu, void* address) { gpu->engine->free(address); }

int tencache_gpu_record_stream(tencache_gpu* gpu, const void* address, void* stream,
                               tencache_error* error) {
  const Status status = tencache::check_stream(stream);
  if (status.is_ok()) gpu->device->record_stream(address, tencache::as_stream(stream));
  return tencache::report(status, error);
}

uint64_t tencache_gpu_empty_cache(tencache_gpu* gpu) { return gpu->device->heap().empty_cache(); }

int tencache_gpu_add_peer(tencache_gpu* gpu, int ordinal, tencache_error* error) {
  const tencache::DriverApi& driver = gpu->device->gpu().driver();
  CUdevice device = 0;
  Status status = tencache::cuda_status(driver, driver.cuDeviceGet(&device, ordinal),
                                        "There is no GPU " + std::to_string(ordinal));
  if (status.is_ok()) status = gpu->device->heap().arena().add_peer(device);
  return tencache::report(status, error);
}

int tencache_gpu_memory(tencache_gpu* gpu, uint64_t* free_bytes, uint64_t* total_bytes,
                        tencache_error* error) {
  size_t free = 0;
  size_t total = 0;
  const Status status = gpu->device->gpu().call(
      "Cannot ask for the GPU's free memory",
      [&](const tencache::DriverApi& driver) { return driver.cuMemGetInfo(&free, &total); });
  *free_bytes = free;
  *total_bytes = total;
  return tencache::report(status, error);
}

int tencache_gpu_set_fraction(tencache_gpu* gpu, double fraction, tencache_error* error) {
  return tencache::report(tencache::set_fraction(*gpu, fraction), error);
}

uint64_t tencache_gpu_make_pool(tencache_gpu* gpu) {
  return gpu->device->heap().private_pools().make();
}

void tencache_gpu_watch_ops(tencache_gpu* gpu) { gpu->engine->evictor().arm(); }

void* tencache_gpu_allocate_in_pool(tencache_gpu* gpu, uint64_t pool, size_t bytes, void* stream,
                                    tencache_error* error) {
  Result<Allocation> allocation = tencache::check_stream(stream);
  if (allocation.status().is_ok()) {
    allocation = gpu->device->allocate_private(pool, bytes, tencache::as_stream(stream));
  }
  if (allocation.is_ok()) return allocation.value().address;
  tencache::report(allocation.status(), error);
  return nullptr;
}

tencache_gpu_pool_state* tencache_gpu_pool_state_of(tencache_gpu* gpu, uint64_t pool) {
  const auto blocks = gpu->device->heap().private_pools().find(pool);
  TENCACHE_CHECK(blocks != nullptr, "there is no private pool %lu", pool);
  return new tencache_gpu_pool_state{pool, blocks->segments()};
}

void tencache_gpu_delete_pool_state(tencache_gpu_pool_state* state) { delete state; }

int tencache_gpu_restore_pool(tencache_gpu* gpu, const tencache_gpu_pool_state* state,
                              void (*note)(void* context, int is_allocated, void* address),
                              void* context, tencache_error* error) {
  const Result<RestoredBlocks> restored =
      gpu->device->heap().restore_private(state->pool, state->segments);
  if (!restored.is_ok()) return tencache::report(restored.status(), error);
  for (const CUdeviceptr address : restored.value().freed) {
    note(context, 0, reinterpret_cast<void*>(address));
  }
  for (const CUdeviceptr address : restored.value().allocated) {
    note(context, 1, reinterpret_cast<void*>(address));
  }
  return TENCACHE_OK;
}

int tencache_gpu_drop_pool(tencache_gpu* gpu, uint64_t pool) {
  return gpu->device->heap().drop_private_pool(pool) ? 1 : 0;
}

void tencache_gpu_get_stats(const tencache_gpu* gpu, tencache_gpu_stats* stats) {
  const tencache::CudaHeapView view = gpu->device->view();
  const tencache::ProgramUses uses = view.uses();
  const tencache::FrameUses frames = view.frames();
  *stats = {tencache::converted_uses(uses.all, frames.all),
            tencache::converted_uses(uses.small, frames.small),
            tencache::converted_uses(uses.large, frames.large), view.figures().cold_bytes};
}

tencache_gpu_use tencache_gpu_use_now(const tencache_gpu* gpu) {
  const tencache::CudaHeapView& view = gpu->device->view();
  return {view.uses().all.bytes.current, view.frames().all.bytes.current};
}

void tencache_gpu_reset_peaks(tencache_gpu* gpu) { gpu->device->view().reset_peaks(); }

void tencache_gpu_reset_totals(tencache_gpu* gpu) { gpu->device->view().reset_totals(); }

int tencache_gpu_find(const tencache_gpu* gpu, const void* address, tencache_gpu_block* block,
                      tencache_gpu_segment* segment) {
  const std::optional<tencache::FoundBlock> found = gpu->device->view().find_block(address);
  if (!found) return 0;
  if (block != nullptr) {
    *block = {static_cast<uintptr_t>(found->address), found->bytes, found->requested_bytes,
              TENCACHE_BLOCK_ALLOCATED, found->is_shared ? 1 : 0};
  }
  if (segment != nullptr) {
    *segment = {};
    segment->address = static_cast<uintptr_t>(found->segment_address);
    segment->bytes = found->segment_bytes;
    segment->stream = gpu->device->streams().stream_of(found->owner);
    segment->pool = found->pool;
  }
  return 1;
}

void tencache_gpu_observe(tencache_gpu* gpu,
                          void (*note)(void* context, int event, uintptr_t address, uint64_t bytes),
                          void* context) {
  gpu->observer = std::make_unique<tencache::HeapObserver>(tencache::HeapObserver{note, context});
  gpu->device->heap().observe(gpu->observer.get());
}

void tencache_gpu_walk(const tencache_gpu* gpu,
                       void (*visit)(void* context, const tencache_gpu_segment* segment),
                       void* context) {
  const tencache::StreamNumbers& streams = gpu->device->streams();
  std::vector<tencache_gpu_block> blocks;
  for (const SegmentView& view : gpu->device->view().segments()) {
    blocks.clear();
    for (const tencache::BlockView& block : view.blocks) {
      blocks.push_back({static_cast<uintptr_t>(block.address), block.bytes, block.requested_bytes,
                        static_cast<int>(block.state), 0});
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
