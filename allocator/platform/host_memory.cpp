// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: mapped memory that several threads touch. Each thread takes the next piece until none
// is left, so a slow thread delays the whole by one piece at most.
#include "platform/host_memory.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/service_thread.h"
#include "base/units.h"
#include "platform/numa.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // <linux/mman.h>; the C library may be older than the kernel
#endif

namespace tencache {
namespace {

// One thread touches this much at a time, which takes some milliseconds.
constexpr uint64_t kTouchedAtOnceBytes = 16 * kMiB;

/// Makes the pages of one range present. Returns 0, or the errno.
int populate(char* memory, uint64_t bytes, std::atomic<bool>& by_kernel) {
  if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  // Memory has run out or is broken: a touch would end the process.
  if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) return errno;
  // Otherwise Linux is older than 5.14, a filter does not know the advice, or a signal interrupted
  // the call.
  by_kernel.store(false, std::memory_order_relaxed);
  for (uint64_t offset = 0; offset < bytes; offset += kPageBytes) {
    *const_cast<volatile char*>(memory + offset) = 0;
  }
  return 0;
}

/// The touch of one range of memory by several threads. The memory is fresh, so its bytes are zero
/// before and after. The counters are relaxed because the threads are joined before run() reports
/// from them.
class Toucher {
 public:
  Toucher(char* memory, uint64_t bytes, HostPlacement& placement)
      : memory_(memory), bytes_(bytes), placement_(placement) {}

  /// Returns 0, or the errno of a piece that failed.
  int run(unsigned thread_count) {
    std::optional<cpu_set_t> processors;
    if (placement_.node >= 0) {
      const Result<cpu_set_t> of_node = processors_of_node(placement_.node);
      if (of_node.is_ok()) processors = of_node.value();
      placement_.threads_refusal = of_node.status().message();
    }
    const uint64_t piece_count = (bytes_ + kTouchedAtOnceBytes - 1) / kTouchedAtOnceBytes;
    const uint64_t wanted_count = std::clamp<uint64_t>(thread_count, 1, piece_count);
    // The calling thread belongs to the program, so it is not moved to other processors.
    if (wanted_count > 1 || processors) start_threads(wanted_count, processors);
    placement_.threads = std::max(1U, static_cast<unsigned>(threads_.size()));
    if (threads_.empty()) touch_pieces();
    for (std::thread& thread : threads_) thread.join();
    for (const Status& move : moves_) {
      if (!move.is_ok()) placement_.threads_refusal = move.message();
    }
    placement_.populated_by_kernel = by_kernel_;
    return error_;
  }

 private:
  void start_threads(uint64_t count, const std::optional<cpu_set_t>& processors) {
    threads_.reserve(count);
    moves_.resize(count);
    try {
      while (threads_.size() < count) {
        Status& move = moves_[threads_.size()];
        threads_.push_back(start_service_thread("tencache-touch", [this, processors, &move] {
          if (processors) move = run_on_processors(*processors);
          touch_pieces();
        }));
      }
    } catch (const std::system_error& error) {
      // A process limit may allow only some threads: fewer are slower. With none at all, the
      // calling thread touches everything.
      if (threads_.empty() && processors) {
        placement_.threads_refusal =
            status_from_errno(error.code().value(), "cannot start a thread").message();
      }
    }
  }

  void touch_pieces() {
    while (error_.load(std::memory_order_relaxed) == 0) {
      const uint64_t offset =
          next_offset_.fetch_add(kTouchedAtOnceBytes, std::memory_order_relaxed);
      if (offset >= bytes_) return;
      const uint64_t bytes = std::min(kTouchedAtOnceBytes, bytes_ - offset);
      const int error_number = populate(memory_ + offset, bytes, by_kernel_);
      if (error_number != 0) error_.store(error_number, std::memory_order_relaxed);
    }
  }

  char* const memory_;
  const uint64_t bytes_;
  HostPlacement& placement_;
  std::vector<std::thread> threads_;
  std::vector<Status> moves_;  // of each thread to its processors
  std::atomic<uint64_t> next_offset_{0};
  std::atomic<int> error_{0};
  std::atomic<bool> by_kernel_{true};
};

Status no_memory(int error_number, const char* attempt, uint64_t bytes) {
  const Status failed = status_from_errno(
      error_number, std::string(attempt) + " " + format_bytes(bytes) + " of host memory");
  return {failed.code(), failed.message() +
                             ". Free memory, raise the limit on this process (ulimit -v) or on its "
                             "container, or lower the budget of host memory."};
}

}  // namespace

char* map_huge_aligned(uint64_t bytes, int flags) {
  const uint64_t mapped_bytes = bytes + kHugePageBytes;
  void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<char*>(mapped);
  const uint64_t before_bytes = round_up(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) -
                                reinterpret_cast<uintptr_t>(begin);
  // The parts cut off on both sides were never touched, so they hold no memory; a failure to unmap
  // them (map count) would only leave addresses behind.
  if (before_bytes > 0) munmap(begin, before_bytes);
  munmap(begin + before_bytes + bytes, kHugePageBytes - before_bytes);
  // The call is only advice: a refusal costs time. Smaller memory gains nothing from it, and merges
  // with its neighbours without it (vm.max_map_count).
  if (bytes >= kHugePageBytes) (void)madvise(begin + before_bytes, bytes, MADV_HUGEPAGE);
  return begin + before_bytes;
}

Result<HostMemory> HostMemory::map(const HostMemoryRequest& request) {
  TENCACHE_CHECK(request.bytes > 0 && request.bytes % kPageBytes == 0, "%lu bytes", request.bytes);
  char* const memory =
      map_huge_aligned(request.bytes, request.is_shared ? MAP_SHARED : MAP_PRIVATE);
  if (memory == nullptr) return no_memory(errno, "Cannot map", request.bytes);
  if (!request.is_shared) (void)madvise(memory, request.bytes, MADV_DONTFORK);
  HostPlacement placement;
  placement.node = request.node;
  if (request.node >= 0) {
    placement.bind_refusal = prefer_node(memory, request.bytes, request.node).message();
  }
  HostMemory result(memory, request.bytes, HostPlacement());
  const int error_number = Toucher(memory, request.bytes, placement).run(request.threads);
  if (error_number != 0) return no_memory(error_number, "Cannot fill", request.bytes);
  result.placement_ = std::move(placement);
  return result;
}

}  // namespace tencache
