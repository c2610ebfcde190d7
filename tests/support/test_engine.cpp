// SPDX-License-Identifier: Apache-2.0
//
// How TestEngine is made and how its books are checked.
#include "support/test_engine.h"

#include <cstring>

#include "base/check.h"
#include "support/eventually.h"
#include "support/heap_books.h"

namespace tencache {

TestEngine::TestEngine(const Adjust& adjust) {
  CpuEngineConfig config;
  config.budget_bytes = kBudgetBytes;
  config.arena_bytes = kArenaBytes;
  config.heap.extent_min_bytes = kPageBytes;
  config.userfaultfd = Choice::kOff;
  config.look_interval = std::chrono::milliseconds(0);
  config.disk.emplace();
  config.disk->quota_bytes = kDiskBytes;
  if (adjust) adjust(config);
  if (config.disk && config.disk->directory.empty()) {
    config.disk->directory = directory_.emplace().path();
  }
  Result<std::unique_ptr<CpuDevice>> device = CpuDevice::open(config);
  TENCACHE_CHECK(device.is_ok(), "%s", device.status().message().c_str());
  device_ = device.value().get();
  Result<std::unique_ptr<Engine>> engine = Engine::create(config, std::move(device).value());
  TENCACHE_CHECK(engine.is_ok(), "%s", engine.status().message().c_str());
  engine_ = std::move(engine).value();
}

TestEngine::~TestEngine() = default;

char* TestEngine::allocate(uint64_t bytes) {
  const Result<void*> address = engine_->allocate(bytes);
  TENCACHE_CHECK(address.is_ok(), "%s", address.status().message().c_str());
  return static_cast<char*>(address.value());
}

void TestEngine::use(std::initializer_list<const void*> addresses, AccessMode mode) {
  const GateScope op(*this, addresses, mode);
}

std::vector<char*> TestEngine::written(uint64_t count, uint64_t bytes) {
  std::vector<char*> addresses;
  for (uint64_t index = 0; index < count; ++index) {
    addresses.push_back(allocate(bytes));
    const GateScope op(*this, {addresses.back()}, AccessMode::kWrite);
    fill_pattern(addresses.back(), bytes, index);
  }
  return addresses;
}

bool TestEngine::evict(const void* address) {
  Extent* extents[] = {extent(address)};
  extents[0]->set_flags(kFlagSeen);
  return engine_->mover()->evict(extents).count == 1;
}

std::string TestEngine::check_books(uint64_t small_bytes) {
  Mover* const mover = engine_->mover();
  if (mover == nullptr) return check_books_once(small_bytes);
  // The prefetcher does not need a permit for everything. It begins nothing while an op waits, and
  // this demand stands for such an op.
  const Demand demand(mover->ledger());
  const Prefetcher* const prefetcher = engine_->prefetcher();
  eventually([&] { return prefetcher == nullptr || !prefetcher->is_at_work(); });
  std::string fault;
  eventually([&] {
    mover->fork_latch().close();
    fault = check_books_once(small_bytes);
    mover->fork_latch().reopen();
    return fault.empty();
  });
  return fault;
}

std::string TestEngine::check_books_once(uint64_t small_bytes) {
  const MallocUse& malloc_use = HeapBooks::malloc_use(device_->heap());
  uint64_t device_bytes = malloc_use.reserved();
  uint64_t cached_bytes = 0;
  uint64_t slot_bytes = 0;
  uint64_t count = 0;
  for (const ListedExtent& listed : engine_->heap().extents()) {
    const Extent* extent = listed.extent;
    const ExtentState state = extent->state();
    if (state == ExtentState::kVacant) {
      if (extent->slot.is_valid()) return "a vacant extent has a slot";
      if (Extent::pins_of(extent->load()) != 0) return "a vacant extent is pinned";
      continue;
    }
    ++count;
    slot_bytes += extent->slot.bytes;
    if (extent->has_copy_below && !extent->slot.is_valid()) return "no slot, yet written";
    if (state == ExtentState::kCold && !extent->slot.is_valid()) return "cold without a slot";
    if (state == ExtentState::kCached) cached_bytes += listed.bytes;
    if (state == ExtentState::kCold && extent->padding_bytes > 0) return "cold, yet with padding";
    cached_bytes += extent->padding_bytes;
    device_bytes += extent->padding_bytes;
    if (state != ExtentState::kCold) device_bytes += listed.bytes;
    device_bytes += extent->unannounced_bytes;
    if (state != ExtentState::kCold && extent->unannounced_bytes > 0)
      return "not cold, yet written";
  }
  const auto differs = [](const char* what, uint64_t booked, uint64_t counted) {
    return std::string(what) + ": " + std::to_string(booked) + " in the books, " +
           std::to_string(counted) + " counted";
  };
  const CpuHeap& heap = device_->heap();
  if (heap.extent_count() != count) return differs("extents", heap.extent_count(), count);
  if (malloc_use.used() != small_bytes) {
    return differs("small bytes", malloc_use.used(), small_bytes);
  }
  if (malloc_use.reserved() < small_bytes) return "small blocks without room";
  if (heap.cached_bytes() != cached_bytes) {
    return differs("cached bytes", heap.cached_bytes(), cached_bytes);
  }
  const uint64_t used_bytes = engine_->budget().used();
  if (used_bytes != device_bytes) return differs("device bytes", used_bytes, device_bytes);
  if (device_->disk() != nullptr && device_->disk()->used_bytes() != slot_bytes) {
    return differs("disk bytes", device_->disk()->used_bytes(), slot_bytes);
  }
  return HeapBooks::are_valid(heap) ? "" : "the heap's lists or addresses are inconsistent";
}

Parts gate_parts(TestEngine& engine, Recorder& recorder, Stats& stats) {
  Parts parts;
  parts.heap = &engine->heap();
  parts.mover = engine->mover();
  parts.recorder = &recorder;
  parts.stats = &stats;
  return parts;
}

GateScope::GateScope(TestEngine& engine, std::initializer_list<const void*> addresses,
                     AccessMode mode, uint32_t op)
    : engine_(&*engine) {
  std::vector<Access> accesses;
  for (const void* address : addresses) accesses.push_back({address, mode});
  engine_->gate().open(op, accesses);
}

GateScope::GateScope(TestEngine& engine, const std::vector<Access>& accesses, uint32_t op)
    : engine_(&*engine) {
  engine_->gate().open(op, accesses);
}

void fill_pattern(char* memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t offset = 0; offset + 8 <= bytes; offset += 8) {
    const uint64_t value = seed * 0x9e3779b97f4a7c15u + offset;
    memcpy(memory + offset, &value, 8);
  }
}

uint64_t first_difference(const char* memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t offset = 0; offset + 8 <= bytes; offset += 8) {
    const uint64_t value = seed * 0x9e3779b97f4a7c15u + offset;
    if (memcmp(memory + offset, &value, 8) != 0) return offset;
  }
  return bytes;
}

}  // namespace tencache
