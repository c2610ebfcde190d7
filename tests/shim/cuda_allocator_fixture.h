// SPDX-License-Identifier: Apache-2.0
//
// CudaAllocatorTest and CudaPoolTest: the CUDA allocator of the shim over the simulated driver,
// with a current device and stream that a test chooses. At the end the driver must have everything
// back. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi/cuda/open_gpu.h"
#include "abi/error_text.h"
#include "base/units.h"
#include "cuda_allocator.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"

namespace tencache::shim {

using c10::CachingAllocator::StatArray;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using Id = c10::MempoolId_t;

inline constexpr uint64_t kExtent = 4 * kMiB;

// The state that the functions of CudaCalls see.
struct CurrentCuda {
  SimulatedDriver* driver = nullptr;
  c10::DeviceIndex device = 0;
  cudaStream_t stream = nullptr;
  int synchronize_count = 0;
  std::function<void()> on_synchronize;  // runs while the device is waited for
  int peer_copy_count = 0;
};
inline CurrentCuda g_current;

inline cudaError_t as_runtime(CUresult result) { return static_cast<cudaError_t>(result); }

inline CUdeviceptr as_device(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

inline cudaError_t copy_async(void* target, const void* source, size_t bytes, cudaStream_t stream) {
  return as_runtime(g_current.driver->api().cuMemcpyDtoDAsync(as_device(target), as_device(source),
                                                              bytes, stream));
}

inline CudaCalls test_calls() {
  CudaCalls calls;
  calls.current_device = [] { return g_current.device; };
  calls.current_stream = [](c10::DeviceIndex) { return g_current.stream; };
  calls.handle_of = [](const c10::cuda::CUDAStream& stream) {
    return reinterpret_cast<cudaStream_t>(stream.unwrap().id());
  };
  calls.synchronize = [](c10::DeviceIndex) {
    ++g_current.synchronize_count;
    if (g_current.on_synchronize) g_current.on_synchronize();
    g_current.driver->wait_until_idle();
  };
  calls.copy = [](void* target, const void* source, size_t bytes) {
    memcpy(target, source, bytes);
  };
  calls.copy_async = &copy_async;
  calls.enable_peer = [](c10::DeviceIndex, c10::DeviceIndex) {};
  calls.copy_peer_async = [](void* target, int, const void* source, int, size_t bytes,
                             cudaStream_t stream) {
    ++g_current.peer_copy_count;
    return copy_async(target, source, bytes, stream);
  };
  return calls;
}

inline c10::cuda::CUDAStream as_torch(CUstream stream) {
  const c10::Stream general(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0),
                            reinterpret_cast<c10::StreamId>(stream));
  return c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, general);
}

inline int64_t all(const StatArray& stats) { return stats[0].current; }

inline std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

class CudaAllocatorTest : public ::testing::Test {
 protected:
  CudaAllocatorTest() {
    config_.budget_bytes = 64 * kMiB;
    config_.heap.extent_min_bytes = 2 * kMiB;
    config_.probe_bytes = 0;
  }
  ~CudaAllocatorTest() override {
    kept_.clear();
    if (!driver_) return;
    driver_->wait_until_idle();
    allocator_.reset();
    for (const CUstream stream : streams_) driver_->api().cuStreamDestroy(stream);
    context_.reset();
    EXPECT_EQ(driver_->leaks(), "");
  }
  // Lets up to this many bytes leave the GPU for host memory; without this call nothing leaves.
  // Call before start().
  void spill_to_host(uint64_t budget_bytes) {
    config_.host.emplace();
    config_.host->budget_bytes = budget_bytes;
  }
  void start(int device_count = 1) {
    driver_.emplace(SimulatedDriverConfig{.device_count = device_count});
    context_.emplace(driver_->api());
    g_current = {};
    g_current.driver = &*driver_;
    allocator_ = std::make_unique<CudaAllocator>(
        test_calls(), [this](int ordinal, double fraction, tencache_error* error) {
          CudaDeviceConfig config = config_;
          config.ordinal = ordinal;
          Result<tencache_gpu*> gpu = open_gpu(driver_->api(), config, engine_config_);
          if (gpu.is_ok()) {
            EXPECT_EQ(tencache_gpu_set_fraction(gpu.value(), fraction, error), TENCACHE_OK);
            return gpus_[ordinal] = gpu.value();
          }
          report(gpu.status(), error);
          return static_cast<tencache_gpu*>(nullptr);
        });
    cuda_ = allocator_.get();
    cuda_->init(device_count);
    stream_ = make_stream();
    g_current.stream = stream_;
  }
  CUstream make_stream(int device = 0) {
    CUstream stream = nullptr;
    context_.emplace(driver_->api(), device);  // a stream belongs to the GPU that is current
    EXPECT_EQ(driver_->api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    context_.emplace(driver_->api());
    return streams_.emplace_back(stream);
  }
  c10::DataPtr allocate(uint64_t bytes) { return cuda_->allocate(bytes); }
  void* keep(uint64_t bytes) { return kept_.emplace_back(cuda_->allocate(bytes)).get(); }
  void op(void* address) {
    Engine& engine = *gpus_[0]->engine;
    engine.open_op(0, std::vector<Access>{{address, AccessMode::kWrite}}, stream_);
    engine.gate().close();
  }
  uint64_t free_bytes() { return cuda_->getMemoryInfo(0).first; }

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;
  CudaDeviceConfig config_;
  EngineConfig engine_config_;
  std::map<int, tencache_gpu*> gpus_;
  std::unique_ptr<CudaAllocator> allocator_;
  CUDAAllocator* cuda_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUstream> streams_;
  std::vector<c10::DataPtr> kept_;
};

class CudaPoolTest : public CudaAllocatorTest {
 protected:
  static constexpr Id kGraph = {1, 0};
  void begin(Id id = kGraph) {
    cuda_->beginAllocateToPool(0, id, [this](cudaStream_t stream) { return stream == stream_; });
  }
  void end(Id id = kGraph) { cuda_->endAllocateToPool(0, id); }
  Id pool_of(const void* address) {
    for (const auto& segment : cuda_->snapshot({0, 0}, false).segments) {
      if (reinterpret_cast<size_t>(address) - segment.address < segment.total_size) {
        return segment.owner_private_pool_id;
      }
    }
    ADD_FAILURE() << "in no segment";
    return {};
  }
};

}  // namespace tencache::shim
