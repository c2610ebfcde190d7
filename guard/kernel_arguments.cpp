// SPDX-License-Identifier: Apache-2.0
#include "kernel_arguments.h"

#include <algorithm>
#include <array>
#include <utility>

#include "driver_library.h"

namespace tencache::guard {
namespace {

using ArgumentInfo = CUresult (*)(void* kernel, size_t index, size_t* offset, size_t* bytes);
using NameOf = CUresult (*)(const char** name, void* kernel);

// One of the kernels that this thread launched last. Their table lets a launch skip the lock.
struct Recent {
  CUfunction kernel = nullptr;
  uint64_t generation = 0;
  const KernelLayout* layout = nullptr;
};
constexpr size_t kRecentCount = 64;
thread_local constinit std::array<Recent, kRecentCount> t_recent = {};

size_t place_of(CUfunction kernel) {
  const auto key = reinterpret_cast<uintptr_t>(kernel);
  return ((key >> 4) ^ (key >> 12)) % kRecentCount;
}

// Lists the arguments in order. Returns false if `info` is null or refuses the handle.
bool list_arguments(ArgumentInfo info, CUfunction kernel, KernelLayout* layout) {
  if (info == nullptr) return false;
  for (size_t index = 0;; ++index) {
    KernelLayout::Argument argument;
    const CUresult result = info(kernel, index, &argument.offset, &argument.bytes);
    // This is the answer past the last argument.
    if (result == CUDA_ERROR_INVALID_VALUE) return true;
    if (result != CUDA_SUCCESS) return false;
    layout->arguments.push_back(argument);
  }
}

// Asks for the arguments and the name, by the functions for both kinds of handles, because CUDA's
// runtime passes a CUkernel where a CUfunction is expected. A function refuses a handle of the
// other kind, or says that the handle has no arguments.
KernelLayout ask_driver(CUfunction kernel) {
  static const auto of_function = driver_function<ArgumentInfo>("cuFuncGetParamInfo");
  static const auto of_kernel = driver_function<ArgumentInfo>("cuKernelGetParamInfo");
  static const auto function_name = driver_function<NameOf>("cuFuncGetName");
  static const auto kernel_name = driver_function<NameOf>("cuKernelGetName");
  KernelLayout layout;
  for (const ArgumentInfo info : {of_function, of_kernel}) {
    KernelLayout found;
    if (!list_arguments(info, kernel, &found)) continue;
    layout = std::move(found);
    layout.is_known = true;
    if (!layout.arguments.empty()) break;
  }
  const char* name = nullptr;
  for (const NameOf name_of : {function_name, kernel_name}) {
    if (name_of != nullptr && name_of(&name, kernel) == CUDA_SUCCESS && name != nullptr) break;
    name = nullptr;
  }
  layout.name = std::string("launch::") + (name != nullptr ? name : "kernel");
  return layout;
}

}  // namespace

KernelArguments& KernelArguments::instance() {
  static auto* const made = new KernelArguments;
  return *made;
}

const KernelLayout& KernelArguments::layout(CUfunction kernel) {
  Recent& recent = t_recent[place_of(kernel)];
  const uint64_t generation = generation_.load(std::memory_order_acquire);
  if (recent.kernel != kernel || recent.generation != generation) [[unlikely]] {
    recent = {kernel, generation, &find(kernel, generation)};
  }
  return *recent.layout;
}

const KernelLayout& KernelArguments::find(CUfunction kernel, uint64_t generation) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = layouts_.find(kernel);
    if (found != layouts_.end() && found->second.generation >= generation) {
      return *found->second.layout;
    }
  }
  KernelLayout layout = ask_driver(kernel);
  const std::lock_guard lock(mutex_);
  Entry& entry = layouts_[kernel];
  if (entry.layout == nullptr || *entry.layout != layout) {
    entry.layout = &all_.emplace_back(std::move(layout));
  }
  entry.generation = std::max(entry.generation, generation);
  return *entry.layout;
}

bool add_arguments(const KernelLayout& layout, void* const* arguments, void* const* extra,
                   Addresses* addresses) {
  constexpr uint32_t kMode = TENCACHE_READ | TENCACHE_WRITE;
  if (arguments != nullptr) {
    if (!layout.is_known) return false;
    for (size_t index = 0; index < layout.arguments.size(); ++index) {
      const KernelLayout::Argument& argument = layout.arguments[index];
      addresses->add_words(arguments[index], argument.bytes, argument.offset, kMode);
    }
    return true;
  }
  // One block holds all arguments; the list is key, value, key, value, end.
  const void* block = nullptr;
  size_t bytes = 0;
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) block = extra[1];
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(extra[1]);
  }
  if (block != nullptr) addresses->add_words(block, bytes, 0, kMode);
  return true;
}

}  // namespace tencache::guard
