// SPDX-License-Identifier: Apache-2.0
#include "platform/blocked_signals.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace tencache {
namespace {

constexpr std::string_view kKernelsOwn = "Name:\tiou-";
constexpr std::string_view kBlocked = "\nSigBlk:\t";

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

/// The text of a thread's status, which has its name first; empty when the thread has ended.
std::string_view read_status(int tasks_fd, const char* thread, std::span<char> buffer) {
  const std::string path = std::string(thread) + "/status";
  const UniqueFd file(openat(tasks_fd, path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_valid()) return {};
  const ssize_t bytes = read(file.get(), buffer.data(), buffer.size() - 1);
  if (bytes <= 0) return {};
  buffer[static_cast<size_t>(bytes)] = '\0';
  return {buffer.data(), static_cast<size_t>(bytes)};
}

bool blocks(std::string_view status, int signal_number) {
  if (status.starts_with(kKernelsOwn)) return false;
  const size_t begin = status.find(kBlocked);
  if (begin == std::string_view::npos) return !status.empty();
  const uint64_t mask = strtoull(status.data() + begin + kBlocked.size(), nullptr, 16);
  return (mask >> (signal_number - 1) & 1) != 0;
}

}  // namespace

bool is_blocked_by_any_thread(int signal_number) {
  const std::unique_ptr<DIR, CloseDirectory> tasks(opendir("/proc/self/task"));
  if (tasks == nullptr) return true;
  std::array<char, 4096> buffer;
  while (const dirent* entry = readdir(tasks.get())) {
    if (entry->d_name[0] == '.') continue;
    if (blocks(read_status(dirfd(tasks.get()), entry->d_name, buffer), signal_number)) return true;
  }
  return false;
}

}  // namespace tencache
