// SPDX-License-Identifier: Apache-2.0
//
// The page map of a private file mapping: which pages were written, and whether any was read.
#include "platform/page_map.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "platform/address_arena.h"
#include "support/accessible.h"
#include "support/aligned_buffer.h"
#include "support/child_process.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

constexpr uint64_t kPages = 3000;  // more than one read of the page map holds
constexpr uint64_t kBytes = kPages * kPageBytes;

class PageMapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<PageMap>> page_map = PageMap::open();
    ASSERT_TRUE(page_map.is_ok()) << page_map.status().message();
    page_map_ = std::move(page_map).value();
    const int fd = open(directory_.path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    AlignedBuffer buffer(kBytes);
    ASSERT_EQ(pwrite(fd, buffer.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
    ASSERT_EQ(fdatasync(fd), 0);
    ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    address_ = static_cast<char*>(mapped);
    close(fd);
  }
  void TearDown() override {
    if (address_ != nullptr) munmap(address_, kBytes);
  }

  TouchedPages scan() const {
    TouchedPages touched;
    const Status status = page_map_->scan(address_, kBytes, &touched);
    EXPECT_TRUE(status.is_ok()) << status.message();
    return touched;
  }

  TestDirectory directory_;
  std::unique_ptr<PageMap> page_map_;
  char* address_ = nullptr;
};

TEST_F(PageMapTest, FreshMappingIsUntouched) {
  const TouchedPages touched = scan();
  EXPECT_TRUE(touched.written.empty());
  EXPECT_EQ(touched.read_count, 0u);
}

TEST_F(PageMapTest, ReadsAreCountedAndAreNoWrites) {
  const volatile char* bytes = address_;
  (void)bytes[1500 * kPageBytes];
  EXPECT_TRUE(is_readable(address_ + 2500 * kPageBytes));
  const TouchedPages touched = scan();
  EXPECT_TRUE(touched.written.empty());
  EXPECT_GE(touched.read_count, 2u);  // the kernel may map neighbours too
  EXPECT_LT(touched.read_count, 100u);
}

TEST_F(PageMapTest, WrittenPagesAreFoundExactly) {
  const std::vector<uint32_t> pages = {0, 1, 1023, 1024, 1025, 2047, 2998, 2999};
  for (const uint32_t page : pages) address_[page * kPageBytes + page % kPageBytes] = 1;
  const TouchedPages touched = scan();
  EXPECT_EQ(touched.written, pages);
}

TEST_F(PageMapTest, WritesOfTheKernelCount) {
  ASSERT_TRUE(overwrite_with_zero(address_ + 5 * kPageBytes));
  EXPECT_EQ(scan().written, std::vector<uint32_t>{5});
}

TEST_F(PageMapTest, WriteAfterReadIsOneWrite) {
  const volatile char* bytes = address_;
  (void)bytes[7 * kPageBytes];
  address_[7 * kPageBytes] = 1;
  EXPECT_EQ(scan().written, std::vector<uint32_t>{7});
}

TEST_F(PageMapTest, WriteProtectionHidesNothing) {
  address_[9 * kPageBytes] = 1;
  ASSERT_EQ(mprotect(address_, kBytes, PROT_READ), 0);
  EXPECT_EQ(scan().written, std::vector<uint32_t>{9});
}

TEST_F(PageMapTest, WritesInheritedByForkStayWritten) {
  address_[11 * kPageBytes] = 1;
  const int outcome = run_in_child([this] {
    Result<std::unique_ptr<PageMap>> own = PageMap::open();
    ASSERT_TRUE(own.is_ok());
    TouchedPages touched;
    ASSERT_TRUE(own.value()->scan(address_, kBytes, &touched).is_ok());
    EXPECT_EQ(touched.written, std::vector<uint32_t>{11});
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(scan().written, std::vector<uint32_t>{11});
}

TEST_F(PageMapTest, RefusedFileIsAnError) {
  const int outcome = run_in_child([] {
    if (!deny_syscall(SYS_openat, EACCES)) _exit(kSkipped);
    const Result<std::unique_ptr<PageMap>> refused = PageMap::open();
    ASSERT_FALSE(refused.is_ok());
    EXPECT_NE(refused.status().message().find("/proc/self/pagemap"), std::string::npos);
  });
  if (outcome == kSkipped) GTEST_SKIP() << "the kernel allows no seccomp filters";
  EXPECT_EQ(outcome, 0);
}

}  // namespace
}  // namespace tencache
