// SPDX-License-Identifier: Apache-2.0
#include "platform/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <string>

#include "base/check.h"

namespace tencache {
namespace {

constexpr int kNodesMax = 1024;  // of the largest kernels (CONFIG_NODES_SHIFT)
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);

/// Takes a number off the front of `text`. Returns false when it has none that a cpu_set_t can
/// hold.
bool take_processor(std::string_view& text, int& processor) {
  const char* const begin = text.data();
  const auto [end, error] = std::from_chars(begin, begin + text.size(), processor);
  if (error != std::errc() || processor < 0 || processor >= CPU_SETSIZE) return false;
  text.remove_prefix(static_cast<size_t>(end - begin));
  return true;
}

Status not_a_list(std::string_view text) {
  return {StatusCode::kInvalidArgument,
          "\"" + std::string(text) + "\" is not a list of processors such as 0-3,8."};
}

}  // namespace

Result<cpu_set_t> parse_processor_list(std::string_view text) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  std::string_view rest = text;
  while (!rest.empty()) {
    int first = 0;
    if (!take_processor(rest, first)) return not_a_list(text);
    int last = first;
    if (rest.starts_with('-')) {
      rest.remove_prefix(1);
      if (!take_processor(rest, last)) return not_a_list(text);
    }
    if (last < first) return not_a_list(text);
    for (int processor = first; processor <= last; ++processor) CPU_SET(processor, &processors);
    if (rest.empty()) break;
    if (!rest.starts_with(',') || rest.size() == 1) return not_a_list(text);
    rest.remove_prefix(1);
  }
  return processors;
}

Result<cpu_set_t> processors_of_node(int node) {
  const std::string path = "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist";
  std::ifstream file(path);
  std::string text;
  if (!file.is_open()) {
    return Status(
        StatusCode::kUnavailable,
        "The kernel reports no NUMA node " + std::to_string(node) + ": there is no " + path + ".");
  }
  (void)std::getline(file, text);  // an empty line: the node has no processors
  Result<cpu_set_t> of_node = parse_processor_list(text);
  if (!of_node.is_ok()) return of_node.status();
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return status_from_errno(errno, "cannot ask for the processors of this thread");
  }
  cpu_set_t processors;
  CPU_AND(&processors, &of_node.value(), &allowed);
  if (CPU_COUNT(&processors) == 0) {
    return Status(StatusCode::kUnavailable, "NUMA node " + std::to_string(node) +
                                                " has no processor on which this thread may run.");
  }
  return processors;
}

Status run_on_processors(const cpu_set_t& processors) {
  if (sched_setaffinity(0, sizeof processors, &processors) == 0) return Status::ok();
  return status_from_errno(errno, "cannot choose the processors of a thread");
}

Status prefer_node(void* memory, uint64_t bytes, int node) {
  TENCACHE_CHECK(node >= 0, "node %d", node);
  const std::string attempt = "cannot ask for memory of NUMA node " + std::to_string(node);
  if (node >= kNodesMax) return status_from_errno(EINVAL, attempt);
  std::array<unsigned long, kNodesMax / kBitsPerWord> nodes = {};
  nodes[static_cast<size_t>(node / kBitsPerWord)] = 1UL << (node % kBitsPerWord);
  // The kernel looks at one bit less than it is told.
  constexpr unsigned long kBits = kNodesMax + 1;
  if (syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes.data(), kBits, 0) == 0) {
    return Status::ok();
  }
  return status_from_errno(errno, attempt);
}

}  // namespace tencache
