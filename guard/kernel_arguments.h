// SPDX-License-Identifier: Apache-2.0
//
// KernelArguments: where the arguments of each kernel lie, as the driver says
// (cuFuncGetParamInfo, since CUDA 12.4), asked once for each kernel. A launch hands over an array
// of pointers and no sizes, so without it the arguments cannot be read.
//
// A handle is good until its module is unloaded, and may then be another kernel's: from distrust()
// on each is asked about again. What was found before is kept for good, because a launch on another
// thread may be reading it, and served again where the driver's answer is the same.
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
  /// One for the process, which is never destroyed: kernels are launched while it exits.
  static KernelArguments& instance();

  /// Lives for ever.
  const KernelLayout& layout(CUfunction kernel);
  /// A module is about to be unloaded.
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

/// What a launch with these arguments may use; false where that cannot be told.
bool add_arguments(const KernelLayout& layout, void* const* arguments, void* const* extra,
                   Addresses* addresses);

}  // namespace tencache::guard
