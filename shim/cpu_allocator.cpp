// SPDX-License-Identifier: Apache-2.0
#include "cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

#include "abi/tencache.h"
#include "torch_error.h"

namespace tencache::shim {
namespace {

// PyTorch replaces an allocator if the new priority is at least the current one; its own is 0.
constexpr uint8_t kPriorityMax = 255;

void free_memory(void* address) {
  c10::profiledCPUMemoryReporter().Delete(address);
  tencache_free(address);
}

struct CpuAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* address = nullptr;
    if (bytes > 0) {
      tencache_error error;
      address = tencache_allocate(bytes, &error);
      if (address == nullptr) [[unlikely]] {
        c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
        throw_out_of_memory(error);
      }
    }
    c10::profiledCPUMemoryReporter().New(address, bytes);
    return {address, address, &free_memory, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

}  // namespace

void install_cpu_allocator() {
  // The allocator is never destroyed: storages outlive static destruction.
  static auto* const allocator = new CpuAllocator;
  c10::SetCPUAllocator(allocator, kPriorityMax);
}

}  // namespace tencache::shim
