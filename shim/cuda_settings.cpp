// SPDX-License-Identifier: Apache-2.0
#include "cuda_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <string_view>

namespace tencache::shim {
namespace {

struct Ignored {
  const char* key;  // or a common prefix of several
  const char* reason;
};

constexpr const char* kSizes = "tensors of 2 MiB and more have memory of exactly their size";
constexpr const char* kPinned = "pinned memory comes from tencache, in exact sizes";

constexpr std::array kIgnored = {
    Ignored{"max_split_size_mb", kSizes},
    Ignored{"max_non_split_rounding_mb", kSizes},
    Ignored{"large_segment_size_mb", kSizes},
    Ignored{"roundup_power2_divisions", kSizes},
    Ignored{"garbage_collection_threshold", "free memory goes back when room is needed"},
    Ignored{"expandable_segments", "every large tensor has addresses of its own"},
    Ignored{"release_lock_on", "no lock is held while the driver is asked for memory"},
    Ignored{"graph_capture_record_stream_reuse", "what streams use in a capture stays the graph's"},
    Ignored{"throw_on_cudamalloc_oom", "tensors leave the GPU before memory runs out"},
    Ignored{"backend", "tencache takes the place of every backend"},
    Ignored{"pinned_", kPinned},
};

std::string reason_for(const std::string& key) {
  const auto* const found = std::ranges::find_if(
      kIgnored, [&](const Ignored& ignored) { return key.starts_with(ignored.key); });
  return found != kIgnored.end() ? found->reason : "tencache does not know it";
}

constexpr std::array kSettingsVariables = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};
// Why PyTorch refused the settings when they were read early; null if it did not.
// read_settings_with_backend() writes it before the allocator is in place, and nobody writes it
// again.
std::exception_ptr refusal;

constexpr std::array kRegistrationVariables = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
                                               "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"};
// What the process groups take as yes. They refuse a value that is neither yes nor no.
constexpr std::array kYes = {"y", "yes", "1", "t", "true"};

// Whether the value asks for what tencache does anyway.
bool asks_for_nothing(const std::string& value) { return value == "False" || value == "native"; }

}  // namespace

void read_settings_with_backend() {
  const bool names_backend = std::ranges::any_of(kSettingsVariables, [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && std::string_view(value).find("backend") != std::string_view::npos;
  });
  if (!names_backend) return;
  try {
    (void)configured_memory_fraction();
  } catch (...) {
    refusal = std::current_exception();
  }
}

double configured_memory_fraction() {
  if (refusal != nullptr) std::rethrow_exception(refusal);
  return c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::per_process_memory_fraction();
}

std::string ignored_settings(const std::string& settings, bool is_caching_off) {
  std::string text;
  const auto add = [&](const std::string& name, const std::string& reason) {
    text += (text.empty() ? "" : "; ") + name + " (" + reason + ")";
  };
  const c10::CachingAllocator::ConfigTokenizer tokens(settings);
  for (size_t at = 0; at + 2 < tokens.size(); ++at) {
    const std::string& key = tokens[at];
    if (key == "," || tokens[at + 1] != ":") continue;
    if (key != "per_process_memory_fraction" && !asks_for_nothing(tokens[at + 2])) {
      add(key, reason_for(key));
    }
    at = tokens.skipKey(at);
  }
  if (is_caching_off) {
    add("PYTORCH_NO_CUDA_MEMORY_CACHING",
        "freed memory is kept; torch.cuda.empty_cache() gives it back");
  }
  if (text.empty()) return text;
  return "tencache ignores these settings of PyTorch's CUDA allocator: " + text + ".";
}

std::string ignored_settings() {
  // PyTorch's own allocator also checks only that the variable is set.
  const bool is_caching_off = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
  return ignored_settings(c10::CachingAllocator::getAllocatorSettings(), is_caching_off);
}

bool is_all_memory_registered() {
  return std::ranges::any_of(kRegistrationVariables, [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr &&
           std::ranges::any_of(kYes, [&](const char* yes) { return strcasecmp(value, yes) == 0; });
  });
}

}  // namespace tencache::shim
