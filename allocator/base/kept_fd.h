// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that stay open for long. They share the process's table with the program, which may
// close any number (daemons do), and then gets it for a file of its own. So a number proves
// nothing: FileIdentity remembers which file it stood for, and KeptFd, which owns the descriptor,
// closes it only while it still stands for that file.
//
// A file is known by device and inode number. A file system gives the number to another file once
// the first is gone, often to the next one that is made. A file without a name may go with its
// descriptor, so whoever keeps one also keeps a FileHold. What the kernel makes by itself (/proc,
// userfaultfd, memfds) needs no hold: the kernel counts those numbers up.
//
// Numbers 0 to 2 belong to the program even while they are closed: everybody writes to 2. So a kept
// descriptor has a number above them. It is close-on-exec, as its caller opened it.
//
// The table can change between a look and the use of the number. Where that could do harm, the
// caller looks again afterwards, or holds the file by other means than a number.
//
// Threads: FileIdentity any; KeptFd and FileHold as UniqueFd.
#pragma once

#include <sys/types.h>

#include <optional>
#include <utility>

#include "base/mapped_pages.h"
#include "base/unique_fd.h"

namespace tencache {

/// The same file under a number above 2, close-on-exec. The result is invalid, with errno set,
/// where `fd` is invalid or no number is free.
UniqueFd above_standard(UniqueFd fd);

class FileIdentity {
 public:
  FileIdentity() = default;
  static FileIdentity of(int fd);

  /// Returns false when the number is closed or stands for another file. Where the file system
  /// gives no answer, now or when the identity was taken, the number counts as this file's.
  bool is_of(int fd) const;
  /// Ends the process unless the number stands for this file. `what` names the file in the message.
  void require(int fd, const char* what) const {
    if (!is_of(fd)) end(fd, what);
  }

 private:
  using Place = std::pair<dev_t, ino_t>;
  static std::optional<Place> place_of(int fd);
  [[noreturn]] static void end(int fd, const char* what);

  std::optional<Place> place_;
};

/// A hold that keeps a file from going while its descriptors may be closed. It maps a page of the
/// file that nobody can read or write, so no other file gets the inode number.
class FileHold {
 public:
  FileHold() = default;
  /// The hold is invalid, with errno set, where the file cannot be mapped.
  explicit FileHold(int fd);

  bool is_valid() const { return page_ != nullptr; }

 private:
  MappedPages page_;
};

class KeptFd {
 public:
  KeptFd() = default;
  /// The object is invalid, with errno set, where `fd` is invalid or no number above 2 is free.
  explicit KeptFd(UniqueFd fd) : fd_(above_standard(std::move(fd))) {
    if (fd_.is_valid()) identity_ = FileIdentity::of(fd_.get());
  }
  ~KeptFd() { reset(); }
  KeptFd(KeptFd&& other) noexcept = default;
  /// Leaves the descriptor held before to `other`, which closes it at its end.
  KeptFd& operator=(KeptFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(identity_, other.identity_);
    return *this;
  }

  bool is_valid() const { return fd_.is_valid(); }
  int get() const { return fd_.get(); }
  /// Whether the number still stands for what was opened.
  bool is_ours() const { return fd_.is_valid() && identity_.is_of(fd_.get()); }
  void require_ours(const char* what) const { identity_.require(fd_.get(), what); }
  void reset() {
    if (fd_.is_valid() && !is_ours()) (void)fd_.release();
    fd_.reset();
  }

 private:
  UniqueFd fd_;
  FileIdentity identity_;
};

}  // namespace tencache
