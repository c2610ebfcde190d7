// SPDX-License-Identifier: Apache-2.0
//
// The doors for GPU memory. PyTorch keeps its CUDA allocator in two places: the one that tensors
// are allocated from and torch.cuda reads, and the registry of allocators by device type, which
// torch.accelerator reads. Ours goes into both, and into torch.cuda.memory, which shows it to
// Python. The gate also learns which stream a thread's ops queue their work on.
//
// Memory that CUDA's own allocator gave out earlier has its own deleter, but would stand outside
// the budget of the same GPU, unseen. So there must be no such memory.
//
// The door for pinned memory is PyTorch's registry of host allocators. Memory allocated earlier
// stays where it is, and its allocator keeps hearing of it (pinned_allocator.h).
//
// Threads: one at a time installs; the stream callback runs on any.
#pragma once

#include <string>

#include "cuda_allocator.h"
#include "cuda_calls.h"
#include "pinned_allocator.h"

namespace tencache::shim {

/// Why the doors cannot be installed now, with the remedy. The text is empty when they can be.
std::string why_no_cuda_doors(const CudaCalls& calls);

/// Makes PyTorch allocate CUDA tensors from this allocator, which must live until the process ends.
/// Call once, after the runtime has started and why_no_cuda_doors() was empty.
void install_cuda_doors(CudaAllocator& allocator, const CudaCalls& calls);

/// PyTorch's current allocator of pinned memory. Before install_pinned_door() that is the one to
/// replace; afterwards it is ours.
at::HostAllocator* present_pinned_allocator();

/// Makes PyTorch pin all its memory (pin_memory() and the rest) through this allocator, which must
/// live until the process ends. Call once.
void install_pinned_door(PinnedAllocator& allocator);

/// Tells the gate of streams from now on. install_cuda_doors() calls it.
void install_stream_callback(const CudaCalls& calls);

}  // namespace tencache::shim
