// SPDX-License-Identifier: Apache-2.0
//
// A preloaded library that makes the disk fail or lie, in the threads channel's way to it: it
// stands in front of pread, pwrite, fallocate and mmap, and looks only at the spill file (a regular
// file without a name, of mode 0600). It does nothing before soak_fail_disk() is called. kKinds
// names the kinds of faults; which calls fail follows from the seed and the order of calls. Each
// fault puts one '!' into the descriptor that soak_fail_disk() was given.
//
// Threads: any. soak_fail_disk() is called once.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <string_view>

namespace {

enum class Call : uint8_t { kRead, kWrite, kGrow, kMap };

// What a call does instead of what it should.
enum class Effect : uint8_t {
  kError,     // fails with an error number
  kNothing,   // says that 0 bytes were moved
  kShort,     // moves half, in whole pages, and says so
  kOdd,       // says that fewer bytes were moved, and no whole page
  kDelay,     // does it later
  kFlip,      // one bit changes
  kMisplace,  // moves the bytes of another place
  kLose,      // says that it wrote and did not
  kTear,      // says that it wrote all and wrote half
};

struct Kind {
  std::string_view name;
  Call call;
  Effect effect;
  int error_number;
};

constexpr Kind kKinds[] = {
    {"read-eio", Call::kRead, Effect::kError, EIO},
    {"read-eintr", Call::kRead, Effect::kError, EINTR},
    {"read-eagain", Call::kRead, Effect::kError, EAGAIN},
    {"read-nothing", Call::kRead, Effect::kNothing, 0},
    {"read-short", Call::kRead, Effect::kShort, 0},
    {"read-odd", Call::kRead, Effect::kOdd, 0},
    {"read-delayed", Call::kRead, Effect::kDelay, 0},
    {"read-flip", Call::kRead, Effect::kFlip, 0},
    {"read-misplaced", Call::kRead, Effect::kMisplace, 0},
    {"write-eio", Call::kWrite, Effect::kError, EIO},
    {"write-enospc", Call::kWrite, Effect::kError, ENOSPC},
    {"write-edquot", Call::kWrite, Effect::kError, EDQUOT},
    {"write-erofs", Call::kWrite, Effect::kError, EROFS},
    {"write-eintr", Call::kWrite, Effect::kError, EINTR},
    {"write-eagain", Call::kWrite, Effect::kError, EAGAIN},
    {"write-nothing", Call::kWrite, Effect::kNothing, 0},
    {"write-short", Call::kWrite, Effect::kShort, 0},
    {"write-odd", Call::kWrite, Effect::kOdd, 0},
    {"write-delayed", Call::kWrite, Effect::kDelay, 0},
    {"write-misplaced", Call::kWrite, Effect::kMisplace, 0},
    {"write-lost", Call::kWrite, Effect::kLose, 0},
    {"write-torn", Call::kWrite, Effect::kTear, 0},
    {"grow-enospc", Call::kGrow, Effect::kError, ENOSPC},
    {"grow-eio", Call::kGrow, Effect::kError, EIO},
    {"grow-eopnotsupp", Call::kGrow, Effect::kError, EOPNOTSUPP},
    {"map-enomem", Call::kMap, Effect::kError, ENOMEM},
};

constexpr size_t kPageBytes = 4096;
constexpr size_t kOddBytes = 904;
constexpr off_t kElsewhereBytes = 1 << 20;

// soak_fail_disk() sets these, g_kind last. The counters change later.
const Kind* g_kind = nullptr;
uint64_t g_chance = 0;  // of 10,000 calls
int64_t g_skip = 0;     // this many calls first go well
int64_t g_most = 0;     // faults
long g_delay_us = 0;
int g_marks_fd = -1;
std::atomic<uint64_t> g_random{0};
std::atomic<int64_t> g_calls{0};
std::atomic<int64_t> g_faults{0};

// These two functions do all that the C library's pread and pwrite do on x86-64.
ssize_t real_read(int fd, void* memory, size_t bytes, off_t offset) {
  return syscall(SYS_pread64, fd, memory, bytes, offset);
}
ssize_t real_write(int fd, const void* memory, size_t bytes, off_t offset) {
  return syscall(SYS_pwrite64, fd, memory, bytes, offset);
}

// Returns the next number of splitmix64; each call takes another one.
uint64_t next_random() {
  uint64_t value = g_random.fetch_add(0x9E3779B97F4A7C15ULL) + 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

bool is_spill_file(int fd) {
  struct stat status;
  const int error_number = errno;
  const bool is_it = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0 &&
                     (status.st_mode & 0777) == 0600;
  errno = error_number;
  return is_it;
}

// Whether this call fails, and is counted as a fault.
bool is_hit(Call call, int fd) {
  if (g_kind == nullptr || g_kind->call != call || !is_spill_file(fd)) return false;
  if (g_calls.fetch_add(1) < g_skip || next_random() % 10000 >= g_chance) return false;
  if (g_faults.fetch_add(1) >= g_most) return false;
  const int error_number = errno;
  (void)!write(g_marks_fd, "!", 1);
  errno = error_number;
  return true;
}

void wait_a_while() {
  const timespec time = {g_delay_us / 1'000'000, g_delay_us % 1'000'000 * 1000};
  nanosleep(&time, nullptr);
}

size_t half_of(size_t bytes) { return bytes / 2 & ~(kPageBytes - 1); }

off_t elsewhere(off_t offset) {
  return offset >= kElsewhereBytes ? offset - kElsewhereBytes : offset + off_t{kPageBytes};
}

ssize_t odd_count(ssize_t count) {
  const auto odd = static_cast<ssize_t>(kPageBytes + kOddBytes);
  return std::min(count, odd);
}

ssize_t bad_read(int fd, void* memory, size_t bytes, off_t offset) {
  switch (g_kind->effect) {
    case Effect::kError:
      errno = g_kind->error_number;
      return -1;
    case Effect::kNothing:
      return 0;
    case Effect::kShort:
      return real_read(fd, memory, std::max(half_of(bytes), kPageBytes), offset);
    case Effect::kOdd:
      return odd_count(real_read(fd, memory, bytes, offset));
    case Effect::kMisplace:
      return real_read(fd, memory, bytes, elsewhere(offset));
    case Effect::kFlip: {
      const ssize_t count = real_read(fd, memory, bytes, offset);
      const uint64_t place = next_random();
      if (count > 0) {
        static_cast<char*>(memory)[place % static_cast<uint64_t>(count)] ^=
            static_cast<char>(1 << (place >> 40 & 7));
      }
      return count;
    }
    default:
      wait_a_while();
      return real_read(fd, memory, bytes, offset);
  }
}

ssize_t bad_write(int fd, const void* memory, size_t bytes, off_t offset) {
  switch (g_kind->effect) {
    case Effect::kError:
      errno = g_kind->error_number;
      return -1;
    case Effect::kNothing:
      return 0;
    case Effect::kShort:
      return real_write(fd, memory, std::max(half_of(bytes), kPageBytes), offset);
    case Effect::kOdd:
      return odd_count(real_write(fd, memory, bytes, offset));
    case Effect::kMisplace:
      return real_write(fd, memory, bytes, elsewhere(offset));
    case Effect::kLose:
      return static_cast<ssize_t>(bytes);
    case Effect::kTear:
      (void)!real_write(fd, memory, std::max(half_of(bytes), kPageBytes), offset);
      return static_cast<ssize_t>(bytes);
    default:
      wait_a_while();
      return real_write(fd, memory, bytes, offset);
  }
}

}  // namespace

extern "C" {

/// From now on makes calls fail with this kind of fault. Returns 0, or -1 if there is no such kind.
__attribute__((visibility("default"))) int soak_fail_disk(const char* kind, uint64_t seed,
                                                          uint64_t chance, int64_t skip,
                                                          int64_t most, long delay_us,
                                                          int marks_fd) {
  const auto* const end = std::end(kKinds);
  const auto* const found = std::find_if(
      std::begin(kKinds), end, [kind](const Kind& candidate) { return candidate.name == kind; });
  if (found == end) return -1;
  g_random = seed;
  g_chance = chance;
  g_skip = skip;
  g_most = most;
  g_delay_us = delay_us;
  g_marks_fd = marks_fd;
  g_kind = found;
  return 0;
}

__attribute__((visibility("default"))) ssize_t pread64(int fd, void* memory, size_t bytes,
                                                       off_t offset) {
  // The start looks at the file with one page; a disk fails later.
  if (bytes > kPageBytes && is_hit(Call::kRead, fd)) return bad_read(fd, memory, bytes, offset);
  return real_read(fd, memory, bytes, offset);
}

__attribute__((visibility("default"))) ssize_t pread(int fd, void* memory, size_t bytes,
                                                     off_t offset) {
  return pread64(fd, memory, bytes, offset);
}

__attribute__((visibility("default"))) ssize_t pwrite64(int fd, const void* memory, size_t bytes,
                                                        off_t offset) {
  if (bytes > kPageBytes && is_hit(Call::kWrite, fd)) return bad_write(fd, memory, bytes, offset);
  return real_write(fd, memory, bytes, offset);
}

__attribute__((visibility("default"))) ssize_t pwrite(int fd, const void* memory, size_t bytes,
                                                      off_t offset) {
  return pwrite64(fd, memory, bytes, offset);
}

__attribute__((visibility("default"))) int fallocate64(int fd, int mode, off_t offset,
                                                       off_t bytes) {
  if (is_hit(Call::kGrow, fd)) {
    errno = g_kind->error_number;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

__attribute__((visibility("default"))) int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return fallocate64(fd, mode, offset, bytes);
}

__attribute__((visibility("default"))) void* mmap64(void* address, size_t bytes, int protection,
                                                    int flags, int fd, off_t offset) {
  if (fd >= 0 && (flags & MAP_FIXED) != 0 && is_hit(Call::kMap, fd)) {
    errno = g_kind->error_number;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

__attribute__((visibility("default"))) void* mmap(void* address, size_t bytes, int protection,
                                                  int flags, int fd, off_t offset) {
  return mmap64(address, bytes, protection, flags, fd, offset);
}

}  // extern "C"
