// SPDX-License-Identifier: Apache-2.0
//
// CpuDevice: extents in anonymous memory of this process, cold ones in slots of a spill file. Of
// the process's handlers, one lets stray writes wait while a protected window is open (SIGSEGV),
// and one reports pages that the disk does not give (SIGBUS). Both serve the newest device.
//
// Threads: create and destroy on one thread; call the rest from any, as far as the headers of the
// parts allow it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/options.h"
#include "base/stats.h"
#include "base/status.h"
#include "engine/device.h"
#include "engine/move/cpu/slot_mover.h"
#include "memory/cpu_heap.h"
#include "platform/access_barrier.h"
#include "platform/address_arena.h"
#include "platform/page_map.h"
#include "tier/disk_tier.h"

namespace tencache {

struct CpuDeviceConfig {
  uint64_t budget_bytes = 0;
  uint64_t arena_bytes = uint64_t{16} << 40;
  HeapConfig heap;
  std::optional<DiskTierConfig> disk;          // none: nothing ever goes cold
  Choice userfaultfd = Choice::kAuto;          // parks pages, and lets writers wait in the kernel
  std::chrono::milliseconds look_interval{5};  // for UnannouncedWrites; 0: no thread
};

class CpuDevice final : public Device {
 public:
  static Result<std::unique_ptr<CpuDevice>> open(const CpuDeviceConfig& config);
  ~CpuDevice() override;

  CpuHeap& heap() override { return *heap_; }
  Mover* mover() override { return mover_.get(); }
  DiskTier* disk() override { return disk_.get(); }
  const AddressArena& arena() const { return *arena_; }

  Result<Allocation> allocate(uint64_t bytes, void* /*stream*/) override {
    return heap_->allocate(bytes);
  }
  void free(void* address) override { heap_->free(address); }

  void before_fork() override {
    if (disk_) disk_->freeze_before_fork();
  }
  void after_fork_in_parent() override {
    if (disk_) disk_->after_fork_in_parent();
  }

 private:
  explicit CpuDevice(uint64_t budget_bytes) : Device(budget_bytes) {}
  Status open_parts(const CpuDeviceConfig& config);
  Status open_access_barrier(Choice choice);

  std::unique_ptr<AddressArena> arena_;
  std::unique_ptr<ExtentTable> table_;
  std::unique_ptr<PageMap> page_map_;
  std::unique_ptr<AccessBarrier> access_barrier_;  // null where kernel or option refuse it
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<CpuHeap> heap_;
  std::unique_ptr<SlotMover> mover_;
};

}  // namespace tencache
