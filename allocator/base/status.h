// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how the core reports operating failures. Nothing in allocator/ throws to
// report one; a programmer's mistake aborts through base/check.h instead. The shim turns a Status
// into what PyTorch expects, once (shim/torch_error.h).
//
// A message says what was attempted, the value that was refused, the reason and the remedy, in one
// sentence each, so that it can be shown to a user unchanged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tencache {

enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,     // a value from outside is unusable: option, path, size
  kOutOfMemory = 2,         // the device budget, or the kernel, cannot hold the request
  kNoSpace = 3,             // a lower tier is full: budget, quota or file system
  kIoError = 4,             // the kernel reported a failed read, write or mapping
  kDataLoss = 5,            // the bytes that came back are not the bytes that were stored
  kUnavailable = 6,         // this machine or container does not offer the facility
  kFailedPrecondition = 7,  // the call is not allowed in the present state
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// The message without its final period, to stand inside a sentence.
  std::string clause() const {
    return message_.substr(0, message_.size() - (message_.ends_with('.') ? 1 : 0));
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

/// A Status for a failed system call: "<what>: <strerror(error_number)>". ENOSPC and EDQUOT become
/// kNoSpace, ENOMEM kOutOfMemory, EPERM/ENOSYS/EOPNOTSUPP kUnavailable, EINVAL kInvalidArgument,
/// the rest kIoError.
Status status_from_errno(int error_number, std::string_view what);

/// Either a value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool is_ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }

  /// Moves the value to `target` if there is one. Returns the status.
  template <typename Target>
  Status move_to(Target* target) && {
    if (is_ok()) *target = std::move(*value_);
    return std::move(status_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tencache

#define TENCACHE_RETURN_IF_ERROR(expression)                \
  do {                                                      \
    ::tencache::Status tencache_status_ = (expression);     \
    if (!tencache_status_.is_ok()) return tencache_status_; \
  } while (false)
