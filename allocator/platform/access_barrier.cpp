// SPDX-License-Identifier: Apache-2.0
#include "platform/access_barrier.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/racy_access.h"
#include "platform/address_arena.h"

namespace tencache {
namespace {

#ifndef UFFD_USER_MODE_ONLY
// <linux/userfaultfd.h> has this since Linux 5.11; the header may be older than the kernel.
#define UFFD_USER_MODE_ONLY 1
#endif

#ifndef USERFAULTFD_IOC_NEW
// <linux/userfaultfd.h> has this since Linux 6.1; the header may be older than the kernel.
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

constexpr const char* kUserfaultfd = "userfaultfd";

uffdio_range range_of(const char* address, uint64_t bytes) {
  return {reinterpret_cast<uintptr_t>(address), bytes};
}

/// Opens a userfaultfd by the system call, which needs a privilege, or by the device, whose owner
/// grants it.
UniqueFd open_userfaultfd(int* error_number) {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, kFlags)));
  if (fd.get() >= 0) return fd;
  *error_number = errno;
  const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device.get() < 0) return UniqueFd();
  return UniqueFd(ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags));
}

}  // namespace

Result<std::unique_ptr<AccessBarrier>> AccessBarrier::open() {
  int error_number = 0;
  KeptFd file(open_userfaultfd(&error_number));
  if (!file.is_valid()) {
    if (error_number == 0) error_number = errno;
    std::string message = status_from_errno(error_number, "userfaultfd").message();
    if (error_number == EPERM) {
      message += "; sysctl vm.unprivileged_userfaultfd=1 or the capability SYS_PTRACE allows it";
    }
    return Status(StatusCode::kUnavailable, std::move(message));
  }
  return start(std::move(file), /*stops_everybody=*/true);
}

Result<std::unique_ptr<AccessBarrier>> AccessBarrier::open_unprivileged() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY;
  KeptFd file(UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, kFlags))));
  if (!file.is_valid()) return status_from_errno(errno, "userfaultfd for user code");
  return start(std::move(file), /*stops_everybody=*/false);
}

Result<std::unique_ptr<AccessBarrier>> AccessBarrier::start(KeptFd file, bool stops_everybody) {
  uffdio_api api = {};
  api.api = UFFD_API;
  if (ioctl(file.get(), UFFDIO_API, &api) != 0) {
    return status_from_errno(errno, "userfaultfd's API");
  }
  return std::unique_ptr<AccessBarrier>(new AccessBarrier(std::move(file), stops_everybody));
}

Status AccessBarrier::add(char* address, uint64_t bytes, uint64_t mode) const {
  uffdio_register request = {};
  request.range = range_of(address, bytes);
  request.mode = mode;
  if (!file_.is_ours()) return {StatusCode::kUnavailable, "the program has closed userfaultfd"};
  if (ioctl(file_.get(), UFFDIO_REGISTER, &request) == 0) return Status::ok();
  const int error_number = errno;
  // Where mappings run out in the middle, a part is registered.
  if (error_number == ENOMEM) reopen(address, bytes);
  return status_from_errno(error_number, "registering memory with userfaultfd");
}

Status AccessBarrier::close(char* address, uint64_t bytes) const {
  return add(address, bytes, UFFDIO_REGISTER_MODE_MISSING);
}

// The kernel protects only what is there, so each page is read first; a page that nobody has
// written yet is then the kernel's page of zeros.
Status AccessBarrier::protect(char* address, uint64_t bytes) const {
  TENCACHE_RETURN_IF_ERROR(add(address, bytes, UFFDIO_REGISTER_MODE_WP));
  for (uint64_t offset = 0; offset < bytes; offset += kPageBytes) {
    const RacyReads racy;
    (void)*static_cast<const volatile char*>(address + offset);
  }
  const Status status = set_writable(address, bytes, false);
  if (!status.is_ok()) reopen(address, bytes);
  return status;
}

void AccessBarrier::unprotect(char* address, uint64_t bytes) const {
  const Status status = set_writable(address, bytes, true);
  if (!status.is_ok()) file_.require_ours(kUserfaultfd);
  TENCACHE_CHECK(status.is_ok(), "%s", status.message().c_str());
  reopen(address, bytes);
}

Status AccessBarrier::set_writable(char* address, uint64_t bytes, bool is_writable) const {
  uffdio_writeprotect request = {};
  request.range = range_of(address, bytes);
  request.mode = is_writable ? 0 : UFFDIO_WRITEPROTECT_MODE_WP;
  for (;;) {
    if (ioctl(file_.get(), UFFDIO_WRITEPROTECT, &request) == 0) return Status::ok();
    if (errno != EAGAIN) return status_from_errno(errno, "write-protecting with userfaultfd");
  }
}

void AccessBarrier::wake(char* address, uint64_t bytes) const {
  uffdio_range range = range_of(address, bytes);
  const int result = ioctl(file_.get(), UFFDIO_WAKE, &range);
  if (result != 0) file_.require_ours(kUserfaultfd);
  TENCACHE_CHECK(result == 0, "errno %d", errno);
}

void AccessBarrier::reopen(char* address, uint64_t bytes) const {
  uffdio_range range = range_of(address, bytes);
  const int result = ioctl(file_.get(), UFFDIO_UNREGISTER, &range);
  if (result != 0) file_.require_ours(kUserfaultfd);
  TENCACHE_CHECK(result == 0, "errno %d", errno);
  wake(address, bytes);
}

Status AccessBarrier::copy_back(const char* source, char* address, uint64_t bytes) const {
  for (uint64_t done = 0; done < bytes;) {
    uffdio_copy request = {};
    request.dst = range_of(address, bytes).start + done;
    request.src = range_of(source, bytes).start + done;
    request.len = bytes - done;
    if (ioctl(file_.get(), UFFDIO_COPY, &request) == 0) return Status::ok();
    if (errno != EAGAIN) return status_from_errno(errno, "copying memory back");
    if (request.copy > 0) done += static_cast<uint64_t>(request.copy);
  }
  return Status::ok();
}

}  // namespace tencache
