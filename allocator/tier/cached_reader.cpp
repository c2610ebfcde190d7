// SPDX-License-Identifier: Apache-2.0
//
// The file is mapped, because its descriptor may have O_DIRECT, which reads past the page cache.
// The mapping is private, as cold mappings are: some file systems refuse shared ones. The mapping
// is new and nobody writes to it, so it shows what the file has now. The kernel copies from it
// (process_vm_readv), and tells where a page is missing.
//
// Where nothing more can be mapped (vm.max_map_count), the file is opened once more, without
// O_DIRECT, and read.
#include "tier/cached_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/unique_fd.h"

namespace tencache {
namespace {

// Returns the errno, or 0.
int copy_from_mapping(const void* mapping, std::span<char> memory) {
  size_t done = 0;
  while (done < memory.size()) {
    const iovec local = {memory.data() + done, memory.size() - done};
    const iovec remote = {const_cast<char*>(static_cast<const char*>(mapping)) + done,
                          memory.size() - done};
    const ssize_t copied = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (copied < 0 && (errno == EPERM || errno == ENOSYS)) {
      // A sandbox refuses the call. A missing page then is a SIGBUS after all.
      memcpy(memory.data() + done, static_cast<const char*>(mapping) + done, memory.size() - done);
      return 0;
    }
    if (copied <= 0) return copied < 0 && errno != EFAULT ? errno : EIO;
    done += static_cast<size_t>(copied);
  }
  return 0;
}

// Returns the errno, or 0.
int copy_from_file(int fd, uint64_t offset, std::span<char> memory) {
  while (!memory.empty()) {
    const ssize_t got = pread(fd, memory.data(), memory.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    memory = memory.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return 0;
}

Status lost_descriptor() {
  return {StatusCode::kUnavailable, "the program has closed the spill file's descriptor"};
}

}  // namespace

Status CachedReader::read(uint64_t offset, std::span<char> memory) const {
  if (!identity_.is_of(fd_)) return lost_descriptor();
  void* const mapping =
      mmap(nullptr, memory.size(), PROT_READ, MAP_PRIVATE, fd_, static_cast<off_t>(offset));
  const bool is_mapped = mapping != MAP_FAILED;
  int error_number = is_mapped ? 0 : errno;
  // The mapping may be of another file, which got the number after the check above.
  const bool is_ours = identity_.is_of(fd_);
  if (is_mapped) {
    if (is_ours) error_number = copy_from_mapping(mapping, memory);
    munmap(mapping, memory.size());
  } else if (is_ours) {
    error_number = read_anew(offset, memory, error_number);
  }
  if (!is_ours) return lost_descriptor();
  if (error_number == 0) return Status::ok();
  const std::string attempt = "cannot read " + std::to_string(memory.size()) +
                              " bytes at file offset " + std::to_string(offset);
  return {StatusCode::kIoError, status_from_errno(error_number, attempt).message()};
}

// Returns the errno, or 0. Where the file cannot be opened, returns `refusal`, the errno of the
// mapping.
int CachedReader::read_anew(uint64_t offset, std::span<char> memory, int refusal) const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_valid() || !identity_.is_of(file.get())) return refusal;
  return copy_from_file(file.get(), offset, memory);
}

}  // namespace tencache
