// SPDX-License-Identifier: Apache-2.0
//
// CudaAllocator implements PyTorch's CUDA allocator over the core, with one engine for each GPU in
// use. It serves everything that PyTorch's own allocator offers, or refuses it with an error that
// names the feature, the reason and the remedy. It is compiled against the installed torch, because
// minor versions of torch add functions in the middle of this interface.
//
// Note [What differs]. Allocated tensors may be in host memory, so more may be allocated than is
// reserved. A memory fraction bounds the budget: tensors leave the GPU before it runs out of
// memory. Memory of private pools stays on the GPU while the pool is used. getMemoryInfo() reports
// the driver's figures.
//
// The DataPtr's context is the data pointer and its deleter is raw_deleter(); CUDA graph trees rely
// on both. The deleter takes no allocator argument, so only one CudaAllocator is alive at a time.
//
// Threads: any, as with PyTorch's own. mutex_ is held while a GPU is opened or gets another memory
// fraction, and for bookkeeping, and never while observers are called.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/tencache_gpu.h"
#include "cuda_calls.h"
#include "cuda_history.h"
#include "cuda_pools.h"
#include "cuda_trackers.h"
#include "cuda_view.h"

// Whether the installed torch is this minor or a newer one.
#define TENCACHE_TORCH_SINCE(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

namespace tencache::shim {

namespace cuda_api = c10::cuda::CUDACachingAllocator;

class CudaAllocator final : public cuda_api::CUDAAllocator {
 public:
  /// Opens the engine of a GPU, which may use that fraction of the GPU's memory. Returns null, with
  /// *error filled, on failure.
  using Opener = std::function<tencache_gpu*(int ordinal, double fraction, tencache_error* error)>;

  CudaAllocator(const CudaCalls& calls, Opener open);
  /// Only tests destroy one: PyTorch keeps its allocator until the process ends. REQUIRES: no
  /// memory that it allocated is still in use.
  ~CudaAllocator() override;

  // c10::Allocator
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, size_t bytes) const override;

  /// Allocates on that device, whichever is current.
  void* allocate_on(c10::DeviceIndex device, size_t bytes, cudaStream_t stream);

  // c10::DeviceAllocator
  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool) override;
  using CUDAAllocator::recordStream;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  // CUDAAllocator: memory
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  void init(int device_count) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<cuda_api::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override { return true; }
  void cacheInfo(c10::DeviceIndex device, size_t* largest_bytes) override;
  void* getBaseAllocation(void* address, size_t* bytes) override;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;
  cuda_api::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override;
  cudaError_t memcpyAsync(void* target, int target_device, const void* source, int source_device,
                          size_t bytes, cudaStream_t stream, bool has_peer_access) override;
  std::string name() override { return "tencache"; }

  // CUDAAllocator: private pools
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<cuda_api::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                               c10::MempoolId_t pool) override;
  cuda_api::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<cuda_api::AllocatorState> state) override;

  // CUDAAllocator: other processes and GPUs
  cuda_api::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex accessed) override;

  // CUDAAllocator: observers
  bool isHistoryEnabled() override { return history_.is_recording(); }
  void recordHistory(bool enabled, cuda_api::CreateContextFn context_recorder, size_t entries_max,
                     cuda_api::RecordContext when, bool clear_history,
                     const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void attachOutOfMemoryObserver(cuda_api::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(cuda_api::AllocatorTraceTracker tracker) override;
#if TENCACHE_TORCH_SINCE(12)
  void attachOomRejectionObserver(cuda_api::OomRejectionObserver observer) override;
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override;
#endif
#if TENCACHE_TORCH_SINCE(13)
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override;
#endif
#if TENCACHE_TORCH_SINCE(14)
  bool supportsUserMetadata() override { return true; }
  void annotateMemory(const void* address, const std::string& metadata) override;
#endif

 private:
  struct Device {
    // The engine; null until the GPU is opened. A thread that holds mutex_ writes this pointer
    // once, after the arena: a thread that sees the pointer also sees the arena.
    std::atomic<tencache_gpu*> gpu{nullptr};
    tencache_arena arena = {0, 0};
    c10::DeviceIndex index = 0;
    CudaAllocator* allocator = nullptr;  // whose device it is
    double fraction = 1.0;               // guarded by mutex_
    CudaPools pools;
    // Counts since the last reset.
    std::atomic<int64_t> retry_count{0};
    std::atomic<int64_t> out_of_memory_count{0};
    std::atomic<int64_t> flush_count{0};  // times that the cache was emptied
  };

  static void delete_raw(void* address);
  Device& device_of(c10::DeviceIndex index);
  tencache_gpu* gpu_of(c10::DeviceIndex index);
  tencache_gpu* open_slow(c10::DeviceIndex index);
  Device* find_device(const void* address);
  void* malloc(c10::DeviceIndex index, size_t bytes, cudaStream_t stream);
  void* try_malloc(Device& device, size_t bytes, cudaStream_t stream, tencache_error* error);
  void* malloc_unrecorded(c10::DeviceIndex index, size_t bytes, cudaStream_t stream);
  void* malloc_recorded(c10::DeviceIndex index, size_t bytes, cudaStream_t stream);
  void* malloc_slow(c10::DeviceIndex index, size_t bytes, cudaStream_t stream,
                    tencache_error* error);
  bool free_more(c10::DeviceIndex index);
  bool drop_released_pools(c10::DeviceIndex index, const c10::MempoolId_t& only);
  [[noreturn]] void fail(c10::DeviceIndex index, size_t bytes, const tencache_error& error);
  static void note_core_event(void* device, int event, uintptr_t address, uint64_t bytes);
  const Device* find_recorded(const void* address, tencache_gpu_block* block,
                              CudaHistory::Request* request);
  void note_allocation(const void* address, CudaHistory::Request request);
  void note_free(const void* address);
  void snapshot_of(c10::DeviceIndex index, const c10::MempoolId_t& pool,
                   cuda_api::SnapshotInfo* info);
  void empty_cache_of(c10::DeviceIndex index, const c10::MempoolId_t& pool);
  void report_use(c10::DeviceIndex index, void* address, int64_t bytes);

  const CudaCalls calls_;
  const Opener open_;
  CudaHistory history_;
  SegmentTrackers trackers_;
  std::atomic<int> device_count_{0};  // 0 until init()
  std::array<Device, C10_COMPILE_TIME_MAX_GPUS> devices_;
  mutable std::mutex mutex_;
  std::vector<cuda_api::OutOfMemoryObserver> observers_;  // guarded by mutex_
};

}  // namespace tencache::shim
