// SPDX-License-Identifier: Apache-2.0
//
// Note [Spill file]: model weights and data lie in this file in the clear. So nobody else may open
// it, and nothing of it may be left behind. O_TMPFILE gives a file that never had a name; O_EXCL
// forbids a later name (linkat); 0600 and O_CLOEXEC shut out other users and programs that this one
// starts. Where the file system lacks O_TMPFILE, the file has a random name for an instant; O_EXCL
// and O_NOFOLLOW make sure that it is new and ours. The directory is opened once and checked
// through its descriptor, so that it cannot be swapped between check and use.
#include "tier/spill_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/kept_fd.h"
#include "base/shown_text.h"
#include "base/units.h"
#include "platform/mounts.h"
#include "platform/output_file.h"
#include "tier/io_channel.h"

namespace tencache {
namespace {

// Less free space than this counts as a full disk: one growth step of the spill file would not fit.
// The process's limit on file sizes must allow as much.
constexpr uint64_t kFreeBytesMin = 64 * kMiB;

struct FileSystemName {
  uint64_t magic;
  const char* name;
  bool is_in_memory;
};

constexpr std::array<FileSystemName, 16> kFileSystems = {{
    {EXT4_SUPER_MAGIC, "ext4", false},
    {XFS_SUPER_MAGIC, "xfs", false},
    {BTRFS_SUPER_MAGIC, "btrfs", false},
    {F2FS_SUPER_MAGIC, "f2fs", false},
    {TMPFS_MAGIC, "tmpfs", true},
    {RAMFS_MAGIC, "ramfs", true},
    {HUGETLBFS_MAGIC, "hugetlbfs", true},
    {OVERLAYFS_SUPER_MAGIC, "overlayfs", false},
    {NFS_SUPER_MAGIC, "nfs", false},
    {FUSE_SUPER_MAGIC, "fuse", false},
    {MSDOS_SUPER_MAGIC, "vfat", false},
    {V9FS_MAGIC, "9p", false},
    {0x2fc12fc1, "zfs", false},
    {0x0bd00bd0, "lustre", false},
    {0xff534d42, "cifs", false},
    {0xca451a4e, "bcachefs", false},
}};

// How many overlays that lie on each other we look through; the kernel allows two.
constexpr int kOverlaysMax = 4;

struct FileSystem {
  std::string name;
  bool is_in_memory = false;
};

FileSystem file_system_of_type(uint64_t magic) {
  for (const FileSystemName& known : kFileSystems) {
    if (known.magic != magic) continue;
    return {known.name, known.is_in_memory};
  }
  char text[32];
  snprintf(text, sizeof text, "type 0x%lx", magic);
  return {text, false};
}

/// Opens the directory in which an overlay writes. Returns an invalid descriptor where that cannot
/// be seen from here. The kernel gives the sizes of the directory's file system as those of the
/// overlay, so the sizes tell whether the directory found is the overlay's, or only has the same
/// name here.
UniqueFd open_upper(int fd, const struct statfs& overlay) {
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0) return {};
  const std::optional<std::string> path = overlay_upper_directory(read_mounts(), attributes.st_dev);
  if (!path) return {};
  UniqueFd upper(open(path->c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct statfs found = {};
  if (!upper.is_valid() || fstatfs(upper.get(), &found) != 0) return {};
  const bool is_same = found.f_blocks == overlay.f_blocks && found.f_bsize == overlay.f_bsize;
  return is_same ? std::move(upper) : UniqueFd();
}

/// The file system that stores what is written to the directory, also below overlays.
FileSystem file_system_of(int fd, const struct statfs& top) {
  FileSystem found = file_system_of_type(static_cast<uint32_t>(top.f_type));
  struct statfs overlay = top;
  UniqueFd upper;
  for (int depth = 0; depth < kOverlaysMax && overlay.f_type == OVERLAYFS_SUPER_MAGIC; ++depth) {
    upper = open_upper(upper.is_valid() ? upper.get() : fd, overlay);
    if (!upper.is_valid() || fstatfs(upper.get(), &overlay) != 0) {
      found.name += " over a file system that cannot be seen from here";
      break;
    }
    const FileSystem below = file_system_of_type(static_cast<uint32_t>(overlay.f_type));
    found = {found.name + " over " + below.name, below.is_in_memory};
  }
  return found;
}

Status refused(StatusCode code, const std::string& path, const std::string& reason) {
  return {code, "Cannot spill to " + shown(path) + ": " + reason +
                    " Choose another directory with --spill-dir or TENCACHE_SPILL_DIR."};
}

std::string reason_of(int error_number) {
  return status_from_errno(error_number, "").message().substr(2);
}

/// Writes and reads one block. Returns 0 or the errno of the call that failed.
int try_io(int fd) {
  alignas(kIoAlignment) char block[kIoAlignment];
  memset(block, 0x5a, sizeof block);
  if (pwrite(fd, block, sizeof block, 0) != ssize_t{sizeof block}) return errno != 0 ? errno : EIO;
  memset(block, 0, sizeof block);
  if (pread(fd, block, sizeof block, 0) != ssize_t{sizeof block}) return errno != 0 ? errno : EIO;
  return block[0] == 0x5a && block[sizeof block - 1] == 0x5a ? 0 : EIO;
}

/// Sets O_DIRECT and tries it; returns 0 or the errno. Some file systems accept the flag and refuse
/// the first transfer.
int try_direct_io(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) return errno;
  const int error_number = try_io(fd);
  if (error_number != 0 && fcntl(fd, F_SETFL, flags) != 0) return errno;
  return error_number;
}

}  // namespace

Result<SpillDirectory> open_spill_directory(const std::string& path) {
  SpillDirectory directory;
  directory.fd = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.fd.is_valid()) {
    const std::string reason = errno == ENOENT    ? "it does not exist."
                               : errno == ENOTDIR ? "it is not a directory."
                                                  : reason_of(errno) + ".";
    return refused(StatusCode::kInvalidArgument, path, reason);
  }
  struct stat attributes = {};
  struct statfs file_system = {};
  struct statvfs space = {};
  if (fstat(directory.fd.get(), &attributes) != 0 ||
      fstatfs(directory.fd.get(), &file_system) != 0 || fstatvfs(directory.fd.get(), &space) != 0) {
    return refused(StatusCode::kInvalidArgument, path, reason_of(errno) + ".");
  }
  if (attributes.st_uid != geteuid() && (attributes.st_mode & S_ISVTX) == 0) {
    return refused(StatusCode::kInvalidArgument, path,
                   "it belongs to user " + std::to_string(attributes.st_uid) + ", not to user " +
                       std::to_string(geteuid()) + ", and is not sticky as /var/tmp is.");
  }
  const FileSystem found = file_system_of(directory.fd.get(), file_system);
  directory.file_system = found.name;
  if (found.is_in_memory) {
    return refused(StatusCode::kInvalidArgument, path,
                   "it is in memory (" + directory.file_system +
                       "), so spilled data would take the memory that spilling should free.");
  }
  directory.free_bytes = uint64_t{space.f_bavail} * uint64_t{space.f_frsize};
  if (directory.free_bytes < kFreeBytesMin) {
    return refused(StatusCode::kNoSpace, path,
                   "only " + format_bytes(directory.free_bytes) + " are free there and at least " +
                       format_bytes(kFreeBytesMin) + " are needed.");
  }
  if (const uint64_t limit_bytes = file_size_limit_bytes(); limit_bytes < kFreeBytesMin) {
    return refused(StatusCode::kNoSpace, path,
                   "the limit on file sizes of this process (ulimit -f) is " +
                       format_bytes(limit_bytes) + " and at least " + format_bytes(kFreeBytesMin) +
                       " are needed, whatever the directory.");
  }
  return directory;
}

uint64_t file_size_limit_bytes() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  return limit.rlim_cur;
}

int open_and_unlink(int directory_fd) {
  int error_number = 0;
  {
    std::string name;
    UniqueFd made = make_hidden_file(directory_fd, "", O_RDWR, 0600, &name);
    if (made.is_valid() && unlinkat(directory_fd, name.c_str(), 0) == 0) return made.release();
    error_number = errno;
  }
  errno = error_number;  // closing the file and freeing the name may have changed it
  return -1;
}

Result<SpillFile> open_spill_file(const SpillDirectory& directory, const std::string& path,
                                  Choice direct_io) {
  SpillFile file;
  // What others write to a standard descriptor that was closed must not reach the file.
  file.fd = above_standard(
      UniqueFd(openat(directory.fd.get(), ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600)));
  // EISDIR and EINVAL come from kernels and file systems that do not know the flag and read it as
  // O_DIRECTORY.
  const bool is_unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL;
  if (!file.fd.is_valid() && is_unknown) {
    file.fd = above_standard(UniqueFd(open_and_unlink(directory.fd.get())));
  }
  if (!file.fd.is_valid()) {
    const bool is_full = errno == ENOSPC || errno == EDQUOT;
    return refused(is_full ? StatusCode::kNoSpace : StatusCode::kInvalidArgument, path,
                   "no file can be made there (" + reason_of(errno) + ").");
  }
  file.hold = FileHold(file.fd.get());
  if (!file.hold.is_valid()) {
    return refused(StatusCode::kUnavailable, path,
                   "a file there cannot be mapped (" + reason_of(errno) + ").");
  }
  if (direct_io == Choice::kOff) {
    file.direct_io_reason = "it was switched off (direct_io)";
  } else if (const int error_number = try_direct_io(file.fd.get()); error_number == 0) {
    file.direct_io = true;
  } else {
    file.direct_io_reason = directory.file_system + " refuses it: " + reason_of(error_number);
  }
  if (direct_io == Choice::kOn && !file.direct_io) {
    return refused(
        StatusCode::kUnavailable, path,
        "direct_io is on, but " + file.direct_io_reason + "; with auto, I/O would be buffered.");
  }
  if (!file.direct_io) {
    if (const int error_number = try_io(file.fd.get()); error_number != 0) {
      return refused(status_from_errno(error_number, "").code(), path,
                     "a first write failed (" + reason_of(error_number) + ").");
    }
  }
  if (ftruncate(file.fd.get(), 0) != 0) {
    return refused(StatusCode::kIoError, path, reason_of(errno) + ".");
  }
  return file;
}

}  // namespace tencache
