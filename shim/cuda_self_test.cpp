// SPDX-License-Identifier: Apache-2.0
#include "cuda_self_test.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <array>

#include "cuda_allocator.h"
#include "cuda_doors.h"
#include "vtables.h"

// Vtables that libtorch exports, by their mangled names.
extern "C" {
extern const char kDeviceAllocatorVtable[] asm("_ZTVN3c1015DeviceAllocatorE");
extern const char kPluggableAllocatorVtable[] asm(
    "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE");
}

namespace tencache::shim {
namespace {

using Device = c10::DeviceAllocator;
using Cuda = cuda_api::CUDAAllocator;
using RecordStream = void (Cuda::*)(const c10::DataPtr&, c10::cuda::CUDAStream);

std::string why_device_memory_differs() {
  std::string difference = why_slots_differ(
      "c10::DeviceAllocator", exported_slots(kDeviceAllocatorVtable), slot_count<Device>(), {});
  if (!difference.empty()) return difference;
  const std::array functions = {
      NamedSlot{slot_of(&Device::allocate), "allocate"},
      NamedSlot{slot_of(&Device::raw_deleter), "raw_deleter"},
      NamedSlot{slot_of(&Device::initialized), "initialized"},
      NamedSlot{slot_of(&Device::emptyCache), "emptyCache"},
      NamedSlot{slot_of(&Device::getDeviceStats), "getDeviceStats"},
      NamedSlot{slot_of(&Device::resetAccumulatedStats), "resetAccumulatedStats"},
      NamedSlot{slot_of(&Device::resetPeakStats), "resetPeakStats"},
      NamedSlot{slot_of(&Cuda::raw_alloc), "raw_alloc"},
      NamedSlot{slot_of(&Cuda::raw_alloc_with_stream), "raw_alloc_with_stream"},
      NamedSlot{slot_of(&Cuda::raw_delete), "raw_delete"},
      NamedSlot{slot_of(&Cuda::init), "init"},
      NamedSlot{slot_of(&Cuda::getMemoryFraction), "getMemoryFraction"},
      NamedSlot{slot_of(&Cuda::setMemoryFraction), "setMemoryFraction"},
      NamedSlot{slot_of(&Cuda::getExpandableSegmentSizes), "getExpandableSegmentSizes"},
      NamedSlot{slot_of(&Cuda::cacheInfo), "cacheInfo"},
      NamedSlot{slot_of(&Cuda::getBaseAllocation), "getBaseAllocation"},
      NamedSlot{slot_of(static_cast<RecordStream>(&Cuda::recordStream)), "recordStream"},
      NamedSlot{slot_of(&Cuda::snapshot), "snapshot"},
      NamedSlot{slot_of(&Cuda::beginAllocateToPool), "beginAllocateToPool"},
      NamedSlot{slot_of(&Cuda::endAllocateToPool), "endAllocateToPool"},
      NamedSlot{slot_of(&Cuda::releasePool), "releasePool"},
      NamedSlot{slot_of(&Cuda::shareIpcHandle), "shareIpcHandle"},
      NamedSlot{slot_of(&Cuda::getIpcDevPtr), "getIpcDevPtr"},
      NamedSlot{slot_of(&Cuda::recordHistory), "recordHistory"},
      NamedSlot{slot_of(&Cuda::attachOutOfMemoryObserver), "attachOutOfMemoryObserver"},
      NamedSlot{slot_of(&Cuda::attachAllocatorTraceTracker), "attachAllocatorTraceTracker"},
      NamedSlot{slot_of(&Cuda::enablePeerAccess), "enablePeerAccess"},
      NamedSlot{slot_of(&Cuda::memcpyAsync), "memcpyAsync"},
      NamedSlot{slot_of(&Cuda::getCheckpointState), "getCheckpointState"},
      NamedSlot{slot_of(&Cuda::setCheckpointPoolState), "setCheckpointPoolState"},
      NamedSlot{slot_of(&Cuda::name), "name"},
  };
  return why_slots_differ("CUDAAllocator", exported_slots(kPluggableAllocatorVtable),
                          slot_count<torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator>(),
                          functions);
}

}  // namespace

std::string why_cuda_layouts_differ() {
  std::string difference = why_device_memory_differs();
  const at::HostAllocator* const pinned = present_pinned_allocator();
  if (!difference.empty() || pinned == nullptr) return difference;
  return why_slots_differ("at::HostAllocator", slots_of_object(pinned),
                          slot_count<at::HostAllocator>(), {});
}

}  // namespace tencache::shim
