// SPDX-License-Identifier: Apache-2.0
//
// Collectives outlive their op: the threads of a process group keep reading and writing the tensors
// after a c10d op has returned, until its Work completes. Each c10d op that returns a Work gets a
// kernel at the dispatch key BackendSelect. The kernel calls the original one. Until the Work
// completes it then holds the tensors that the op names, and all memory that the outermost op
// has allocated so far and not freed (the staging buffers of reduce_scatter, for example). Ops
// without a Work hold nothing beyond the gate. The functional collectives call the c10d ops.
//
// We release a hold when its Work has completed or nobody else refers to the Work. NCCL's Works
// must have completed: DDP keeps only their futures, while a stream still uses the tensors. Tensors
// that NCCL uses in the op's own stream (async_op is false) need no hold, for the gate has recorded
// that stream.
//
// The calls of a group (c10d's coalescing manager) start together at its end. The ops
// tencache::begin_group() and tencache::end_group(Work?) tell where it begins and ends on the
// calling thread, and tencache::abandon_group() tells that its end has failed; the Python package
// calls these ops. Tensors that a CUDA graph captures are not held: they stay resident as long as
// they live.
//
// Finished holds are looked for when another collective is called, at each optimizer step, and by
// the evictor before it picks victims. The evictor must not run Python, because an allocation that
// waits for it may hold the GIL. So the evictor destroys no Work, and asks none that is implemented
// in Python.
//
// Threads: any. The list's lock is not held while a Work is asked or destroyed or a hold released.
#pragma once

#include <cstddef>

namespace tencache::shim {

/// Registers kernels for those c10d ops that have none yet. Does nothing where PyTorch was built
/// without distributed. The hooks call it again when an op appears later.
void install_collectives();

/// How many ops have such a kernel.
size_t collective_count();

/// Releases the holds of completed collectives. It is not for the evictor's thread.
void release_completed_collectives();

/// Releases the holds of completed collectives on the evictor's thread. This is the runtime's poll
/// callback.
void poll_collectives();

/// For fork_guard.h: these take and release the list's lock around a fork, and empty the list in
/// the child (with the lock held).
void lock_collectives();
void unlock_collectives();
void forget_collectives();

/// How many holds wait for their Work. Those of one group wait for the same one.
size_t pending_collectives();

}  // namespace tencache::shim
