// SPDX-License-Identifier: Apache-2.0
//
// fork() in a process whose other threads run operators. The child has one thread, and a lock that
// another thread held at the fork would stay locked there for ever. So the forking thread takes two
// locks around the fork: those of the shim that operators take. The child forgets the pending
// Works: they belong to the parent's process group, and asking one could wait for a thread that the
// child does not have.
//
// The core does the same for its own locks. The operator table's lock is held while the core
// registers a name, so it comes before those: this guard is installed once the runtime is there,
// and handlers before a fork run in reverse order. The lock of collectives is a leaf.
#pragma once

namespace tencache::shim {

/// Registers the handlers. Call once, before more than one thread uses the locks.
void install_fork_guard();

}  // namespace tencache::shim
