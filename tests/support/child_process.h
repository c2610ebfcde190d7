// SPDX-License-Identifier: Apache-2.0
//
// Test bodies that run in a forked child because they bend the whole process: system calls that the
// kernel refuses (seccomp), limits, another user, another view of the mounts. An expectation that
// fails in the child is printed there; the parent sees it in what run_in_child() returns. REQUIRES:
// one thread runs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

namespace tencache {

/// Forks, runs `body` in the child and waits. Returns 0 when no expectation failed in it, kSkipped
/// when the body ended the child with that, else another number.
int run_in_child(const std::function<void()>& body);

/// A body passes this to _exit when the machine does not allow what it needs.
inline constexpr int kSkipped = 77;

/// From now on the kernel answers the system call with this errno, in this process and its
/// children. Returns false when the kernel does not allow filters.
bool deny_syscall(int number, int error_number);

/// Does the same, only for calls in which argument `index` (from 0) has all bits of `mask` set.
bool deny_syscall_when(int number, int error_number, unsigned index, uint32_t mask);

}  // namespace tencache
