// SPDX-License-Identifier: Apache-2.0
//
// check_failed() and fatal(): the two ways in which the core itself ends the process. Both may run
// inside the allocator, with locks held and the heap in any state, so they format on the stack and
// write once. abort() leaves a core whose stack shows the place.
//
// Threads: any.
#include "base/check.h"

#include <atomic>
#include <cstdarg>
#include <cstdlib>

#include "base/stderr_line.h"

namespace tencache {
namespace {

std::atomic<bool> is_process_ending{false};

}  // namespace

bool is_ending() { return is_process_ending.load(std::memory_order_relaxed); }

void check_failed(const char* condition, const char* file, int line, const char* format, ...) {
  StderrLine text;
  text.append_name();
  text.append("check failed: %s at %s:%d", condition, file, line);
  // TENCACHE_CHECK puts a blank before its text, because gcc warns of an empty format.
  if (format[0] == ' ') ++format;
  if (format[0] != '\0') {
    text.append(": ");
    va_list arguments;
    va_start(arguments, format);
    text.append_list(format, arguments);
    va_end(arguments);
  }
  text.send();
  is_process_ending = true;
  abort();
}

void fatal(const char* format, ...) {
  StderrLine text;
  text.append_name();
  text.append("fatal: ");
  va_list arguments;
  va_start(arguments, format);
  text.append_list(format, arguments);
  va_end(arguments);
  text.send();
  is_process_ending = true;
  abort();
}

}  // namespace tencache
