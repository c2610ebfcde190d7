// SPDX-License-Identifier: Apache-2.0
//
// The reader through the page cache: it sees what a mapping sees, reports what is missing instead
// of dying of it, and reads no other file that took the descriptor's number.
#include "tier/cached_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/unique_fd.h"
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

}  // namespace
}  // namespace tencache
