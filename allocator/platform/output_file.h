// SPDX-License-Identifier: Apache-2.0
//
// Files that the user asked for: stats, traces, periods, drawings. This is the one way to write
// them, for the core and, through the C ABI, for the Python package.
//
// Note [Output files]: what stands under the name decides how it is written.
//   - A regular file is replaced, or made: the text goes to a temporary beside it, which is
//     renamed once it is whole. So nobody reads half a file, and a failure leaves what was there
//     before. Other users may write to the folder too. So the temporary has a random name and is
//     made with O_EXCL and O_NOFOLLOW: nobody can put something in its place beforehand, and two
//     runs never share one. It is removed on every failure; one that a killed run leaves behind
//     (.tencache-*.tmp) is in nobody's way.
//   - Anything else (a device, a pipe, a link, a file that a container mounts by itself) is opened
//     and written to, and stays. What a link leads to is truncated first if it is a file, and made
//     if it is missing. Whether a link may be followed is for the kernel to say
//     (fs.protected_symlinks). A socket is refused.
//   - /dev/stdout, /dev/stderr, /dev/fd/N and /proc/self/fd/N are the open descriptor itself, and
//     the text goes where its next output would go. To open such a name would begin a redirected
//     file anew, and fails for a socket.
// The umask decides who may read a new file. The functions keep no state. Threads: any.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tencache {

/// A buffer that collects text for a descriptor and writes it in large pieces. After a failed
/// write, further text is dropped.
class OutputText {
 public:
  explicit OutputText(int fd) : fd_(fd) {}
  void append(std::string_view text);
  /// Writes what is left. Returns the errno of the first write that failed, else 0.
  int flush();

 private:
  void write_out(std::string_view text);

  const int fd_;
  int error_number_ = 0;
  std::string waiting_;
};

/// Makes a file under a new random name with that ending, and tells the name. Nobody can have put
/// something in its place beforehand. On failure, returns an invalid descriptor and sets errno.
UniqueFd make_hidden_file(int folder_fd, const char* ending, int flags, mode_t mode,
                          std::string* made_name);

/// Writes the text that `write` appends (Note [Output files]). The message of a failure is a
/// clause, "the directory /x does not exist". Waits for whoever reads a pipe; if nobody has opened
/// it, that is a failure, as is a reader who has gone: no SIGPIPE is raised.
Status write_output_file(const std::string& path, const std::function<void(OutputText&)>& write);

/// Whether write_output_file() could do its work as things stand, with the reason if not. It tries:
/// a temporary is made and removed. Beyond that only a file that a link leads to may be made.
Status try_output_file(const std::string& path);

/// Whether the name stands for a device, a pipe or an open descriptor. Several processes then write
/// to the same one, and none adds a suffix to the name.
bool is_shared_output(const std::string& path);

/// Whether what is written under one name would take the place of what stands under the
/// other: after all links they are one path. No device or pipe is replaced. A link that leads
/// nowhere yet counts only once try_output_file() has made its file.
bool is_same_output(const std::string& one, const std::string& other);

}  // namespace tencache
