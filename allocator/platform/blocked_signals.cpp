// SPDX-License-Identifier: Apache-2.0
#include "platform/blocked_signals.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/sanitizers.h"
#include "base/unique_fd.h"

namespace tencache {
namespace {

constexpr std::string_view kKernelsOwn = "Name:\tiou-";
constexpr std::string_view kBlocked = "\nSigBlk:\t";
// glibc's own, below SIGRTMIN.
constexpr int kInternalSignal = 32;
constexpr int kLooksMax = 50;
// The sanitizer has a thread of its own, which writes to no tensor. It blocks all but SIGSYS.
constexpr uint64_t kOfThreadSanitizer = 0xfffffffe3ffbfeff;

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

enum class Answer : uint8_t { kNo, kYes, kForAMoment };

// glibc blocks everything while a thread begins or ends, and so does the kernel for a thread of its
// own that has no name yet. Such a mask holds a signal that pthread_sigmask() never blocks.
Answer blocks(std::string_view status, int signal_number) {
  if (status.starts_with(kKernelsOwn)) return Answer::kNo;
  const size_t begin = status.find(kBlocked);
  if (begin == std::string_view::npos) return status.empty() ? Answer::kNo : Answer::kYes;
  const uint64_t mask = strtoull(status.data() + begin + kBlocked.size(), nullptr, 16);
  if ((mask >> (signal_number - 1) & 1) == 0) return Answer::kNo;
  if (kHasThreadSanitizer && mask == kOfThreadSanitizer) return Answer::kNo;
  return (mask >> (kInternalSignal - 1) & 1) == 0 ? Answer::kYes : Answer::kForAMoment;
}

bool is_blocked_by(int tasks_fd, const char* thread, int signal_number) {
  std::array<char, 4096> buffer;
  for (int look = 0; look < kLooksMax; ++look) {
    const Answer answer = blocks(read_status(tasks_fd, thread, buffer), signal_number);
    if (answer != Answer::kForAMoment) return answer == Answer::kYes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;  // a program that asks the kernel without its C library
}

}  // namespace

bool is_blocked_by_any_thread(int signal_number) {
  const std::unique_ptr<DIR, CloseDirectory> tasks(opendir("/proc/self/task"));
  if (tasks == nullptr) return true;
  while (const dirent* entry = readdir(tasks.get())) {
    if (entry->d_name[0] == '.') continue;
    if (is_blocked_by(dirfd(tasks.get()), entry->d_name, signal_number)) return true;
  }
  return false;
}

}  // namespace tencache
