// SPDX-License-Identifier: Apache-2.0
//
// The process's anonymous memory grows by the pages that it touches, and only by those.
#include "platform/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/units.h"
#include "support/child_process.h"

namespace tencache {
namespace {

TEST(ProcessMemoryTest, AnonymousPagesAreToldWhenTheyAreTouched) {
  constexpr uint64_t kBytes = 64 * kMiB;
  Result<std::unique_ptr<ProcessMemory>> memory = ProcessMemory::open();
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const uint64_t before = memory.value()->anonymous_bytes();
  EXPECT_GT(before, 0u);
  memset(mapped, 1, kBytes);
  const uint64_t touched = memory.value()->anonymous_bytes();
  EXPECT_GE(touched, before + kBytes / 2);
  munmap(mapped, kBytes);
  EXPECT_LE(memory.value()->anonymous_bytes(), touched - kBytes / 2);
}

TEST(ProcessMemoryTest, RefusedFileIsAnError) {
  const int outcome = run_in_child([] {
    if (!deny_syscall(SYS_openat, EACCES)) _exit(kSkipped);
    const Result<std::unique_ptr<ProcessMemory>> refused = ProcessMemory::open();
    ASSERT_FALSE(refused.is_ok());
    EXPECT_NE(refused.status().message().find("/proc/self/statm"), std::string::npos);
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace tencache
