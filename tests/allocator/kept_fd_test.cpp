// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that are kept: they lie above the standard ones, are told apart from files that got
// their number, and are closed only while they are ours.
#include "base/kept_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "support/child_process.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

class KeptFdTest : public ::testing::Test {
 protected:
  UniqueFd open_file(const char* name) {
    return UniqueFd(open((directory_.path() + "/" + name).c_str(), O_CREAT | O_RDWR, 0600));
  }

  TestDirectory directory_;
};

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST_F(KeptFdTest, TakesNoStandardNumber) {
  const int result = run_in_child([this] {
    for (int fd = 0; fd <= 2; ++fd) close(fd);
    for (int round = 0; round < 3; ++round) {
      const KeptFd kept(open_file("ours"));
      EXPECT_GT(kept.get(), 2);
      EXPECT_NE(fcntl(kept.get(), F_GETFD) & FD_CLOEXEC, 0);
      EXPECT_TRUE(kept.is_ours());
      for (int fd = 0; fd <= 2; ++fd) EXPECT_FALSE(is_open(fd));
    }
  });
  EXPECT_EQ(result, 0);
}

TEST_F(KeptFdTest, ANumberAboveThemStays) {
  UniqueFd fd = open_file("ours");
  const int number = fd.get();
  ASSERT_GT(number, 2);
  EXPECT_EQ(above_standard(std::move(fd)).get(), number);
  EXPECT_FALSE(above_standard(UniqueFd()).is_valid());
  EXPECT_FALSE(KeptFd().is_valid());
  EXPECT_FALSE(KeptFd().is_ours());
}

TEST_F(KeptFdTest, AnotherFileUnderTheNumberIsNotOurs) {
  KeptFd kept(open_file("ours"));
  const UniqueFd spare(fcntl(kept.get(), F_DUPFD_CLOEXEC, 3));
  const UniqueFd foreign = open_file("theirs");
  const UniqueFd memory(memfd_create("theirs", MFD_CLOEXEC));
  for (const int other : {foreign.get(), memory.get()}) {
    ASSERT_EQ(dup2(other, kept.get()), kept.get());
    EXPECT_FALSE(kept.is_ours());
  }
  ASSERT_EQ(dup2(spare.get(), kept.get()), kept.get());
  EXPECT_TRUE(kept.is_ours()) << "the same file again";
  ASSERT_EQ(close(kept.get()), 0);
  EXPECT_FALSE(kept.is_ours());
}

TEST_F(KeptFdTest, ClosesOnlyItsOwnFile) {
  int number = -1;
  {
    const KeptFd kept(open_file("ours"));
    number = kept.get();
    const UniqueFd foreign = open_file("theirs");
    ASSERT_EQ(dup2(foreign.get(), number), number);
  }
  EXPECT_TRUE(is_open(number)) << "it belongs to the program";
  close(number);
  {
    KeptFd kept(open_file("ours"));
    number = kept.get();
    const KeptFd moved = std::move(kept);
    EXPECT_TRUE(moved.is_ours());
  }
  EXPECT_FALSE(is_open(number));
}

TEST_F(KeptFdTest, TheMessageNamesNumberUseAndTheOtherFile) {
  const auto lose_to_another = [this] {
    const KeptFd kept(open_file("ours"));
    const UniqueFd foreign = open_file("theirs");
    dup2(foreign.get(), kept.get());
    kept.require_ours("the spill file");
  };
  EXPECT_DEATH(lose_to_another(),
               "closed descriptor [0-9]+, which was the spill file, and now has "
               "it for .*/theirs.*before tencache starts");
  const auto lose_to_a_name_for_the_terminal = [this] {
    const KeptFd kept(open_file("ours"));
    const UniqueFd foreign = open_file("\x1b[2J");
    dup2(foreign.get(), kept.get());
    kept.require_ours("the spill file");
  };
  EXPECT_DEATH(lose_to_a_name_for_the_terminal(), "now has it for [^\x1b]*/\\\\x1b\\[2J");
  const auto lose = [this] {
    const KeptFd kept(open_file("ours"));
    close(kept.get());
    kept.require_ours("the spill file");
  };
  EXPECT_DEATH(lose(), "which was the spill file\\. The process is stopped");
}

TEST_F(KeptFdTest, AHoldKeepsTheInodeFromOthers) {
  UniqueFd file = open_file("ours");
  const FileIdentity identity = FileIdentity::of(file.get());
  {
    FileHold made(file.get());
    const FileHold hold = std::move(made);
    ASSERT_TRUE(hold.is_valid());
    ASSERT_EQ(unlink((directory_.path() + "/ours").c_str()), 0);
    file.reset();
    for (int index = 0; index < 64; ++index) {
      const UniqueFd other = open_file(("theirs" + std::to_string(index)).c_str());
      ASSERT_TRUE(other.is_valid());
      EXPECT_FALSE(identity.is_of(other.get())) << index;
    }
  }
  EXPECT_FALSE(FileHold().is_valid());
  EXPECT_FALSE(FileHold(-1).is_valid());
}

}  // namespace
}  // namespace tencache
