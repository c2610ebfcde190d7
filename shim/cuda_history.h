// SPDX-License-Identifier: Apache-2.0
//
// CudaHistory records what happened to GPU memory, for torch.cuda.memory._record_memory_history().
// It makes entries like those of PyTorch's own allocator, each with time, stream, stack and
// metadata, and keeps the stacks of live allocations. A segment appears when its addresses are
// first used and disappears when they are given up. No entry shows that a large tensor is in host
// memory for a while.
//
// While nothing is recorded and no stack is kept, an allocation and a free cost one relaxed load
// each (is_on()).
//
// Threads: any. Stacks are gathered before mutex_ is taken, because gathering may take the GIL.
// note_core_event() may be called with a lock of the core held; nothing here calls the core.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "abi/tencache_gpu.h"

namespace tencache::shim {

class CudaHistory {
 public:
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  using Annotation = c10::CachingDeviceAllocator::AnnotationEntry;
  using Context = std::shared_ptr<c10::GatheredContext>;
  using When = c10::CachingDeviceAllocator::RecordContext;

  /// What a thread is about to do. Segments that come and go meanwhile belong to it.
  struct Request {
    void* stream = nullptr;
    c10::MempoolId_t pool = {0, 0};
    Context context;
  };
  /// A Scope makes the request this thread's while it lives.
  class Scope {
   public:
    explicit Scope(const Request& request);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Request* const before_;
  };

  void configure(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder,
                 size_t entries_max, When when, bool clear,
                 const std::vector<std::string>& skipped_actions);
  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }
  /// Whether allocations and frees must be reported here.
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  /// This thread's stack, if stacks are recorded for such an event.
  Context gather(When when) const;

  void note_allocation(c10::DeviceIndex device, const tencache_gpu_block& block,
                       const Request& request);
  /// Call before the block is freed. note_core_event() completes the entry of a shared block.
  void note_free(c10::DeviceIndex device, const tencache_gpu_block& block, const Request& request);
  /// Adds an entry that belongs to this thread's request, if the thread has one.
  void note_out_of_memory(c10::DeviceIndex device, uint64_t free_bytes, size_t bytes);
  /// Adds an entry that belongs to no request.
  void note_snapshot(c10::DeviceIndex device, size_t active_bytes);
  void note_annotation(c10::DeviceIndex device,
                       const std::vector<std::pair<std::string, std::string>>& metadata);
  /// Notes an event that the core reports: `event` is TENCACHE_SEGMENT_MADE and so on.
  void note_core_event(c10::DeviceIndex device, int event, uintptr_t address, uint64_t bytes);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 14)
  /// Notes a remark of the program on an earlier allocation.
  void note_remark(c10::DeviceIndex device, const tencache_gpu_block& block, const Request& request,
                   const std::string& remark);
#endif

  /// The entries of each device, in order, with wall-clock times, for at least that many devices.
  std::vector<std::vector<Entry>> entries(size_t device_count) const;
  std::vector<Annotation> annotations() const;
  /// The stack that allocated what lies there; null when nobody knows it.
  Context context_of_block(uintptr_t address) const;
  Context context_of_segment(uintptr_t address) const;

  // The calling thread's metadata, which go into the entries that it makes.
  static void set_user_metadata(const std::string& metadata);
  static std::string user_metadata();
  static void push_compile_context(const std::string& context);
  static void pop_compile_context();

 private:
  void add(c10::DeviceIndex device, Entry::Action action, uintptr_t address, size_t bytes,
           const Request& request);
  void update_is_on();

  std::atomic<bool> is_recording_{false};
  std::atomic<bool> is_on_{false};
  std::atomic<c10::CachingDeviceAllocator::CreateContextFn> recorder_{nullptr};
  std::atomic<When> when_{When::NEVER};

  mutable std::mutex mutex_;                                // guards the rest
  mutable c10::ApproximateClockToUnixTimeConverter clock_;  // calibrated at both ends of a history
  size_t entries_max_ = 1;
  std::unordered_set<int> skipped_actions_;
  std::vector<std::deque<Entry>> entries_;  // by device
  std::deque<Annotation> annotations_;
  std::unordered_map<uintptr_t, Request> blocks_;    // with a stack, or freed and not yet complete
  std::unordered_map<uintptr_t, Request> segments_;  // those that appeared while we recorded
};

}  // namespace tencache::shim
