// SPDX-License-Identifier: Apache-2.0
#include "base/kept_fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/check.h"
#include "base/shown_text.h"

namespace tencache {
namespace {

constexpr size_t kHeldBytes = 4096;

}  // namespace

UniqueFd above_standard(UniqueFd fd) {
  if (!fd.is_valid() || fd.get() > STDERR_FILENO) return fd;
  return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

// Returns the file's device and inode number, or nullopt, with errno set, on failure. Asks no
// server: a network file system answers from what it knows.
std::optional<FileIdentity::Place> FileIdentity::place_of(int fd) {
  struct statx known = {};
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &known) == 0) {
    return Place{makedev(known.stx_dev_major, known.stx_dev_minor), known.stx_ino};
  }
  if (errno == EBADF) return std::nullopt;
  struct stat attributes = {};  // for containers that refuse statx()
  if (fstat(fd, &attributes) != 0) return std::nullopt;
  return Place{attributes.st_dev, attributes.st_ino};
}

FileIdentity FileIdentity::of(int fd) {
  FileIdentity identity;
  identity.place_ = place_of(fd);
  return identity;
}

bool FileIdentity::is_of(int fd) const {
  const std::optional<Place> place = place_of(fd);
  if (!place) return errno != EBADF;
  return !place_ || place == place_;
}

void FileIdentity::end(int fd, const char* what) {
  std::array<char, 64> link;
  std::array<char, 512> now = {};
  snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const bool is_open = readlink(link.data(), now.data(), now.size() - 1) > 0;
  fatal(
      "the program has closed descriptor %d, which was %s%s%s. The process is stopped so that "
      "nothing goes to a file of the program's. A program that closes descriptors it did not open "
      "(os.closerange) has to do so before tencache starts, or to spare this one",
      fd, what, is_open ? ", and now has it for " : "", shown(now.data()).c_str());
}

// The mapping is private, because some file systems refuse shared ones. Forks do not pass it on: a
// child that lives long would keep the file's room on the disk. The child looks at the number only
// for the sake of what it has mapped from the file itself.
FileHold::FileHold(int fd) {
  void* const page = mmap(nullptr, kHeldBytes, PROT_NONE, MAP_PRIVATE, fd, 0);
  if (page == MAP_FAILED) return;
  page_ = MappedPages(static_cast<char*>(page), Unmap{kHeldBytes});
  (void)madvise(page, kHeldBytes, MADV_DONTFORK);
}

}  // namespace tencache
