// SPDX-License-Identifier: Apache-2.0
//
// The doors for GPU memory. PyTorch keeps its CUDA allocator in two places: the one that tensors
// are allocated from and torch.cuda reads, and the registry of allocators by kind of device, which
// torch.accelerator reads. Both get ours. And the gate hears of the stream that a thread's ops
// queue their work on.
//
// What CUDA's allocator has handed out before has its own deleter; but it would stand outside the
// budget of the same GPU, unseen, so there must be nothing of the kind.
//
// The door for pinned memory is PyTorch's registry of host allocators. What was allocated through
// it before stays where it is, and its allocator goes on hearing of it (pinned_allocator.h).
//
// Threads: the functions that install on one; the stream callback on any.
#pragma once

#include <string>

#include "cuda_allocator.h"
#include "cuda_calls.h"
#include "pinned_allocator.h"

namespace tencache::shim {

/// Why the doors cannot be put in now, with the remedy; empty when they can.
std::string why_no_cuda_doors(const CudaCalls& calls);

/// From now on CUDA tensors are allocated from this allocator, which outlives everything. Once,
/// after the runtime has started, when nothing is in the way.
void install_cuda_doors(CudaAllocator& allocator, const CudaCalls& calls);

/// PyTorch's allocator of pinned memory as of now: the one before ours.
at::HostAllocator* present_pinned_allocator();

/// From now on pin_memory() and whatever else PyTorch pins allocates from this allocator, which
/// outlives everything. Once.
void install_pinned_door(PinnedAllocator& allocator);

/// The gate hears of streams from now on; part of install_cuda_doors().
void install_stream_callback(const CudaCalls& calls);

}  // namespace tencache::shim
