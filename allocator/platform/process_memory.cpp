// SPDX-License-Identifier: Apache-2.0
#include "platform/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

namespace tencache {

Result<std::unique_ptr<ProcessMemory>> ProcessMemory::open() {
  KeptFd file(UniqueFd(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)));
  if (!file.is_valid()) return status_from_errno(errno, "opening /proc/self/statm");
  std::unique_ptr<ProcessMemory> memory(new ProcessMemory(std::move(file)));
  if (memory->anonymous_bytes() == 0) {
    return Status(StatusCode::kUnavailable, "/proc/self/statm does not tell the process's pages");
  }
  return memory;
}

ProcessMemory::ProcessMemory(KeptFd file) : file_(std::move(file)) {}

// Reads /proc/self/statm. Its line begins with the pages of addresses, of all memory, and of files
// and shared memory.
uint64_t ProcessMemory::anonymous_bytes() const {
  std::array<char, 128> line;
  const ssize_t got = pread(file_.get(), line.data(), line.size() - 1, 0);
  if (got <= 0 || !file_.is_ours()) return 0;
  line.at(static_cast<size_t>(got)) = '\0';
  char* next = line.data();
  (void)strtoull(next, &next, 10);
  const uint64_t resident = strtoull(next, &next, 10);
  const char* const shared_text = next;
  const uint64_t shared = strtoull(shared_text, &next, 10);
  if (next == shared_text || shared > resident) return 0;
  return (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace tencache
