// SPDX-License-Identifier: Apache-2.0
//
// Checks of what must hold whatever the user does. A check that fails is a bug in tencache;
// check_failed() prints the place and the values with one write(2), allocates nothing, and aborts.
// An operating failure is a Status instead (base/status.h).
#pragma once

namespace tencache {

/// Prints "tencache: check failed: <condition> at <file>:<line>: <formatted text>" and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const char* format, ...) __attribute__((format(printf, 4, 5), cold));

/// Ends the process where going on could hand the program wrong bytes or spoil a file of its own:
/// the disk lost data, say, or the program closed a descriptor of ours. Prints "tencache: fatal:
/// <text>" and aborts.
[[noreturn]] void fatal(const char* format, ...) __attribute__((format(printf, 1, 2), cold));

/// Whether check_failed() or fatal() is ending the process. A handler of SIGABRT still runs, and
/// may fork.
bool is_ending();

}  // namespace tencache

#define TENCACHE_CHECK(condition, ...)                                           \
  do {                                                                           \
    if (__builtin_expect(!(condition), 0)) {                                     \
      ::tencache::check_failed(#condition, __FILE__, __LINE__, " " __VA_ARGS__); \
    }                                                                            \
  } while (false)

#ifdef NDEBUG
// The check is compiled and never evaluated: names in it count as used, and it cannot rot.
#define TENCACHE_DCHECK(condition, ...)                              \
  do {                                                               \
    if (false) TENCACHE_CHECK(condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
#else
#define TENCACHE_DCHECK(condition, ...) TENCACHE_CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif

/// Marks a slow path: out of line and away from the hot code.
#define TENCACHE_SLOW __attribute__((noinline, cold))
/// Marks what runs at every op, or at every allocation or launch in it. GNU's linker lays such
/// functions side by side: between two ops a program runs enough code to displace ours from the
/// caches, and what lies together is there again sooner.
#define TENCACHE_HOT __attribute__((hot))
