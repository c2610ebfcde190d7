// SPDX-License-Identifier: Apache-2.0
//
// UniqueFd: owns one file descriptor and closes it once. It ignores the result of close(), because
// a failed close loses nothing here: no descriptor it holds has data that only close would write.
// The class is not thread-safe.
#pragma once

#include <unistd.h>

#include <utility>

namespace tencache {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  /// Leaves the descriptor held before to `other`, which closes it at its end.
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  bool is_valid() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Gives the descriptor up without closing it.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace tencache
