// SPDX-License-Identifier: Apache-2.0
//
// The C ABI for pinned memory over PinnedMemory. It only converts; nothing may throw across it.
#include "abi/tencache_pinned.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "abi/cuda/gpu_count.h"
#include "abi/cuda/open_pinned.h"
#include "abi/error_text.h"
#include "memory/cuda/pinned_memory.h"

namespace tencache {

Result<tencache_pinned*> open_pinned(const DriverApi& driver, PinnedMemoryConfig config) {
  auto pinned = std::make_unique<tencache_pinned>();
  TENCACHE_RETURN_IF_ERROR(PinnedMemory::open(driver, std::move(config)).move_to(&pinned->memory));
  return pinned.release();
}

namespace {

Result<tencache_pinned*> open_pinned_with_own_driver(int ordinal) {
  const Result<DriverApi> loaded = load_driver();
  if (!loaded.is_ok()) return loaded.status();
  auto driver = std::make_unique<DriverApi>(loaded.value());
  PinnedMemoryConfig config;
  config.ordinal = ordinal;
  Result<tencache_pinned*> pinned = open_pinned(*driver, std::move(config));
  if (pinned.is_ok()) pinned.value()->own_driver = std::move(driver);
  return pinned;
}

Result<bool> note_use(tencache_pinned* pinned, const void* address, int ordinal, void* stream) {
  if (static_cast<CUstream>(stream) == CU_STREAM_PER_THREAD) {
    return Status(StatusCode::kInvalidArgument,
                  "The per-thread default stream is another stream on each thread, so it cannot be "
                  "waited for; use a stream that was created, or the default stream.");
  }
  return pinned->memory->note_use(address, ordinal, static_cast<CUstream>(stream));
}

}  // namespace
}  // namespace tencache

extern "C" {

tencache_pinned* tencache_pinned_open(int ordinal, tencache_error* error) {
  return tencache::value_or_null(tencache::open_pinned_with_own_driver(ordinal), error);
}

void tencache_pinned_close(tencache_pinned* pinned) {
  if (pinned == nullptr) return;
  pinned->memory.reset();  // before the driver table that it calls
  delete pinned;
}

void* tencache_pinned_allocate(tencache_pinned* pinned, size_t bytes, tencache_error* error) {
  return tencache::value_or_null(pinned->memory->pool().allocate(bytes), error);
}

void tencache_pinned_free(tencache_pinned* pinned, void* address) {
  pinned->memory->pool().free(address);
}

int tencache_pinned_record_stream(tencache_pinned* pinned, const void* address, int ordinal,
                                  void* stream, tencache_error* error) {
  const tencache::Result<bool> noted = tencache::note_use(pinned, address, ordinal, stream);
  tencache::report(noted.status(), error);
  return noted.is_ok() && noted.value() ? 1 : 0;
}

void tencache_pinned_trim(tencache_pinned* pinned) { pinned->memory->pool().trim(); }

uint64_t tencache_pinned_make_pool(tencache_pinned* pinned) {
  return pinned->memory->pool().make_private_pool();
}

void* tencache_pinned_allocate_in_pool(tencache_pinned* pinned, uint64_t pool, size_t bytes,
                                       tencache_error* error) {
  return tencache::value_or_null(pinned->memory->pool().allocate(bytes, pool), error);
}

void tencache_pinned_drop_pool(tencache_pinned* pinned, uint64_t pool) {
  pinned->memory->pool().drop_private_pool(pool);
}

void tencache_pinned_get_stats(tencache_pinned* pinned, tencache_pinned_stats* stats) {
  const tencache::PinnedFigures figures = pinned->memory->pool().figures();
  const tencache::HostTierStats tier = pinned->memory->tier().stats();
  const tencache::PinTimes times = pinned->memory->pinner().times();
  *stats = {};
  stats->bytes = tencache::converted(figures.bytes);
  stats->allocations = tencache::converted(figures.blocks);
  stats->mapped_bytes = tencache::converted(tier.mapped_bytes);
  stats->mapped_count = tencache::converted(tier.mapped_chunks);
  static_assert(sizeof stats->added_by_size == sizeof times.count_by_size);
  std::ranges::copy(times.count_by_size, stats->added_by_size);
  stats->pin_ns = times.total_ns;
  stats->pin_ns_max = times.longest_ns;
  stats->pin_ns_min = times.shortest_ns;
}

void tencache_pinned_reset_peaks(tencache_pinned* pinned) {
  pinned->memory->pool().reset(&tencache::UseCount::reset_peak);
  pinned->memory->tier().reset_peaks();
  pinned->memory->pinner().reset_peaks();
}

void tencache_pinned_reset_totals(tencache_pinned* pinned) {
  pinned->memory->pool().reset(&tencache::UseCount::reset_totals);
  pinned->memory->tier().reset_totals();
  pinned->memory->pinner().reset_totals();
}

void tencache_pinned_walk(tencache_pinned* pinned,
                          void (*visit)(void* context, const tencache_pinned_block* block),
                          void* context) {
  for (const tencache::PinnedView& view : pinned->memory->pool().blocks()) {
    const tencache_pinned_block block = {reinterpret_cast<uintptr_t>(view.memory), view.bytes,
                                         view.private_pool, static_cast<int>(view.state)};
    visit(context, &block);
  }
}

}  // extern "C"
