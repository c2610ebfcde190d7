// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/test_cuda_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "support/cuda/simulated_device_copy.h"
#include "support/cuda/simulated_device_hash.h"
#include "support/eventually.h"
#include "support/heap_books.h"
#include "support/listed_requests.h"

namespace tencache {
namespace {

constexpr uint64_t kStampedBytes = 4096;

uint64_t word_at(uint64_t seed, uint64_t offset) {
  return (seed + 1) * 0x9e3779b97f4a7c15u ^ offset * 0xff51afd7ed558ccdu;
}

// Lets reads race: an eviction copies and hashes memory that is still in use, and checks later
// whether the memory changed.
SimulatedDriverConfig with_races(SimulatedDriverConfig config) {
  config.reads_may_race = true;
  return config;
}

}  // namespace

TestCudaEngine::TestCudaEngine(const Adjust& adjust, const SimulatedDriverConfig& driver,
                               bool has_copy_kernel)
    : driver_(std::in_place, with_races(driver)) {
  add_hash_kernel(*driver_, true);
  if (has_copy_kernel) add_copy_kernel(*driver_, true);
  context_.emplace(driver_->api());
  CudaEngineConfig config;
  config.budget_bytes = kBudgetBytes;
  config.arena_bytes = 4 * kGiB;
  config.heap.extent_min_bytes = kGranuleBytes;
  config.host.emplace();
  config.host->budget_bytes = kHostBytes;
  config.host->chunk_bytes = 16 * kMiB;
  config.host->threads = 1;
  config.host->bytes_left = [] { return 64 * kGiB; };
  config.probe_bytes = 0;
  config.nvrtc = nvrtc_.api();
  if (adjust) adjust(config);
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(driver_->api(), config);
  TENCACHE_CHECK(device.is_ok(), "%s", device.status().message().c_str());
  device_ = device.value().get();
  Result<std::unique_ptr<Engine>> engine = Engine::create(config, std::move(device).value());
  TENCACHE_CHECK(engine.is_ok(), "%s", engine.status().message().c_str());
  engine_ = std::move(engine).value();
}

TestCudaEngine::~TestCudaEngine() {
  if (!may_fail_) driver_->wait_until_idle();
  EXPECT_EQ(differences(), 0u);
  if (!may_fail_) {
    EXPECT_EQ(api().cuStreamQuery(nullptr), CUDA_SUCCESS);
  }
  // The engine asks about the program's streams to the end, so they go after it.
  engine_.reset();
  for (const CUstream stream : streams_) api().cuStreamDestroy(stream);
  context_.reset();
  if (!may_fail_ && !may_leak_) {
    EXPECT_EQ(driver_->leaks(), "");
  }
}

CUstream TestCudaEngine::make_stream() {
  CUstream stream = nullptr;
  const CUresult made = api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
  TENCACHE_CHECK(made == CUDA_SUCCESS, "%d", static_cast<int>(made));
  streams_.push_back(stream);
  return stream;
}

void TestCudaEngine::destroy_stream(CUstream stream) {
  std::erase(streams_, stream);
  StreamNumbers::end_everywhere(stream);
  EXPECT_EQ(api().cuStreamDestroy(stream), CUDA_SUCCESS);
}

void TestCudaEngine::order(CUstream earlier, CUstream later) {
  StreamNumbers& streams = device_->streams();
  std::vector<StreamMark> marks;
  const Status marked = streams.mark_all(streams.set_of(earlier), &marks);
  EXPECT_TRUE(marked.is_ok()) << marked.message();
  const Status held = streams.hold_back(streams.set_of(later), marks);
  EXPECT_TRUE(held.is_ok()) << held.message();
}

char* TestCudaEngine::allocate(uint64_t bytes, CUstream stream) {
  const Result<void*> address = engine_->allocate(bytes, stream);
  TENCACHE_CHECK(address.is_ok(), "%s", address.status().message().c_str());
  return static_cast<char*>(address.value());
}

CudaExtent* TestCudaEngine::extent(const void* address) const {
  return static_cast<CudaExtent*>(engine_->heap().find(address));
}

uint64_t TestCudaEngine::waiting_count() const {
  uint64_t count = 0;
  for (const SegmentView& segment : device_->view().segments()) {
    count += static_cast<uint64_t>(
        std::ranges::count(segment.blocks, BlockState::kWaiting, &BlockView::state));
  }
  return count;
}

void TestCudaEngine::op(CUstream stream, const std::vector<KernelUse>& uses,
                        std::chrono::nanoseconds duration) {
  std::vector<Access> accesses;
  std::vector<DeviceRange> touches;
  for (const KernelUse& use : uses) {
    accesses.push_back({use.address, use.writes ? AccessMode::kWrite : AccessMode::kRead});
    touches.push_back({reinterpret_cast<CUdeviceptr>(use.address), use.bytes, use.writes});
  }
  engine_->open_op(0, accesses, stream);
  const CUresult launched = driver_->launch(
      stream, std::move(touches),
      [this, uses] {
        for (const KernelUse& use : uses) {
          if (use.writes) {
            stamp(use.address, use.bytes, use.seed);
          } else if (!has_stamp(use.address, use.bytes, use.seed)) {
            differences_.fetch_add(1);
          }
        }
      },
      duration);
  if (!may_fail_) {
    EXPECT_EQ(launched, CUDA_SUCCESS);
  }
  engine_->gate().close();
}

bool TestCudaEngine::evict(const void* address) {
  Extent* extents[] = {extent(address)};
  extents[0]->set_flags(kFlagSeen);
  return engine_->mover()->evict(extents).count == 1;
}

size_t TestCudaEngine::prefetch(const std::vector<const void*>& addresses) {
  std::vector<MoveRequest> requests;
  for (const void* address : addresses) {
    Extent* wanted = engine_->heap().find(address);
    TENCACHE_CHECK(wanted != nullptr, "%p is no extent", address);
    requests.push_back({wanted, wanted->id.load(), wanted->bytes, ~uint64_t{0}});
  }
  return tencache::prefetch(*engine_->mover(), requests);
}

std::string TestCudaEngine::check_books() {
  // The evictor may still be working, its books unbalanced for a moment.
  std::string fault;
  eventually([&] {
    driver_->wait_until_idle();
    Mover* mover = engine_->mover();
    if (mover != nullptr) {
      mover->settle(true);
      mover->fork_latch().close();
    }
    fault = check_books_once();
    if (mover != nullptr) mover->fork_latch().reopen();
    return fault.empty();
  });
  return fault;
}

std::string TestCudaEngine::check_books_once() {
  const auto differs = [](const char* what, uint64_t booked, uint64_t counted) {
    return std::string(what) + ": " + std::to_string(booked) + " in the books, " +
           std::to_string(counted) + " counted";
  };
  CudaHeap& heap = device_->heap();
  uint64_t device_bytes = heap.small_bytes() + heap.others_bytes();
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  uint64_t cached_bytes = 0;
  for (const ListedExtent& listed : heap.extents()) {
    const auto* extent = static_cast<const CudaExtent*>(listed.extent);
    if (extent->has(kFlagBusy)) return "an extent is being moved";
    const ExtentState state = extent->state();
    if (!extent->host_block.is_beyond_budget()) host_bytes += extent->host_block.bytes;
    disk_bytes += extent->slot.bytes;
    const bool has_copy = extent->host_block.is_valid() || extent->slot.is_valid();
    if (state == ExtentState::kCold && !has_copy) return "cold without a copy";
    if (state == ExtentState::kVacant || state == ExtentState::kCold) continue;
    device_bytes += listed.bytes;
    if (state == ExtentState::kCached) cached_bytes += listed.bytes;
  }
  const uint64_t used_bytes = engine_->budget().used();
  if (used_bytes != device_bytes) return differs("device bytes", used_bytes, device_bytes);
  if (heap.cached_bytes() != cached_bytes) {
    return differs("cached bytes", heap.cached_bytes(), cached_bytes);
  }
  if (device_->host() != nullptr && device_->host()->stats().asked_bytes != host_bytes) {
    return differs("host bytes", device_->host()->stats().asked_bytes, host_bytes);
  }
  if (device_->host() != nullptr && device_->host()->stats().beyond_bytes > 0) {
    return "host memory beyond the budget is still in use";
  }
  if (device_->disk() != nullptr && device_->disk()->used_bytes() != disk_bytes) {
    return differs("disk bytes", device_->disk()->used_bytes(), disk_bytes);
  }
  return HeapBooks::are_valid(heap) ? "" : "the heap's lists or addresses are inconsistent";
}

void stamp(char* memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t page = 0; page + 8 <= bytes; page += kStampedBytes) {
    const uint64_t last = std::min(page + kStampedBytes, bytes) - 8;
    for (const uint64_t offset : {page, last}) {
      const uint64_t word = word_at(seed, offset);
      memcpy(memory + offset, &word, 8);
    }
  }
}

bool has_stamp(const char* memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t page = 0; page + 8 <= bytes; page += kStampedBytes) {
    const uint64_t last = std::min(page + kStampedBytes, bytes) - 8;
    for (const uint64_t offset : {page, last}) {
      const uint64_t word = word_at(seed, offset);
      if (memcmp(memory + offset, &word, 8) != 0) return false;
    }
  }
  return true;
}

}  // namespace tencache
