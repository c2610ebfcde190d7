// SPDX-License-Identifier: Apache-2.0
//
// The reader through the page cache: it sees what a mapping sees, reports what is missing instead
// of dying of it, and reads no other file that took the descriptor's number.
#include "tier/cached_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "base/unique_fd.h"
#include "support/child_process.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

constexpr size_t kPage = 4096;

class CachedReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = make_file("spill");
    for (size_t page = 0; page < 4; ++page) {
      const std::vector<char> bytes(kPage, static_cast<char>('a' + page));
      ASSERT_EQ(pwrite(file_.get(), bytes.data(), kPage, static_cast<off_t>(page * kPage)),
                static_cast<ssize_t>(kPage));
    }
  }
  UniqueFd make_file(const std::string& name) {
    const std::string path = directory_.path() + "/" + name;
    return UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }

  TestDirectory directory_;
  UniqueFd file_;
};

TEST_F(CachedReaderTest, ReadsWhatIsThere) {
  const CachedReader reader(file_.get());
  std::vector<char> memory(2 * kPage);
  ASSERT_TRUE(reader.read(kPage, memory).is_ok());
  EXPECT_EQ(memory[0], 'b');
  EXPECT_EQ(memory[kPage - 1], 'b');
  EXPECT_EQ(memory[2 * kPage - 1], 'c');
}

TEST_F(CachedReaderTest, MissingPagesAreAnErrorThatNamesTheOffset) {
  const CachedReader reader(file_.get());
  std::vector<char> memory(2 * kPage);
  const Status status = reader.read(3 * kPage, memory);
  EXPECT_EQ(status.code(), StatusCode::kIoError) << status.message();
  EXPECT_NE(status.message().find("at file offset 12288"), std::string::npos) << status.message();
}

TEST_F(CachedReaderTest, AnotherFileIsNotRead) {
  const int number = file_.get();
  const CachedReader reader(number);
  std::vector<char> memory(kPage);
  ASSERT_EQ(close(file_.release()), 0);
  EXPECT_EQ(reader.read(0, memory).code(), StatusCode::kUnavailable) << "closed";
  UniqueFd other = make_file("other");
  ASSERT_EQ(other.get(), number);
  ASSERT_EQ(ftruncate(other.get(), kPage), 0);
  EXPECT_EQ(reader.read(0, memory).code(), StatusCode::kUnavailable) << "foreign";
}

// FUSE with direct_io and 9p refuse shared mappings; a process may have no mapping left.
TEST_F(CachedReaderTest, MappingsThatAreRefusedStopNoRead) {
  struct Case {
    int error_number;
    uint32_t refused_flags;
  };
  for (const Case refused : {Case{ENODEV, MAP_SHARED}, Case{ENOMEM, 0}}) {
    if (kHasSanitizer && refused.refused_flags == 0) continue;  // a sanitizer maps its memory
    const int result = run_in_child([&] {
      const CachedReader reader(file_.get());
      std::vector<char> memory(2 * kPage);
      if (!deny_syscall_when(SYS_mmap, refused.error_number, 3, refused.refused_flags)) {
        _exit(kSkipped);
      }
      const Status status = reader.read(kPage, memory);
      EXPECT_TRUE(status.is_ok()) << status.message();
      EXPECT_EQ(memory[0], 'b');
      EXPECT_EQ(memory[2 * kPage - 1], 'c');
      EXPECT_EQ(reader.read(3 * kPage, memory).code(), StatusCode::kIoError) << "past the end";
    });
    if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(result, 0) << refused.error_number;
  }
}

TEST_F(CachedReaderTest, WhatCannotBeReadAtAllIsNoLostDescriptor) {
  if (kHasSanitizer) GTEST_SKIP() << "it maps what it allocates";
  const int result = run_in_child([&] {
    const CachedReader reader(file_.get());
    std::vector<char> memory(kPage);
    if (!deny_syscall(SYS_mmap, EPERM) || !deny_syscall(SYS_openat, EACCES)) _exit(kSkipped);
    const Status status = reader.read(kPage, memory);
    EXPECT_EQ(status.code(), StatusCode::kIoError) << status.message();
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace tencache
