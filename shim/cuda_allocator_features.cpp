// SPDX-License-Identifier: Apache-2.0
//
// CudaAllocator: private pools, access by other GPUs, observers, and the features it refuses.
#include <c10/util/Exception.h>

#include <utility>

#include "cuda_allocator.h"
#include "cuda_errors.h"
#include "cuda_settings.h"

namespace tencache::shim {

// Private pools.

void CudaAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  tencache_gpu* const gpu = gpu_of(device);
  // Tensors that a graph names during its capture must stay. Watch ops from here on; later nobody
  // could tell which they were.
  tencache_gpu_watch_ops(gpu);
  device_of(device).pools.begin(gpu, pool, std::move(filter));
}

void CudaAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  device_of(device).pools.end(pool);
}

void CudaAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  device_of(device).pools.remove_user(pool);
}

int CudaAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  return device_of(device).pools.user_count(pool);
}

void CudaAllocator::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                       std::shared_ptr<CUDAAllocator> allocator) {
  if (allocator != nullptr && allocator.get() != this) {
    throw_unsupported("a torch.cuda.MemPool with an allocator of its own",
                      "tencache would know nothing of its memory.",
                      "Leave out the pool's allocator, or run without tencache.");
  }
  tencache_gpu* const gpu = gpu_of(device);
  device_of(device).pools.add_user(gpu, pool);
}

void CudaAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use_on_oom) {
  device_of(device).pools.user_count(pool);  // an error when there is no such pool
  if (!use_on_oom) return;
  throw_unsupported("MemPool(use_on_oom=True)", "memory freed in a pool serves that pool alone.",
                    "Delete the pool and call torch.cuda.empty_cache() to free its memory.");
}

void CudaAllocator::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  device_of(device).pools.user_count(pool);
  throw_unsupported("MemPool(no_split=True)", "small blocks are always cut from larger ones.",
                    "Leave out no_split, or run without tencache.");
}

bool CudaAllocator::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                             const std::unordered_set<void*>& expected) {
  return device_of(device).pools.alive_in(pool) == expected;
}

std::shared_ptr<cuda_api::AllocatorState> CudaAllocator::getCheckpointState(c10::DeviceIndex device,
                                                                            c10::MempoolId_t pool) {
  return device_of(device).pools.state_of(gpu_of(device), pool);
}

// Puts a private pool back into an earlier state. Nobody calls raw_delete() for what is freed here:
// the caller takes the deleters away from the tensors there, and gives the new pointers to those of
// them that live on.
cuda_api::CheckpointDelta CudaAllocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<cuda_api::AllocatorState> state) {
  const auto wanted = std::dynamic_pointer_cast<CudaPoolState>(state);
  TORCH_CHECK(wanted != nullptr, "The state of the private pool was not made by tencache.");
  CudaPools& pools = device_of(device).pools;
  // Once the blocks are freed, nobody can say any more what they were.
  std::vector<std::pair<tencache_gpu_block, CudaHistory::Request>> before;
  CudaHistory::Context context;
  if (history_.is_on()) {
    context = history_.gather(CudaHistory::When::STATE);
    for (void* address : pools.alive_in(wanted->pool())) {
      auto& [block, request] = before.emplace_back();
      find_recorded(address, &block, &request);
      block.is_shared = 0;  // the core waits for other streams at once
    }
  }
  const CudaPools::Restored restored = pools.restore(gpu_of(device), *wanted);
  for (auto& [block, request] : before) history_.note_free(device, block, request);
  cuda_api::CheckpointDelta delta;
  delta.ptrs_freed = restored.freed;
  for (void* address : restored.allocated) {
    if (history_.is_on()) note_allocation(address, {nullptr, {0, 0}, context});
    delta.dataptrs_allocd.emplace_back(address, address, &delete_raw,
                                       c10::Device(c10::DeviceType::CUDA, device));
  }
  return delta;
}

// Other processes and GPUs.

cuda_api::ShareableHandle CudaAllocator::shareIpcHandle(void*) {
  throw_unsupported("sharing CUDA tensors with other processes",
                    "another process would not see that their memory moves.",
                    "Send a copy in host memory: tensor.cpu().");
}

std::shared_ptr<void> CudaAllocator::getIpcDevPtr(std::string) {
  throw_unsupported("CUDA tensors of other processes", "their memory is not tencache's to map.",
                    "Receive a copy in host memory, and move it to the GPU here.");
}

// PyTorch asks once for each pair of peers, before the first copy between them.
void CudaAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex accessed) {
  calls_.enable_peer(device, accessed);
  tencache_error error = {};
  TORCH_CHECK(tencache_gpu_add_peer(gpu_of(accessed), device, &error) == 0, error.message);
}

void CudaAllocator::enable(bool value) {
  if (value) return;
  throw_unsupported("switching caching off", "memory allocated earlier would be lost.",
                    "Run without tencache instead.");
}

// Observers.

void CudaAllocator::recordHistory(bool enabled, cuda_api::CreateContextFn context_recorder,
                                  size_t entries_max, cuda_api::RecordContext when,
                                  bool clear_history,
                                  const std::vector<std::string>& skip_actions) {
  history_.configure(enabled, context_recorder, entries_max, when, clear_history, skip_actions);
}

void CudaAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  history_.note_annotation(calls_.current_device(), metadata);
}

void CudaAllocator::pushCompileContext(std::string& context) {
  CudaHistory::push_compile_context(context);
}

void CudaAllocator::popCompileContext() { CudaHistory::pop_compile_context(); }

void CudaAllocator::setUserMetadata(const std::string& metadata) {
  CudaHistory::set_user_metadata(metadata);
}

std::string CudaAllocator::getUserMetadata() { return CudaHistory::user_metadata(); }

void CudaAllocator::attachOutOfMemoryObserver(cuda_api::OutOfMemoryObserver observer) {
  const std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

// A tracker alone is not refused: from torch 2.15 on, NCCL's process groups always attach one, for
// pools that a program registers.
void CudaAllocator::attachAllocatorTraceTracker(cuda_api::AllocatorTraceTracker tracker) {
  if (is_all_memory_registered()) {
    throw_unsupported("NCCL's registration of all of the allocator's memory",
                      "large tensors leave the GPU and come back elsewhere.",
                      "Unset TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK.");
  }
  trackers_.attach(std::move(tracker));
}

#if TENCACHE_TORCH_SINCE(12)
// We reject no request before trying it, but for one of an exabyte, so this observer has nothing to
// see.
void CudaAllocator::attachOomRejectionObserver(cuda_api::OomRejectionObserver) {}

std::shared_ptr<c10::GatheredContext> CudaAllocator::getContextForPointer(const void* address) {
  tencache_gpu_block block = {};
  CudaHistory::Request request;
  if (find_recorded(address, &block, &request) == nullptr) return nullptr;
  return history_.context_of_block(block.address);
}
#endif

#if TENCACHE_TORCH_SINCE(13)
c10::DataPtr CudaAllocator::allocateWithAddress(size_t, void*) {
  throw_unsupported("allocation at a given address", "addresses are the core's to choose.",
                    "Allocate anywhere, and copy.");
}
#endif

#if TENCACHE_TORCH_SINCE(14)
void CudaAllocator::annotateMemory(const void* address, const std::string& metadata) {
  tencache_gpu_block block = {};
  CudaHistory::Request request;
  const Device* const device = find_recorded(address, &block, &request);
  if (device == nullptr) return;
  request.context = history_.gather(CudaHistory::When::ALLOC);
  history_.note_remark(device->index, block, request, metadata);
}
#endif

}  // namespace tencache::shim
