// SPDX-License-Identifier: Apache-2.0
//
// KernelArguments: where the arguments of each kernel lie. The driver tells it (cuFuncGetParamInfo,
// since CUDA 12.4) and is asked once for each kernel. A launch passes an array of pointers without
// sizes, so nothing else tells how to read the arguments.
//
// A handle is valid until its module, library or context ends, and may belong to another kernel
// afterwards. So distrust() makes us ask about each kernel again. Earlier layouts are kept for
// ever, because a launch on another thread may be reading one. They are reused if the driver gives
// the same answer.
//
// Threads: any. mutex_ is held for bookkeeping alone, never across a call of the driver.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooks.h"

namespace tencache::guard {

struct KernelLayout {
  struct Argument {
    size_t offset = 0;
    size_t bytes = 0;
    bool operator==(const Argument&) const = default;
  };
  std::string name;
  std::vector<Argument> arguments;
  bool is_known = false;  // false: the driver does not tell

  bool operator==(const KernelLayout&) const = default;
};

class KernelArguments {
 public:
  /// The process's one instance. It is never destroyed: kernels are launched while the process
  /// exits.
  static KernelArguments& instance();

  /// The layout of the kernel's arguments. It lives for ever.
  const KernelLayout& layout(CUfunction kernel);
  /// Call before a module, library or context ends.
  void distrust() { generation_.fetch_add(1, std::memory_order_release); }

 private:
  KernelArguments() = default;
  struct Entry {
    uint64_t generation = 0;
    const KernelLayout* layout = nullptr;
  };
  const KernelLayout& find(CUfunction kernel, uint64_t generation);

  std::mutex mutex_;
  std::unordered_map<CUfunction, Entry> layouts_;  // guarded by mutex_
  std::deque<KernelLayout> all_;                   // guarded by mutex_
  std::atomic<uint64_t> generation_{1};
};

/// Adds the addresses that a launch with these arguments may use; returns false if we cannot tell.
bool add_arguments(const KernelLayout& layout, void* const* arguments, void* const* extra,
                   Addresses* addresses);

}  // namespace tencache::guard
