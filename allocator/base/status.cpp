// SPDX-License-Identifier: Apache-2.0
//
// The one place where an errno of the kernel becomes a StatusCode. The mapping follows from what
// the caller can do: no space means free some, unavailable means use another facility, invalid
// argument means a value from outside was wrong. Nothing here keeps state.
//
// Threads: any.
#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace tencache {
namespace {

StatusCode code_of_errno(int error_number) {
  switch (error_number) {
    case 0:
      return StatusCode::kOk;
    case ENOSPC:
    case EDQUOT:
      return StatusCode::kNoSpace;
    case ENOMEM:
      return StatusCode::kOutOfMemory;
    case EPERM:
    case ENOSYS:
    case EOPNOTSUPP:
      return StatusCode::kUnavailable;
    case EINVAL:
      return StatusCode::kInvalidArgument;
    default:
      return StatusCode::kIoError;
  }
}

}  // namespace

Status status_from_errno(int error_number, std::string_view what) {
  char buffer[128];
  // The GNU strerror_r may return a constant instead of filling the buffer. strerror itself is not
  // thread-safe.
  const char* reason = strerror_r(error_number, buffer, sizeof buffer);
  std::string message(what);
  message += ": ";
  message += reason;
  return {code_of_errno(error_number), std::move(message)};
}

}  // namespace tencache
