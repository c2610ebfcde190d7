// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu_device.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "base/units.h"
#include "platform/bus_errors.h"
#include "platform/write_barrier.h"

namespace tencache {
namespace {

// The newest device's table and its spill directory. Signal handlers read both.
std::atomic<const ExtentTable*> g_table{nullptr};
std::atomic<const char*> g_directory{nullptr};

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

// Finds the slot that the page at `address` shows, for the message about a page that the disk does
// not give. Returns false where there is none. An extent that is being fetched, or freed, may lose
// its slot meanwhile; the message is then wrong.
bool find_lost_page(const void* address, LostPage* page) {
  const ExtentTable* table = g_table.load(std::memory_order_acquire);
  const char* directory = g_directory.load(std::memory_order_acquire);
  const Extent* extent = table != nullptr ? table->find(address) : nullptr;
  if (extent == nullptr || directory == nullptr) return false;
  const ExtentState state = extent->state();
  const bool shows_slot = state == ExtentState::kCold || state == ExtentState::kFetching ||
                          state == ExtentState::kMerging;
  if (!shows_slot) return false;
  const auto distance = static_cast<uint64_t>(static_cast<const char*>(address) - extent->address);
  *page = {directory, extent->slot.offset + distance / kPageBytes * kPageBytes,
           extent->id.load(std::memory_order_relaxed), extent->bytes};
  return true;
}

}  // namespace

Result<std::unique_ptr<CpuDevice>> CpuDevice::open(const CpuDeviceConfig& config) {
  std::unique_ptr<CpuDevice> device(new CpuDevice(config.budget_bytes));
  TENCACHE_RETURN_IF_ERROR(device->open_parts(config));
  g_directory.store(device->disk_ ? device->disk_->shown_directory().c_str() : nullptr);
  WriteBarrier::configure(device->arena_->base(), device->arena_->bytes(), &judge_fault);
  BusErrors::configure(device->arena_->base(), device->arena_->bytes(), &find_lost_page);
  g_table.store(device->table_.get(), std::memory_order_release);
  return device;
}

CpuDevice::~CpuDevice() {
  if (g_table.load() != table_.get()) return;
  g_table.store(nullptr);
  g_directory.store(nullptr);
}

Status CpuDevice::open_parts(const CpuDeviceConfig& config) {
  // Extents that leave memory keep their addresses, so the arena has twice the budget at least, or
  // all that is configured where that is less.
  const uint64_t least_bytes =
      round_up(std::min(config.budget_bytes, config.arena_bytes / 2) * 2, kGranuleBytes);
  TENCACHE_RETURN_IF_ERROR(AddressArena::reserve(config.arena_bytes, least_bytes).move_to(&arena_));
  TENCACHE_RETURN_IF_ERROR(ExtentTable::create(arena_->base(), arena_->bytes()).move_to(&table_));
  if (config.disk) {
    const Status status = PageMap::open().move_to(&page_map_);
    if (!status.is_ok()) {
      return Status(StatusCode::kUnavailable, "tensors cannot be spilled: " + status.message() +
                                                  "; make /proc available or use --strict");
    }
    TENCACHE_RETURN_IF_ERROR(DiskTier::open(*config.disk).move_to(&disk_));
    TENCACHE_RETURN_IF_ERROR(open_access_barrier(config.userfaultfd));
  }
  heap_ = std::make_unique<CpuHeap>(config.heap, *arena_, *table_, page_map_.get(), disk_.get(),
                                    budget(), stats());
  if (disk_) {
    mover_ = std::make_unique<SlotMover>(*heap_, *disk_, *page_map_, access_barrier_.get(), stats(),
                                         config.look_interval);
  }
  return Status::ok();
}

Status CpuDevice::open_access_barrier(Choice choice) {
  if (choice == Choice::kOff) return Status::ok();
  Status status = AccessBarrier::open().move_to(&access_barrier_);
  if (status.is_ok()) return status;
  if (choice == Choice::kOn) {
    return Status(StatusCode::kUnavailable, status.clause() +
                                                "; or leave out --userfaultfd, which only saves "
                                                "time");
  }
  TENCACHE_LOG_DEBUG("%s", status.message().c_str());
  (void)AccessBarrier::open_unprivileged().move_to(&access_barrier_);
  return Status::ok();
}

}  // namespace tencache
