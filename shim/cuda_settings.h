// SPDX-License-Identifier: Apache-2.0
//
// The settings of PyTorch's own CUDA allocator (PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF,
// PYTORCH_NO_CUDA_MEMORY_CACHING), as far as they concern tencache's. PyTorch reads and checks
// them. tencache serves per_process_memory_fraction and names the settings that have no effect. It
// also reads the one setting of NCCL's process groups that is about the allocator. Threads: any.
#pragma once

#include <string>

namespace tencache::shim {

/// Call while PyTorch's own allocator is still in place. Where the settings name a `backend`, this
/// makes PyTorch read them: PyTorch compares the backend with the name of the allocator in place.
/// Otherwise PyTorch reads them when it first needs them, which is later.
void read_settings_with_backend();

/// Returns the share of each GPU's memory that the settings allow, or 1 if they say nothing. Throws
/// what PyTorch throws at settings that it refuses.
double configured_memory_fraction();

/// Returns the names of the settings that have no effect, with the reasons, or an empty string if
/// all have one. `settings` is as in PYTORCH_ALLOC_CONF.
std::string ignored_settings(const std::string& settings, bool is_caching_off);
/// Returns the same for the settings in force in this process.
std::string ignored_settings();

/// Whether NCCL's process groups are to register all memory of the allocator
/// (TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK).
bool is_all_memory_registered();

}  // namespace tencache::shim
