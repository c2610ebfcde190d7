// SPDX-License-Identifier: Apache-2.0
//
// Host memory made to be pinned: the kernel's report of its pages, and kernels and containers that
// refuse (imitated by seccomp filters and limits in a child process).
#include "platform/host_memory.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/sanitizers.h"
#include "base/units.h"
#include "platform/numa.h"
#include "support/child_process.h"

namespace tencache {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE; no other advice has all of its bits

bool is_present(const HostMemory& memory) {
  std::vector<unsigned char> present(memory.bytes() / 4096);
  if (mincore(memory.data(), memory.bytes(), present.data()) != 0) return false;
  return std::all_of(present.begin(), present.end(), [](unsigned char page) { return page & 1; });
}

bool is_zero(const HostMemory& memory) {
  return std::all_of(memory.data(), memory.data() + memory.bytes(),
                     [](char byte) { return byte == 0; });
}

TEST(HostMemoryTest, IsAlignedPresentAndZero) {
  for (const unsigned threads : {1U, 3U}) {
    const uint64_t bytes = 36 * kMiB + 4096;  // three pieces, the last one odd
    Result<HostMemory> memory = HostMemory::map({bytes, -1, threads});
    ASSERT_TRUE(memory.is_ok()) << memory.status().message();
    EXPECT_EQ(memory.value().bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.value().data()) % (2 * kMiB), 0U);
    EXPECT_TRUE(is_present(memory.value()));
    EXPECT_TRUE(is_zero(memory.value()));
    const HostPlacement& placement = memory.value().placement();
    EXPECT_EQ(placement.threads, threads);
    EXPECT_EQ(placement.bind_refusal, "");
    EXPECT_EQ(placement.threads_refusal, "");
  }
}

TEST(HostMemoryTest, StartsNoMoreThreadsThanThereArePieces) {
  Result<HostMemory> memory = HostMemory::map({4096, -1, 8});
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  EXPECT_EQ(memory.value().placement().threads, 1U);
}

TEST(HostMemoryTest, MovesToAnotherOwner) {
  Result<HostMemory> first = HostMemory::map({4096, -1, 1});
  Result<HostMemory> second = HostMemory::map({8192, -1, 1});
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  char* const data = first.value().data();
  HostMemory owner = std::move(first).value();
  EXPECT_EQ(owner.data(), data);
  owner = std::move(second).value();
  EXPECT_EQ(owner.bytes(), 8192U);
  unsigned char present = 0;
  EXPECT_EQ(mincore(data, 4096, &present), -1) << "what it owned before is unmapped";
}

TEST(HostMemoryTest, LiesOnTheNodeThatIsAsked) {
  if (!processors_of_node(0).is_ok()) GTEST_SKIP() << "the kernel tells of no NUMA node";
  Result<HostMemory> memory = HostMemory::map({4 * kMiB, 0, 2});
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  const HostPlacement& placement = memory.value().placement();
  EXPECT_EQ(placement.threads_refusal, "");
  void* page = memory.value().data();
  int node = -1;
  if (syscall(SYS_move_pages, 0, 1, &page, nullptr, &node, 0) != 0) return;  // no answer
  EXPECT_EQ(node, 0);
}

TEST(HostMemoryTest, ANodeThatIsNotThereIsReported) {
  for (const int node : {1000, 5000}) {
    Result<HostMemory> memory = HostMemory::map({4096, node, 2});
    ASSERT_TRUE(memory.is_ok()) << memory.status().message();
    const HostPlacement& placement = memory.value().placement();
    EXPECT_NE(placement.bind_refusal.find(std::to_string(node)), std::string::npos);
    EXPECT_NE(placement.threads_refusal.find(std::to_string(node)), std::string::npos);
    EXPECT_TRUE(is_present(memory.value()));
  }
}

TEST(HostMemoryTest, AContainerThatRefusesPlacementIsReported) {
  const int outcome = run_in_child([] {
    if (!deny_syscall(SYS_mbind, EPERM)) _exit(kSkipped);
    if (!deny_syscall(SYS_sched_setaffinity, EPERM)) _exit(kSkipped);
    Result<HostMemory> memory = HostMemory::map({4096, 0, 1});
    ASSERT_TRUE(memory.is_ok()) << memory.status().message();
    const HostPlacement& placement = memory.value().placement();
    EXPECT_NE(placement.bind_refusal.find("not permitted"), std::string::npos);
    EXPECT_NE(placement.threads_refusal, "");
    EXPECT_TRUE(is_present(memory.value()));
  });
  if (outcome == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(outcome, 0);
}

TEST(HostMemoryTest, AnOldKernelIsTouchedPageByPage) {
  const int outcome = run_in_child([] {
    if (!deny_syscall_when(SYS_madvise, EINVAL, 2, kPopulateWrite)) _exit(kSkipped);
    Result<HostMemory> memory = HostMemory::map({20 * kMiB, -1, 2});
    ASSERT_TRUE(memory.is_ok()) << memory.status().message();
    EXPECT_FALSE(memory.value().placement().populated_by_kernel);
    EXPECT_TRUE(is_present(memory.value()));
  });
  if (outcome == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(outcome, 0);
}

TEST(HostMemoryTest, PagesThatCannotBeHadAreAnError) {
  const int outcome = run_in_child([] {
    if (!deny_syscall_when(SYS_madvise, ENOMEM, 2, kPopulateWrite)) _exit(kSkipped);
    Result<HostMemory> memory = HostMemory::map({40 * kMiB, -1, 2});
    ASSERT_FALSE(memory.is_ok());
    EXPECT_EQ(memory.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(memory.status().message().find("Cannot fill 40.0 MiB"), std::string::npos)
        << memory.status().message();
    EXPECT_NE(memory.status().message().find("budget of host memory"), std::string::npos);
  });
  if (outcome == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(outcome, 0);
}

TEST(HostMemoryTest, AddressSpaceThatCannotBeHadIsAnError) {
  if (kHasSanitizer) GTEST_SKIP() << "sanitizers keep terabytes of address space";
  const int outcome = run_in_child([] {
    const rlimit limit = {kGiB, kGiB};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    Result<HostMemory> memory = HostMemory::map({2 * kGiB, -1, 1});
    ASSERT_FALSE(memory.is_ok());
    EXPECT_EQ(memory.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(memory.status().message().find("Cannot map 2.00 GiB"), std::string::npos)
        << memory.status().message();
    EXPECT_TRUE(HostMemory::map({4 * kMiB, -1, 1}).is_ok());
  });
  EXPECT_EQ(outcome, 0);
}

TEST(HostMemoryTest, AProcessWithoutThreadsTouchesItself) {
  const int outcome = run_in_child([] {
    if (!deny_syscall(SYS_clone3, EAGAIN) || !deny_syscall(SYS_clone, EAGAIN)) _exit(kSkipped);
    Result<HostMemory> memory = HostMemory::map({40 * kMiB, 0, 4});
    ASSERT_TRUE(memory.is_ok()) << memory.status().message();
    EXPECT_EQ(memory.value().placement().threads, 1U);
    EXPECT_NE(memory.value().placement().threads_refusal, "");
    EXPECT_TRUE(is_present(memory.value()));
    sigset_t blocked;
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &blocked), 0);
    EXPECT_FALSE(sigismember(&blocked, SIGTERM)) << "the failed start leaves the mask as it was";
  });
  if (outcome == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(outcome, 0);
}

TEST(HostMemoryTest, AForkedChildDoesNotGetIt) {
  Result<HostMemory> memory = HostMemory::map({4 * kMiB, -1, 1});
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  memory.value().data()[0] = 7;
  const int outcome = run_in_child([&] {
    char* const data = memory.value().data();
    unsigned char present = 0;
    ASSERT_EQ(mincore(data, 4096, &present), -1);
    EXPECT_EQ(errno, ENOMEM);
    // The child may map something else there, which its HostMemory leaves alone.
    ASSERT_EQ(mmap(data, 4096, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              data);
    { const HostMemory in_child = std::move(memory).value(); }
    EXPECT_EQ(mincore(data, 4096, &present), 0);
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(memory.value().data()[0], 7);
}

TEST(HostMemoryTest, AForkedChildHasTheSamePagesWhereTheyAreShared) {
  Result<HostMemory> memory =
      HostMemory::map({.bytes = 4 * kMiB, .node = -1, .threads = 1, .is_shared = true});
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  char* const data = memory.value().data();
  data[0] = 7;
  const int outcome = run_in_child([&] {
    EXPECT_EQ(data[0], 7);
    data[1] = 8;
    { const HostMemory in_child = std::move(memory).value(); }
    EXPECT_EQ(data[0], 7) << "it is the parent's to unmap";
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(data[1], 8);
}

TEST(NumaTest, ReadsListsOfProcessors) {
  Result<cpu_set_t> list = parse_processor_list("0-2,5,1023");
  ASSERT_TRUE(list.is_ok());
  EXPECT_EQ(CPU_COUNT(&list.value()), 5);
  for (const int processor : {0, 1, 2, 5, 1023}) EXPECT_TRUE(CPU_ISSET(processor, &list.value()));
  list = parse_processor_list("");
  ASSERT_TRUE(list.is_ok()) << "a node of memory alone";
  EXPECT_EQ(CPU_COUNT(&list.value()), 0);
}

TEST(NumaTest, RefusesWhatIsNoList) {
  for (const char* text : {"x", "1,", "1-", "-1", "1--2", "3-1", "1024", "0 1", "99999999999"}) {
    const Result<cpu_set_t> list = parse_processor_list(text);
    ASSERT_FALSE(list.is_ok()) << text;
    EXPECT_EQ(list.status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tencache
