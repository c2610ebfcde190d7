// SPDX-License-Identifier: Apache-2.0
//
// MachineMemory: the memory that the machine, and the container around this process, leave to it.
// The figures come from /proc, /sys with the cgroups (v1 and v2), system calls and the environment;
// nothing is cached or changed. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tencache {

struct MachineMemory {
  uint64_t total_bytes = 0;                    // MemTotal
  uint64_t available_bytes = 0;                // MemAvailable
  std::optional<uint64_t> cgroup_limit_bytes;  // of the cgroup that leaves least, up to the root
  uint64_t cgroup_used_bytes = 0;              // of that cgroup, reclaimable page cache excluded
  std::optional<uint64_t> address_bytes_left;  // under the limit on virtual memory
  uint64_t swap_bytes = 0;                     // SwapTotal
  uint64_t map_count_max = 65530;              // vm.max_map_count
  std::string huge_pages;                      // "always", "madvise", "never" or "absent"
  uint64_t local_ranks = 1;                    // LOCAL_WORLD_SIZE: processes torchrun started here
};

/// The figures as the folders /proc and /sys below `root` tell them. Only address_bytes_left and
/// local_ranks are of this process, whatever the root.
MachineMemory probe_memory(const std::string& root = "");

/// How many processors this process may use at once, by its affinity and its cgroup's quota. The
/// number is above 0.
double usable_processors();

/// The default budget of the device tier: what is left now, less a reserve for memory that does not
/// come from our allocator, shared evenly by the ranks of one launch. It is at least 128 MiB, but
/// at most a quarter of the addresses that a limit on virtual memory leaves. `reason` says where
/// the figure comes from ("6.00 GiB left under the cgroup limit of 8.00 GiB less ...").
struct DefaultBudget {
  uint64_t bytes = 0;
  std::string reason;
};
DefaultBudget default_device_budget(const MachineMemory& memory);

/// The default budget of pinned host memory beside a GPU: like that of the device tier, with a
/// larger reserve, because pinned memory can be neither reclaimed nor swapped out while the
/// program's own memory comes and goes (a loaded checkpoint, DataLoader workers). It is 0 where too
/// little would be left to be of use.
DefaultBudget default_host_budget(const MachineMemory& memory);

/// The addresses that the limit on virtual memory (ulimit -v) leaves to this process. Returns
/// nullopt where there is no limit.
std::optional<uint64_t> address_bytes_left();

/// The memory that the machine, or the cgroup where that is less, has left now.
uint64_t bytes_left(const MachineMemory& memory);

}  // namespace tencache
