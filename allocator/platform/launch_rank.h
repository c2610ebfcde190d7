// SPDX-License-Identifier: Apache-2.0
//
// The place of this process among those of one launch, as launchers set it (RANK, WORLD_SIZE).
// Reads the environment; no state.
#pragma once

namespace tencache {

/// This process's rank; -1 if no launcher has set one, or if it started only one process.
int launch_rank();

}  // namespace tencache
