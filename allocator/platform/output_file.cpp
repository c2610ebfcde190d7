// SPDX-License-Identifier: Apache-2.0
#include "platform/output_file.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/kept_fd.h"
#include "base/shown_text.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace tencache {
namespace {

constexpr size_t kWrittenAtOnceBytes = 256 * kKiB;
constexpr mode_t kMode = 0666;  // less the umask

enum class Way : uint8_t { kReplace, kOpen, kDescriptor };

/// What stands under a path, and so how to write there.
struct Target {
  int error_number = 0;  // not 0: it cannot be written
  Way way = Way::kReplace;
  int descriptor = -1;     // for kDescriptor
  struct stat found = {};  // what stands there; mode 0 if nothing does
};

/// While it lives, a reader that has gone is an error of write() and no signal.
class PipeSignalBlock {
 public:
  PipeSignalBlock() {
    sigset_t pending;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalBlock() {
    const timespec at_once = {};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  PipeSignalBlock(const PipeSignalBlock&) = delete;
  PipeSignalBlock& operator=(const PipeSignalBlock&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

/// A path as its folder and the name in it.
struct Place {
  std::string folder;
  std::string name;
};

Place place_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

/// A temporary beside the file that it is to replace. The destructor removes it unless it took the
/// file's place.
class Replacement {
 public:
  explicit Replacement(const std::string& path) : place_(place_of(path)) {}
  ~Replacement() {
    if (folder_.is_valid() && !temporary_.empty()) unlinkat(folder_.get(), temporary_.c_str(), 0);
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  /// Returns 0 or an errno, as take_place() does.
  int make();
  int take_place();
  int fd() const { return fd_.get(); }

 private:
  const Place place_;
  UniqueFd folder_;
  UniqueFd fd_;
  std::string temporary_;
};

int Replacement::make() {
  // The folder is opened once, so that the rename happens where the temporary was made.
  folder_ = above_standard(UniqueFd(open(place_.folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)));
  if (!folder_.is_valid()) return errno;
  fd_ = above_standard(make_hidden_file(folder_.get(), ".tmp", O_WRONLY, kMode, &temporary_));
  return fd_.is_valid() ? 0 : errno;
}

int Replacement::take_place() {
  // A network file system tells only now that it could not store the text.
  if (close(fd_.release()) != 0 && errno != EINTR) return errno;
  if (renameat(folder_.get(), temporary_.c_str(), folder_.get(), place_.name.c_str()) != 0) {
    return errno;
  }
  temporary_.clear();
  return 0;
}

/// The descriptor that the path stands for, or -1.
int named_descriptor(std::string_view path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int number = -1;
    const char* const end = path.data() + path.size();
    const auto [rest, error] = std::from_chars(path.data() + folder.size(), end, number);
    if (error == std::errc() && rest == end) return number;
  }
  return -1;
}

/// Whether a file is mounted by itself, as containers do it. Such a file cannot be renamed over.
bool is_mount_point(const char* path) {
  struct statx attributes = {};
  return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &attributes) == 0 &&
         (attributes.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

Target look_at(const std::string& path) {
  Target target;
  target.descriptor = named_descriptor(path);
  if (target.descriptor >= 0) {
    target.way = Way::kDescriptor;
  } else if (lstat(path.c_str(), &target.found) != 0) {
    target.error_number = errno != ENOENT ? errno : 0;
    if (place_of(path).name.empty()) target.error_number = EISDIR;
  } else if (S_ISDIR(target.found.st_mode)) {
    target.error_number = EISDIR;
  } else if (!S_ISREG(target.found.st_mode) || is_mount_point(path.c_str())) {
    target.way = Way::kOpen;
  }
  return target;
}

/// Opens a target that is written to and stays. Changes no byte of it.
UniqueFd open_target(const std::string& path, const Target& target) {
  if (target.way == Way::kDescriptor) {
    return UniqueFd(fcntl(target.descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  }
  // Without O_NONBLOCK, a pipe that nobody reads would hold the program for ever.
  int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  flags |= S_ISLNK(target.found.st_mode) ? O_CREAT : O_NOFOLLOW;
  UniqueFd fd = above_standard(UniqueFd(open(path.c_str(), flags, kMode)));
  if (fd.is_valid() && fcntl(fd.get(), F_SETFL, O_WRONLY) != 0) return {};
  return fd;
}

int write_text(int fd, const std::function<void(OutputText&)>& write) {
  const PipeSignalBlock block;
  OutputText text(fd);
  write(text);
  return text.flush();
}

int replace(const std::string& path, const std::function<void(OutputText&)>& write) {
  Replacement replacement(path);
  int error_number = replacement.make();
  if (error_number == 0) error_number = write_text(replacement.fd(), write);
  return error_number != 0 ? error_number : replacement.take_place();
}

int write_through(const std::string& path, const Target& target,
                  const std::function<void(OutputText&)>& write) {
  UniqueFd fd = open_target(path, target);
  if (!fd.is_valid()) return errno;
  struct stat opened = {};
  const bool begins_anew =
      target.way == Way::kOpen && fstat(fd.get(), &opened) == 0 && S_ISREG(opened.st_mode);
  if (begins_anew && ftruncate(fd.get(), 0) != 0) return errno;
  const int error_number = write_text(fd.get(), write);
  if (close(fd.release()) != 0 && errno != EINTR && error_number == 0) return errno;
  return error_number;
}

/// Whether a sticky folder, such as /tmp, protects the file from this user: only the owner of the
/// file or of the folder may replace it.
bool is_protected(const std::string& folder, const struct stat& file) {
  struct stat attributes = {};
  if (file.st_mode == 0 || stat(folder.c_str(), &attributes) != 0) return false;
  const uid_t user = geteuid();
  return (attributes.st_mode & S_ISVTX) != 0 && user != 0 && file.st_uid != user &&
         attributes.st_uid != user;
}

bool is_socket(const std::string& path) {
  struct stat end = {};
  return stat(path.c_str(), &end) == 0 && S_ISSOCK(end.st_mode);
}

/// Why a file cannot be replaced, or made, in this folder. Returns an empty string if the errno's
/// own text says it.
std::string folder_reason(int error_number, const std::string& folder, const struct stat& file) {
  const std::string name = "the directory " + shown(folder);
  if (error_number == ENOENT) return name + " does not exist";
  if (error_number == EACCES) return name + " cannot be written by this user";
  if (error_number == EPERM && is_protected(folder, file)) {
    return "it belongs to user " + std::to_string(file.st_uid) + ", and " + name +
           " is sticky, so only that user may replace it";
  }
  return {};
}

Status refusal(int error_number, const std::string& path, const Target& target) {
  const Status status = status_from_errno(error_number, "");
  std::string reason;
  if (error_number == EISDIR) {
    reason = "it is a directory";
  } else if (target.way == Way::kReplace) {
    reason = folder_reason(error_number, place_of(path).folder, target.found);
  } else if (target.way == Way::kDescriptor && error_number == EBADF) {
    reason = "descriptor " + std::to_string(target.descriptor) + " is not open for writing";
  } else if (error_number == ENXIO) {
    reason = is_socket(path) ? "it is a socket" : "nobody reads this pipe";
  }
  return {status.code(), reason.empty() ? status.message().substr(2) : std::move(reason)};
}

int try_to_replace(const std::string& path, const Target& target) {
  Replacement replacement(path);
  const int error_number = replacement.make();
  if (error_number != 0) return error_number;
  return is_protected(place_of(path).folder, target.found) ? EPERM : 0;
}

int try_to_open(const std::string& path, const Target& target) {
  if (target.way == Way::kDescriptor) {
    const int flags = fcntl(target.descriptor, F_GETFL);
    return flags < 0 || (flags & O_ACCMODE) == O_RDONLY ? EBADF : 0;
  }
  struct stat end = {};  // what a link leads to
  if (stat(path.c_str(), &end) == 0 && !S_ISREG(end.st_mode)) {
    if (S_ISDIR(end.st_mode)) return EISDIR;
    if (S_ISSOCK(end.st_mode)) return ENXIO;
    // To open it might rewind a tape, and would tell the reader of a pipe that all is written.
    return faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0 ? 0 : errno;
  }
  return open_target(path, target).is_valid() ? 0 : errno;
}

/// The path without links. Returns an empty string where links lead in a circle, or the working
/// directory is gone.
std::string resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return {};
  const std::filesystem::path plain = std::filesystem::weakly_canonical(absolute, error);
  return error ? std::string() : plain.string();
}

/// Returns 0 or the errno of the write that failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written == 0) {
      return EIO;
    } else if (errno == EAGAIN) {
      // Whoever else has this terminal or pipe made it non-blocking.
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

UniqueFd make_hidden_file(int folder_fd, const char* ending, int flags, mode_t mode,
                          std::string* made_name) {
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != ssize_t{sizeof random}) continue;
    std::array<char, 64> name;
    snprintf(name.data(), name.size(), ".tencache-%016lx%s", random, ending);
    UniqueFd made(
        openat(folder_fd, name.data(), flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!made.is_valid() && errno == EEXIST) continue;
    if (made.is_valid()) *made_name = name.data();
    return made;
  }
  errno = EEXIST;
  return {};
}

void OutputText::append(std::string_view text) {
  if (text.size() < kWrittenAtOnceBytes) {
    waiting_ += text;
    if (waiting_.size() < kWrittenAtOnceBytes) return;
    text = {};
  }
  flush();
  write_out(text);
}

int OutputText::flush() {
  write_out(waiting_);
  waiting_.clear();
  return error_number_;
}

void OutputText::write_out(std::string_view text) {
  if (error_number_ == 0) error_number_ = write_all(fd_, text);
}

Status write_output_file(const std::string& path, const std::function<void(OutputText&)>& write) {
  const Target target = look_at(path);
  int error_number = target.error_number;
  if (error_number == 0) {
    error_number =
        target.way == Way::kReplace ? replace(path, write) : write_through(path, target, write);
  }
  return error_number == 0 ? Status::ok() : refusal(error_number, path, target);
}

Status try_output_file(const std::string& path) {
  const Target target = look_at(path);
  int error_number = target.error_number;
  if (error_number == 0) {
    error_number =
        target.way == Way::kReplace ? try_to_replace(path, target) : try_to_open(path, target);
  }
  return error_number == 0 ? Status::ok() : refusal(error_number, path, target);
}

bool is_shared_output(const std::string& path) {
  struct stat end = {};
  if (named_descriptor(path) >= 0) return true;
  return stat(path.c_str(), &end) == 0 && !S_ISREG(end.st_mode) && !S_ISDIR(end.st_mode);
}

bool is_same_output(const std::string& one, const std::string& other) {
  if (is_shared_output(one) || is_shared_output(other)) return false;
  const std::string path = resolved(one);
  return !path.empty() && path == resolved(other);
}

}  // namespace tencache
