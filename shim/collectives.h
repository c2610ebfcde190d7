// SPDX-License-Identifier: Apache-2.0
//
// Collectives outlive their op: the threads of a process group go on reading and writing the
// tensors after a c10d op has returned, until its Work completes. Each c10d op that returns a Work
// gets a kernel at the dispatch key BackendSelect that calls on and then holds, until that Work
// completes, what the op names and what was allocated inside the outermost op so far (the staging
// buffers of reduce_scatter are such). Ops without a Work hold nothing beyond the gate; the
// functional collectives call the c10d ops.
//
// A hold is given up when its Work has completed or nobody else refers to the Work any more. NCCL's
// Works must have completed: DDP keeps only their futures, while a stream goes on with the tensors.
// What NCCL does in the op's own stream (async_op is false) needs no hold, for the gate has noted
// that stream.
//
// Whether holds can be given up is looked at when another collective is held, at each optimizer
// step, and by the evictor before it looks for victims. The evictor must not run Python (an
// allocation that waits for it may hold the GIL), so there a Work is neither destroyed nor, when it
// is implemented in Python, asked.
//
// Threads: any. The list's lock is not held while a Work is asked or destroyed or a hold given up.
#pragma once

#include <cstddef>

namespace tencache::shim {

/// Registers kernels for the c10d ops that exist and have none yet. Does nothing where PyTorch was
/// built without distributed. The hooks call it again when an op turns up that appeared later.
void install_collectives();

/// How many ops have such a kernel.
size_t collective_count();

/// Gives up what is held for completed collectives. Not on the evictor's thread.
void release_completed_collectives();

/// The same for the evictor's thread: the poll callback of the runtime.
void poll_collectives();

/// For fork_guard.h: the list's lock around a fork, and the list emptied in the child (lock held).
void lock_collectives();
void unlock_collectives();
void forget_collectives();

/// How many Works are being waited for.
size_t pending_collectives();

}  // namespace tencache::shim
