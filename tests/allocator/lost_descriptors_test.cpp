// SPDX-License-Identifier: Apache-2.0
//
// A program closes descriptors that are not its own, and opens files that get their numbers: not a
// byte of those files changes, nothing of them is taken for a tensor's bytes, and the process ends
// with a message. Where the standard descriptors are closed, nothing of ours takes their place.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "support/aligned_buffer.h"
#include "support/channel_kinds.h"
#include "support/child_process.h"
#include "support/random.h"
#include "support/test_directory.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 4 * kPieceBytes;
constexpr int kNumbersMax = 1024;

/// The number of our descriptor whose link in /proc ends like this, or -1 for none.
int find_fd(const std::string& end) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string link = std::filesystem::read_symlink(entry.path(), error).string();
    if (link.ends_with(end)) return std::stoi(entry.path().filename());
  }
  return -1;
}

/// A file of the program's, which must stay as it is.
class Victim {
 public:
  Victim() : path_(directory_.path() + "/precious") {
    AlignedBuffer buffer(kBytes);
    memset(buffer.data(), 'p', kBytes);
    fd_ = UniqueFd(open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    EXPECT_EQ(write(fd_.get(), buffer.data(), kBytes), static_cast<ssize_t>(kBytes));
  }
  int fd() const { return fd_.get(); }
  bool is_untouched() const {
    std::string bytes(kBytes + 1, '\0');
    const ssize_t count = pread(fd_.get(), bytes.data(), bytes.size(), 0);
    return count == static_cast<ssize_t>(kBytes) &&
           bytes.find_first_not_of('p') == static_cast<size_t>(count);
  }

 private:
  TestDirectory directory_;
  std::string path_;
  UniqueFd fd_;
};

// ---- The standard descriptors ----------------------------------------------------------------

TEST(StandardDescriptorsTest, NothingTakesTheirPlace) {
  for (const Choice io_uring : {Choice::kAuto, Choice::kOff}) {
    const int result = run_in_child([io_uring] {
      std::array<bool, kNumbersMax> others = {};
      for (int fd = 3; fd < kNumbersMax; ++fd) {
        others.at(static_cast<size_t>(fd)) = fcntl(fd, F_GETFD) != -1;
      }
      for (int fd = 0; fd <= 2; ++fd) close(fd);
      TestEngine engine([io_uring](CpuEngineConfig& config) {
        config.userfaultfd = Choice::kAuto;
        config.disk->io_uring = io_uring;
        config.look_interval = std::chrono::milliseconds(1);
      });
      char* address = engine.allocate(kBytes);
      fill_pattern(address, kBytes, 1);
      engine.use({address}, AccessMode::kWrite);
      ASSERT_TRUE(engine.evict(address));
      engine.device().before_fork();  // a token that stays until the last child is gone
      engine.device().after_fork_in_parent();
      engine.use({address});
      EXPECT_TRUE(has_pattern(address, kBytes, 1));
      for (int fd = 0; fd <= 2; ++fd) EXPECT_EQ(fcntl(fd, F_GETFD), -1) << fd;
      for (int fd = 3; fd < kNumbersMax; ++fd) {
        const int flags = fcntl(fd, F_GETFD);
        const bool was_there = others.at(static_cast<size_t>(fd));
        if (flags == -1 || was_there) continue;
        EXPECT_NE(flags & FD_CLOEXEC, 0) << fd;
      }
    });
    EXPECT_EQ(result, 0);
  }
}

// ---- The spill file --------------------------------------------------------------------------

using UseOfDisk = std::function<void(DiskTier& disk, const Slot& slot, char* memory)>;

struct DiskCase {
  const char* name;
  UseOfDisk use;
};

const DiskCase kDiskCases[] = {
    {"write",
     [](DiskTier& disk, const Slot& slot, char* memory) {
       const IoSegment segment = {memory, slot.offset, slot.bytes};
       (void)disk.write({&segment, 1}, nullptr);
     }},
    {"read",
     [](DiskTier& disk, const Slot& slot, char* memory) {
       const IoSegment segment = {memory, slot.offset, slot.bytes};
       (void)disk.read({&segment, 1}, nullptr);
     }},
    {"grow", [](DiskTier& disk, const Slot&, char*) { (void)disk.allocate(100 * kMiB); }},
    {"drop", [](DiskTier& disk, const Slot& slot, char*) { disk.drop_page_cache(slot); }},
};

class LostSpillFileTest : public ::testing::TestWithParam<Choice> {
 protected:
  /// Opens a tier, loses its file by `lose`, and then uses the tier by `use`. The process that dies
  /// opens the tier, because a process forked later may not use it.
  void lose_and(const UseOfDisk& use, const std::function<void(int fd)>& lose) {
    DiskTierConfig config;
    config.directory = directory_.path();
    config.io_uring = GetParam();
    Result<std::unique_ptr<DiskTier>> disk = DiskTier::open(config);
    TENCACHE_CHECK(disk.is_ok(), "%s", disk.status().message().c_str());
    AlignedBuffer buffer(kBytes);
    memset(buffer.data(), 'o', kBytes);
    const Slot slot = disk.value()->allocate(kBytes).value();
    const IoSegment segment = {buffer.data(), slot.offset, slot.bytes};
    TENCACHE_CHECK(disk.value()->write({&segment, 1}, nullptr).status.is_ok());
    lose(disk.value()->fd());
    use(*disk.value(), slot, buffer.data());
    _exit(0);
  }
  /// Closes the number and gives it to a new file: to one with the old inode if any gets it.
  void give_to_new_file(int fd) {
    struct stat spill = {};
    TENCACHE_CHECK(fstat(fd, &spill) == 0 && close(fd) == 0);
    for (int index = 0; index < kNewFiles; ++index) {
      const int made = open(new_file(index).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
      struct stat attributes = {};
      TENCACHE_CHECK(made >= 0 && fstat(made, &attributes) == 0);
      if (made != fd) dup2(made, fd);
      if (attributes.st_ino == spill.st_ino) return;
    }
  }
  std::string new_file(int index) { return directory_.path() + "/new" + std::to_string(index); }

  static constexpr int kNewFiles = 64;
  const TestDirectory directory_;
};

TEST_P(LostSpillFileTest, EndsTheProcessAndSparesTheOtherFile) {
  for (const DiskCase& disk_case : kDiskCases) {
    SCOPED_TRACE(disk_case.name);
    const Victim victim;
    const auto lose = [&victim](int fd) { dup2(victim.fd(), fd); };
    EXPECT_DEATH(lose_and(disk_case.use, lose), "which was the spill file, and now has it for");
    EXPECT_TRUE(victim.is_untouched());
  }
}

TEST_P(LostSpillFileTest, EndsTheProcessWhereItIsOnlyClosed) {
  for (const DiskCase& disk_case : kDiskCases) {
    SCOPED_TRACE(disk_case.name);
    EXPECT_DEATH(lose_and(disk_case.use, [](int fd) { close(fd); }), "which was the spill file\\.");
  }
}

// A file system gives the inode of a file that is gone to the next one.
TEST_P(LostSpillFileTest, NoNewFilePassesForIt) {
  const auto lose = [this](int fd) { give_to_new_file(fd); };
  EXPECT_DEATH(lose_and(kDiskCases[0].use, lose), "which was the spill file, and now has it for");
  for (int index = 0; index < kNewFiles; ++index) {
    struct stat attributes = {};
    ASSERT_EQ(stat(new_file(index).c_str(), &attributes), 0) << "the one before passed for it";
    EXPECT_EQ(attributes.st_size, 0) << index;
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, LostSpillFileTest,
                         ::testing::Values(Choice::kAuto, Choice::kOff), [](const auto& info) {
                           return info.param == Choice::kAuto ? "auto" : "threads";
                         });

TEST(LostDescriptorsTest, AnotherFileIsNeverMappedOverATensor) {
  const Victim victim;
  const auto evict_to_it = [&victim] {
    TestEngine engine;
    char* address = engine.allocate(kBytes);
    fill_pattern(address, kBytes, 1);
    engine.use({address}, AccessMode::kWrite);
    TENCACHE_CHECK(engine.evict(address));
    engine.use({address});  // clean: it leaves again by a mapping alone
    dup2(victim.fd(), engine->device().disk()->fd());
    (void)engine.evict(address);
    _exit(0);
  };
  EXPECT_DEATH(evict_to_it(), "which was the spill file, and now has it for");
}

// ---- io_uring --------------------------------------------------------------------------------

TEST(LostDescriptorsTest, ARingHoldsTheFileItself) {
  const TestDirectory directory;
  UniqueFd file = make_file(directory.path());
  const UniqueFd spare(fcntl(file.get(), F_DUPFD_CLOEXEC, 3));
  Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 4);
  if (!channel.is_ok()) GTEST_SKIP() << channel.status().message();
  const Victim victim;
  AlignedBuffer out(kBytes);
  AlignedBuffer in(kBytes);
  Random().fill(out.data(), kBytes);
  ASSERT_EQ(dup2(victim.fd(), file.get()), file.get());
  const IoSegment segment = {out.data(), 0, kBytes};
  ASSERT_TRUE(
      channel.value()->transfer(IoDirection::kWrite, {&segment, 1}, nullptr).status.is_ok());
  EXPECT_TRUE(victim.is_untouched());
  ASSERT_EQ(pread(spare.get(), in.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
  EXPECT_EQ(memcmp(in.data(), out.data(), kBytes), 0);
}

TEST(LostDescriptorsTest, ARingThatIsLostEndsTheProcess) {
  const TestDirectory directory;
  const UniqueFd file = make_file(directory.path());
  if (!make_uring_channel(file.get(), 4).is_ok()) GTEST_SKIP() << "no io_uring here";
  for (const bool is_foreign : {false, true}) {
    const Victim victim;
    const auto lose_ring = [&] {
      Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 4);
      const int ring = find_fd("[io_uring]");
      TENCACHE_CHECK(channel.is_ok() && ring > 2);
      if (is_foreign) {
        dup2(victim.fd(), ring);
      } else {
        close(ring);
      }
      AlignedBuffer buffer(kBytes);
      const IoSegment segment = {buffer.data(), 0, kBytes};
      (void)channel.value()->transfer(IoDirection::kWrite, {&segment, 1}, nullptr);
      _exit(0);
    };
    EXPECT_DEATH(lose_ring(), "which was an io_uring");
    EXPECT_TRUE(victim.is_untouched());
  }
}

TEST(LostDescriptorsTest, ARingThatWasReplacedIsNotClosed) {
  const TestDirectory directory;
  const UniqueFd file = make_file(directory.path());
  Result<std::unique_ptr<IoChannel>> channel = make_uring_channel(file.get(), 4);
  if (!channel.is_ok()) GTEST_SKIP() << channel.status().message();
  const int ring = find_fd("[io_uring]");
  ASSERT_GT(ring, 2);
  const Victim victim;
  ASSERT_EQ(dup2(victim.fd(), ring), ring);
  channel.value().reset();
  EXPECT_NE(fcntl(ring, F_GETFD), -1) << "it belongs to the program";
  close(ring);
}

// ---- What is read or asked -------------------------------------------------------------------

TEST(LostDescriptorsTest, AnotherFileIsNotTakenForThePageMap) {
  Result<std::unique_ptr<PageMap>> page_map = PageMap::open();
  ASSERT_TRUE(page_map.is_ok()) << page_map.status().message();
  const int number = find_fd("/pagemap");
  ASSERT_GT(number, 2);
  AlignedBuffer page(kPageBytes);
  page.data()[0] = 1;
  // The zeros of this file would mean that no page was written.
  const UniqueFd zeros(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(dup2(zeros.get(), number), number);
  TouchedPages touched;
  const Status status = page_map.value()->scan(page.data(), kPageBytes, &touched);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("pagemap"), std::string::npos) << status.message();
  page_map.value().reset();
  EXPECT_NE(fcntl(number, F_GETFD), -1) << "it belongs to the program";
  close(number);
}

TEST(LostDescriptorsTest, AnotherMemoryFileIsNotTakenForAForksToken) {
  const TestDirectory directory;
  DiskTierConfig config;
  config.directory = directory.path();
  Result<std::unique_ptr<DiskTier>> disk = DiskTier::open(config);
  ASSERT_TRUE(disk.is_ok()) << disk.status().message();
  const Slot slot = disk.value()->allocate(kBytes).value();
  disk.value()->freeze_before_fork();
  disk.value()->after_fork_in_parent();
  const int number = find_fd("tencache-fork (deleted)");
  ASSERT_GT(number, 2);
  const UniqueFd theirs(memfd_create("theirs", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(dup2(theirs.get(), number), number);
  disk.value()->release(slot);
  EXPECT_EQ(disk.value()->used_bytes(), kBytes) << "a child may still map it";
  EXPECT_EQ(fcntl(theirs.get(), F_GET_SEALS), 0);
  disk.value().reset();
  EXPECT_NE(fcntl(number, F_GETFD), -1) << "it belongs to the program";
  close(number);
}

}  // namespace
}  // namespace tencache
