// SPDX-License-Identifier: Apache-2.0
//
// The file is mapped, because its descriptor may have O_DIRECT, which reads past the page cache.
// The kernel copies from the mapping (process_vm_readv), and tells where a page is missing.
#include "tier/cached_reader.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

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
      // A sandbox. A missing page then is a SIGBUS after all.
      memcpy(memory.data() + done, static_cast<const char*>(mapping) + done, memory.size() - done);
      return 0;
    }
    if (copied <= 0) return copied < 0 && errno != EFAULT ? errno : EIO;
    done += static_cast<size_t>(copied);
  }
  return 0;
}

}  // namespace

Status CachedReader::read(uint64_t offset, std::span<char> memory) const {
  if (!identity_.is_of(fd_)) {
    return {StatusCode::kUnavailable, "the program has closed the spill file's descriptor"};
  }
  void* const mapping =
      mmap(nullptr, memory.size(), PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(offset));
  if (mapping == MAP_FAILED) {
    const Status status = status_from_errno(errno, "mapping the spill file");
    return {StatusCode::kUnavailable, status.message()};
  }
  const int error_number = copy_from_mapping(mapping, memory);
  munmap(mapping, memory.size());
  if (error_number == 0) return Status::ok();
  return status_from_errno(error_number, "cannot read " + std::to_string(memory.size()) +
                                             " bytes at file offset " + std::to_string(offset));
}

}  // namespace tencache
