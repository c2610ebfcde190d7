// SPDX-License-Identifier: Apache-2.0
#include "cuda_doors.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <atomic>

#include "abi/tencache.h"
#include "cuda_errors.h"
#include "cuda_settings.h"

namespace tencache::shim {
namespace {

// PyTorch replaces an allocator if the new priority is at least the current one. Its own allocators
// have priority 0, so this one replaces any.
constexpr uint8_t kPriorityMax = 255;

std::atomic<cudaStream_t (*)(c10::DeviceIndex)> current_stream_of{nullptr};

void* current_stream(int ordinal) {
  return current_stream_of.load(std::memory_order_relaxed)(static_cast<c10::DeviceIndex>(ordinal));
}

// Bytes that the allocator has taken from the GPUs; 0 if it does not tell.
int64_t reserved_bytes(cuda_api::CUDAAllocator& allocator, int device_count) {
  int64_t bytes = 0;
  for (int ordinal = 0; ordinal < device_count; ++ordinal) {
    try {
      bytes += allocator.getDeviceStats(static_cast<c10::DeviceIndex>(ordinal))
                   .reserved_bytes[0]
                   .current;
    } catch (const c10::Error&) {
      return 0;
    }
  }
  return bytes;
}

}  // namespace

std::string why_no_cuda_doors(const CudaCalls& calls) {
  cuda_api::CUDAAllocator* const present = cuda_api::allocator.load();
  if (present == nullptr || !present->initialized()) return "";
  const int64_t bytes = reserved_bytes(*present, calls.device_count());
  if (bytes == 0) return "";
  return "PyTorch's CUDA allocator \"" + present->name() + "\" holds " +
         cuda_size_text(static_cast<uint64_t>(bytes)) +
         " of GPU memory already, which would stay outside the budget. Enable tencache before the "
         "first CUDA tensor: at the top of the program, or with `tencache run -- ...`.";
}

void install_stream_callback(const CudaCalls& calls) {
  current_stream_of.store(calls.current_stream);
  tencache_set_stream_callback(&current_stream);
}

at::HostAllocator* present_pinned_allocator() { return at::getHostAllocator(at::kCUDA); }

void install_pinned_door(PinnedAllocator& allocator) {
  at::setHostAllocator(at::kCUDA, &allocator, kPriorityMax);
}

void install_cuda_doors(CudaAllocator& allocator, const CudaCalls& calls) {
  install_stream_callback(calls);
  read_settings_with_backend();
  cuda_api::CUDAAllocator* const present = cuda_api::allocator.load();
  const bool is_initialized = present != nullptr && present->initialized();
  cuda_api::allocator.store(&allocator);
  c10::SetAllocator(c10::DeviceType::CUDA, &allocator, kPriorityMax);
  // PyTorch accepts this only while the allocator is not initialised.
  if (calls.publish != nullptr) calls.publish(allocator);
  // PyTorch calls init() once, when it initialises CUDA; an allocator that comes later missed it.
  if (is_initialized) allocator.init(calls.device_count());
}

}  // namespace tencache::shim
