// SPDX-License-Identifier: Apache-2.0
//
// The log's level and label, and the one writer of lines to stderr (base/stderr_line.h). The level
// is a relaxed atomic: it is set once, when the runtime starts, and a thread that sees it late only
// prints one line more or less.
//
// Threads: any.
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/stderr_line.h"

namespace tencache {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};

constexpr size_t kLabelBytesMax = 31;
// What stands after the library's name; it ends in ": " unless it is empty. Signal handlers read
// it.
std::array<char, kLabelBytesMax + 3> g_label = {};
std::atomic<bool> g_has_label{false};

// What stands before a message's text, by its level.
constexpr std::array kLevelPrefixes = {"error: ", "warning: ", "", "debug: "};

}  // namespace

void StderrLine::append_name() { append("tencache: %s", log_label()); }

void StderrLine::append(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  append_list(format, arguments);
  va_end(arguments);
}

void StderrLine::append_list(const char* format, va_list arguments) {
  const size_t room = kTextBytesMax - bytes_;
  const int wanted = vsnprintf(text_ + bytes_, room + 1, format, arguments);
  if (wanted < 0) return;
  if (static_cast<size_t>(wanted) <= room) {
    bytes_ += static_cast<size_t>(wanted);
    return;
  }
  bytes_ = kTextBytesMax;
  memcpy(text_ + kTextBytesMax - 3, "...", 3);
}

void StderrLine::send() {
  const int saved_errno = errno;
  text_[bytes_] = '\n';
  ssize_t written = 0;
  do {
    written = write(STDERR_FILENO, text_, bytes_ + 1);
  } while (written < 0 && errno == EINTR);
  // A short write to a full pipe, or a closed stderr, loses the rest; there is nowhere to report
  // it.
  bytes_ = 0;
  errno = saved_errno;
}

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }

void set_log_label(std::string_view label) {
  if (g_has_label.load(std::memory_order_relaxed) || label.empty()) return;
  const size_t bytes = std::min(label.size(), kLabelBytesMax);
  memcpy(g_label.data(), label.data(), bytes);
  memcpy(g_label.data() + bytes, ": ", 3);
  g_has_label.store(true, std::memory_order_release);
}

const char* log_label() {
  return g_has_label.load(std::memory_order_acquire) ? g_label.data() : "";
}

void log(LogLevel level, const char* format, ...) {
  if (level > log_level()) return;
  StderrLine line;
  line.append_name();
  line.append("%s", kLevelPrefixes.at(static_cast<size_t>(level)));
  va_list arguments;
  va_start(arguments, format);
  line.append_list(format, arguments);
  va_end(arguments);
  line.send();
}

}  // namespace tencache
