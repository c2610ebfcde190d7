// SPDX-License-Identifier: Apache-2.0
//
// The making of the spill file. These functions check a directory, make a file in it that nobody
// else can open and that vanishes with its last descriptor, and find by trial which kind of I/O the
// file system allows. They are internal to the disk tier and its probe, and keep no state.
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "base/kept_fd.h"
#include "base/options.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tencache {

/// A directory that is fit for a spill file.
struct SpillDirectory {
  UniqueFd fd;
  std::string file_system;  // "ext4", "overlayfs over xfs"
  uint64_t free_bytes = 0;  // for this user
};

struct SpillFile {
  UniqueFd fd;
  FileHold hold;  // keep it as long as the number is trusted
  bool direct_io = false;
  std::string direct_io_reason;  // why not
};

/// Opens `path` and checks what can be checked without writing: it is a directory, belongs to the
/// user or is sticky, is not in memory, has room, and the process's limit on file sizes leaves
/// room, too.
Result<SpillDirectory> open_spill_directory(const std::string& path);

/// Makes an empty file of mode 0600 without a name, and tries O_DIRECT unless `direct_io` is kOff.
Result<SpillFile> open_spill_file(const SpillDirectory& directory, const std::string& path,
                                  Choice direct_io);

/// The size beyond which the kernel refuses to let a file of this process grow, and sends SIGXFSZ
/// besides (ulimit -f).
uint64_t file_size_limit_bytes();

/// Makes a file under a new random name and unlinks it at once, for file systems without O_TMPFILE.
/// Returns -1 with errno set on failure.
int open_and_unlink(int directory_fd);

}  // namespace tencache
