// SPDX-License-Identifier: Apache-2.0
//
// Messages to the user on stderr, one line each, prefixed "tencache: ". A message is formatted into
// a fixed buffer on the stack and leaves with one write(2), so lines of several threads or ranks do
// not mix. Nothing here allocates or takes a lock.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <string_view>

namespace tencache {

enum class LogLevel : uint8_t { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

/// The most verbose level that is printed. It is set once, when the runtime starts; the default is
/// kInfo.
void set_log_level(LogLevel level);
LogLevel log_level();

/// Names this process in its messages, where several write to one place: "rank 1" gives "tencache:
/// rank 1: …". The first label counts. Call before other threads of ours run; a forked child keeps
/// the label. A label is cut to 31 bytes.
void set_log_label(std::string_view label);
/// What stands between "tencache: " and a message: "rank 1: ", or "". Signal handlers may call
/// this, too.
const char* log_label();

/// Prints nothing when `level` is above log_level(). Text beyond 2000 bytes is cut.
void log(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace tencache

#define TENCACHE_LOG_ERROR(...) ::tencache::log(::tencache::LogLevel::kError, __VA_ARGS__)
#define TENCACHE_LOG_WARNING(...) ::tencache::log(::tencache::LogLevel::kWarning, __VA_ARGS__)
#define TENCACHE_LOG_INFO(...) ::tencache::log(::tencache::LogLevel::kInfo, __VA_ARGS__)
#define TENCACHE_LOG_DEBUG(...) ::tencache::log(::tencache::LogLevel::kDebug, __VA_ARGS__)
