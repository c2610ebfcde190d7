// SPDX-License-Identifier: Apache-2.0
//
// The place of this process among those of one launch, as launchers set it (RANK, WORLD_SIZE).
// launch_rank() reads the environment and keeps no state.
#pragma once

namespace tencache {

/// This process's rank, or -1 if no launcher has set one or the launcher started only one process.
int launch_rank();

}  // namespace tencache
