// SPDX-License-Identifier: Apache-2.0
//
// fork() in a process whose other threads run operators: the child has one thread, and a lock that
// another thread held at the fork would stay locked in it for ever. So the forking thread takes the
// shim's two locks around the fork. In the child the Works being waited for are forgotten: they
// belong to the parent's process group, and asking one could wait for a thread that is not there.
//
// The core does the same for its own locks; these two are leaves, so the order does not matter.
#pragma once

namespace tencache::shim {

/// Registers the handlers. Once, before the locks are used by more than one thread.
void install_fork_guard();

}  // namespace tencache::shim
