// SPDX-License-Identifier: Apache-2.0
#include "platform/blocked_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/sanitizers.h"
#include "base/unique_fd.h"

namespace tencache {
namespace {

constexpr std::string_view kKernelsOwn = "Name:\tiou-";
constexpr std::string_view kBlocked = "\nSigBlk:\t";
// A signal of glibc's own, below SIGRTMIN.
constexpr int kInternalSignal = 32;
constexpr int kLooksMax = 50;
// The mask of the thread that the sanitizer has for itself: that thread blocks all but SIGSYS, and
// writes to no tensor.
constexpr uint64_t kOfThreadSanitizer = 0xfffffffe3ffbfeff;

/// The text of a thread's status, which has its name first. Returns an empty string when the thread
/// has ended.
std::string_view read_status(const std::string& path, std::span<char> buffer) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_valid()) return {};
  const ssize_t bytes = read(file.get(), buffer.data(), buffer.size() - 1);
  if (bytes <= 0) return {};
  buffer[static_cast<size_t>(bytes)] = '\0';
  return {buffer.data(), static_cast<size_t>(bytes)};
}

enum class Answer : uint8_t { kNo, kYes, kForAMoment };

// Whether the thread with this status blocks the signal. glibc blocks everything while a thread
// begins or ends, and so does the kernel for a thread of its own that has no name yet. Such a mask
// holds a signal that pthread_sigmask() never blocks.
Answer blocks(std::string_view status, int signal_number) {
  if (status.starts_with(kKernelsOwn)) return Answer::kNo;
  const size_t begin = status.find(kBlocked);
  if (begin == std::string_view::npos) return status.empty() ? Answer::kNo : Answer::kYes;
  const uint64_t mask = strtoull(status.data() + begin + kBlocked.size(), nullptr, 16);
  if ((mask >> (signal_number - 1) & 1) == 0) return Answer::kNo;
  if (kHasThreadSanitizer && mask == kOfThreadSanitizer) return Answer::kNo;
  return (mask >> (kInternalSignal - 1) & 1) == 0 ? Answer::kYes : Answer::kForAMoment;
}

bool is_blocked_by(const std::string& status_path, int signal_number) {
  std::array<char, 4096> buffer;
  for (int look = 0; look < kLooksMax; ++look) {
    const Answer answer = blocks(read_status(status_path, buffer), signal_number);
    if (answer != Answer::kForAMoment) return answer == Answer::kYes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;  // the program has set the mask past its C library
}

}  // namespace

bool is_blocked_by_any_thread(int signal_number) {
  std::error_code error;
  std::filesystem::directory_iterator thread("/proc/self/task", error);
  for (; !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    if (is_blocked_by(thread->path() / "status", signal_number)) return true;
  }
  return static_cast<bool>(error);
}

}  // namespace tencache
