// SPDX-License-Identifier: Apache-2.0
//
// Forked test bodies, and the seccomp filters that imitate a kernel, container or file system that
// refuses calls.
#include "support/child_process.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

namespace tencache {

namespace {

// An exception ends the child here: past this frame the child would run the suite's other tests,
// too.
[[noreturn]] void run_and_exit(const std::function<void()>& body) noexcept {
  body();
  fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

int run_in_child(const std::function<void()>& body) {
  fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) run_and_exit(body);
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool deny_syscall(int number, int error_number) {
  return deny_syscall_when(number, error_number, 0, 0);
}

bool deny_syscall_when(int number, int error_number, unsigned index, uint32_t mask) {
  // Arguments have 64 bits, and a filter loads 32 at a time. The masks are in the low half, which
  // comes first on little endian.
  const auto argument =
      static_cast<uint32_t>(offsetof(seccomp_data, args) + index * sizeof(uint64_t));
  const auto refusal = SECCOMP_RET_ERRNO | static_cast<uint32_t>(error_number);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mask, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, refusal),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof program / sizeof program[0], program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

}  // namespace tencache
