// SPDX-License-Identifier: Apache-2.0
#include "platform/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/units.h"

namespace tencache {
namespace {

// The reserve for memory that does not come from our allocator: libraries that are imported later,
// stacks, Python's objects, the page cache. It is a tenth, and at least kReserveBytesMin where that
// leaves half. For pinned memory the tenth and that minimum are doubled. A default budget is at
// least kBudgetBytesMin where the addresses allow that much; a smaller one of pinned memory is 0.
constexpr uint64_t kReserveBytesMin = kGiB;
constexpr uint64_t kBudgetBytesMin = 128 * kMiB;

// The arena takes half of the addresses (platform/address_arena.h), and evicted extents keep
// theirs. So a budget takes at most half of the arena.
constexpr uint64_t kAddressShare = 4;

std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word) || word == "max") return std::nullopt;
  char* end = nullptr;
  const uint64_t value = strtoull(word.c_str(), &end, 10);
  if (end == word.c_str()) return std::nullopt;
  return value;
}

// A value of a "name value" file such as memory.stat; `name` includes the character that ends it.
uint64_t read_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  std::string rest;
  while (file >> key && std::getline(file, rest)) {
    if (key == name) return strtoull(rest.c_str(), nullptr, 10);
  }
  return 0;
}

struct CgroupMemory {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;
};

// The folder of this process's cgroup below its mount, e.g. "/user.slice". A v1 line names its
// controllers; the v2 line names none, which "" finds. Returns "/" where there is no such line.
std::string cgroup_path(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") != std::string::npos)
      return line.substr(second + 1);
  }
  return "/";
}

uint64_t left_in(const CgroupMemory& cgroup) {
  return cgroup.limit_bytes - std::min(cgroup.limit_bytes, cgroup.used_bytes);
}

// The folders of a cgroup and of all above it, up to the mount: limits bind at every level. In a
// container the path of /proc/self/cgroup may not exist below the mount; the mount itself does.
std::vector<std::string> levels(const std::string& mount, std::string path) {
  std::vector<std::string> folders;
  for (;;) {
    folders.push_back(mount + (path == "/" ? "" : path));
    if (path.empty() || path == "/") return folders;
    path.erase(path.rfind('/'));
  }
}

// What a version of cgroups tells of memory, and where.
struct CgroupFiles {
  const char* mount;
  const char* controller;
  const char* limit;
  const char* usage;
  const char* cache;  // the field of memory.stat with what the kernel can take back
};

constexpr std::array<CgroupFiles, 3> kCgroupFiles = {{
    {"/sys/fs/cgroup", "", "/memory.max", "/memory.current", "inactive_file"},
    {"/sys/fs/cgroup/unified", "", "/memory.max", "/memory.current", "inactive_file"},
    {"/sys/fs/cgroup/memory", "memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
     "total_inactive_file"},
}};

// The limit that leaves least, of those below the machine's memory: a larger one limits nothing,
// and an unlimited v1 group reads as a number near 2^63.
std::optional<CgroupMemory> probe_cgroup(const std::string& root, uint64_t total_bytes) {
  std::optional<CgroupMemory> tightest;
  for (const CgroupFiles& files : kCgroupFiles) {
    const std::string path = cgroup_path(root, files.controller);
    for (const std::string& folder : levels(root + files.mount, path)) {
      const std::optional<uint64_t> limit = read_number(folder + files.limit);
      if (!limit || *limit >= total_bytes) continue;
      const uint64_t usage = read_number(folder + files.usage).value_or(0);
      const uint64_t cache = read_field(folder + "/memory.stat", files.cache);
      const CgroupMemory found{*limit, usage - std::min(usage, cache)};
      if (!tightest || left_in(found) < left_in(*tightest)) tightest = found;
    }
  }
  return tightest;
}

// The word in brackets: "madvise" of "always [madvise] never".
std::string chosen_word(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word.size() > 2 && word.front() == '[') return word.substr(1, word.size() - 2);
  }
  return "absent";
}

uint64_t local_ranks() {
  const char* text = getenv("LOCAL_WORLD_SIZE");
  return text == nullptr ? 1 : std::max<uint64_t>(strtoull(text, nullptr, 10), 1);
}

// The quota of processors in a cgroup's folder: the time it may run, per period.
std::optional<double> read_quota(const std::string& folder) {
  double quota = 0;
  double period = 0;
  std::ifstream version_2(folder + "/cpu.max");
  if (!(version_2 >> quota >> period)) {
    std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
    std::ifstream period_file(folder + "/cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;  // -1 is no limit
  return quota / period;
}

double tightest_quota(const std::string& mount, const std::string& path, double processors) {
  for (const std::string& folder : levels(mount, path)) {
    if (const std::optional<double> quota = read_quota(folder)) {
      processors = std::min(processors, *quota);
    }
  }
  return processors;
}

// Why a budget is what it is: memory left, reserve, and the ranks that share it.
std::string budget_reason(const MachineMemory& memory, uint64_t reserve) {
  const uint64_t left = bytes_left(memory);
  std::ostringstream reason;
  reason << format_bytes(left);
  if (left < memory.available_bytes) {
    reason << " left under the cgroup limit of " << format_bytes(*memory.cgroup_limit_bytes);
  } else {
    reason << " available";
  }
  reason << " less a reserve of " << format_bytes(reserve);
  if (memory.local_ranks > 1) reason << ", shared by " << memory.local_ranks << " ranks";
  return reason.str();
}

}  // namespace

double usable_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  double processors = 1;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    processors = CPU_COUNT(&allowed);
  } else {  // more processors than the set holds
    processors = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  }
  processors = tightest_quota("/sys/fs/cgroup", cgroup_path("", ""), processors);
  return tightest_quota("/sys/fs/cgroup/cpu", cgroup_path("", "cpu"), processors);
}

MachineMemory probe_memory(const std::string& root) {
  MachineMemory memory;
  const std::string memory_file = root + "/proc/meminfo";
  memory.total_bytes = read_field(memory_file, "MemTotal:") * kKiB;
  memory.available_bytes = read_field(memory_file, "MemAvailable:") * kKiB;
  memory.swap_bytes = read_field(memory_file, "SwapTotal:") * kKiB;
  memory.map_count_max =
      read_number(root + "/proc/sys/vm/max_map_count").value_or(memory.map_count_max);
  memory.huge_pages = chosen_word(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  memory.local_ranks = local_ranks();
  memory.address_bytes_left = address_bytes_left();
  if (const std::optional<CgroupMemory> cgroup = probe_cgroup(root, memory.total_bytes)) {
    memory.cgroup_limit_bytes = cgroup->limit_bytes;
    memory.cgroup_used_bytes = cgroup->used_bytes;
  }
  return memory;
}

std::optional<uint64_t> address_bytes_left() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const uint64_t used_bytes = read_field("/proc/self/status", "VmSize:") * kKiB;
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used_bytes);
}

uint64_t bytes_left(const MachineMemory& memory) {
  if (!memory.cgroup_limit_bytes) return memory.available_bytes;
  return std::min(memory.available_bytes,
                  left_in({*memory.cgroup_limit_bytes, memory.cgroup_used_bytes}));
}

DefaultBudget default_device_budget(const MachineMemory& memory) {
  const uint64_t left = bytes_left(memory);
  const uint64_t reserve = std::max(left / 10, std::min(kReserveBytesMin, left / 2));
  const uint64_t share = (left - reserve) / memory.local_ranks;
  const uint64_t bytes = std::max(kBudgetBytesMin, round_up(share, kMiB));
  const uint64_t address_bytes = memory.address_bytes_left.value_or(UINT64_MAX);
  if (bytes <= address_bytes / kAddressShare) return {bytes, budget_reason(memory, reserve)};
  return {std::max<uint64_t>(kMiB, address_bytes / kAddressShare / kMiB * kMiB),
          "a quarter of the " + format_bytes(address_bytes) +
              " of addresses left under the limit on virtual memory (ulimit -v)"};
}

DefaultBudget default_host_budget(const MachineMemory& memory) {
  const uint64_t left = bytes_left(memory);
  const uint64_t reserve = std::max(left / 5, std::min(2 * kReserveBytesMin, left / 2));
  const uint64_t share = (left - reserve) / memory.local_ranks;
  if (share >= kBudgetBytesMin) return {share - share % kMiB, budget_reason(memory, reserve)};
  return {0, budget_reason(memory, reserve) + ", is less than " + format_bytes(kBudgetBytesMin)};
}

}  // namespace tencache
