// SPDX-License-Identifier: Apache-2.0
//
// StderrLine: one line of text in a fixed buffer on the stack. It leaves with one write(2) to file
// descriptor 2, so lines of several threads or processes do not mix. It takes no lock and allocates
// nothing, because failed checks inside the allocator use it too. Text that does not fit is cut and
// ends in "...".
//
// Threads: one.
#pragma once

#include <cstdarg>
#include <cstddef>

namespace tencache {

class StderrLine {
 public:
  /// Longest text of a line, without its newline.
  static constexpr size_t kTextBytesMax = 2000;

  /// Appends "tencache: " and, where several processes write to one place, the label of this one
  /// (base/log.h), for example "tencache: rank 1: ".
  void append_name();
  void append(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void append_list(const char* format, va_list arguments) __attribute__((format(printf, 2, 0)));

  /// Ends the line and writes it. Leaves errno as it was.
  void send();

 private:
  char text_[kTextBytesMax + 2];  // the text, a newline, vsnprintf's terminator
  size_t bytes_ = 0;
};

}  // namespace tencache
