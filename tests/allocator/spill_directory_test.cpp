// SPDX-License-Identifier: Apache-2.0
//
// Where a spill file may be made and how: every refusal of a directory with its message, a file
// that leaves no trace, and file systems without O_TMPFILE or O_DIRECT (imitated by seccomp
// filters).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "base/sanitizers.h"
#include "base/units.h"
#include "support/child_process.h"
#include "support/small_file_system.h"
#include "support/test_directory.h"
#include "tier/disk_tier.h"
#include "tier/spill_file.h"

namespace tencache {
namespace {

constexpr uid_t kNobody = 65534;

void expect_refused(const std::string& path, StatusCode code, std::string_view reason) {
  Result<DiskProbe> probe = probe_directory(path);
  ASSERT_FALSE(probe.is_ok()) << path;
  EXPECT_EQ(probe.status().code(), code) << probe.status().message();
  const std::string& message = probe.status().message();
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(message.find(reason), std::string::npos) << message;
  EXPECT_NE(message.find("--spill-dir"), std::string::npos) << message;
}

TEST(ProbeDirectoryTest, AcceptsADirectoryOfTheUser) {
  const TestDirectory directory;
  Result<DiskProbe> probe = probe_directory(directory.path());
  ASSERT_TRUE(probe.is_ok()) << probe.status().message();
  EXPECT_EQ(probe.value().directory, directory.path());
  EXPECT_FALSE(probe.value().file_system.empty());
  EXPECT_GT(probe.value().free_bytes, 64 * kMiB);
  EXPECT_TRUE(directory.is_empty()) << "the probe must leave nothing";
}

TEST(ProbeDirectoryTest, FollowsALinkToTheDirectory) {
  const TestDirectory directory;
  const std::string target = directory.path() + "/target";
  const std::string link = directory.path() + "/link";
  ASSERT_EQ(mkdir(target.c_str(), 0700), 0);
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  EXPECT_TRUE(probe_directory(link).is_ok());
}

TEST(ProbeDirectoryTest, RefusesWhatIsNotThere) {
  const TestDirectory directory;
  expect_refused(directory.path() + "/missing", StatusCode::kInvalidArgument, "does not exist");
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "x";
  expect_refused(file, StatusCode::kInvalidArgument, "not a directory");
}

TEST(ProbeDirectoryTest, RefusesMemory) {
  struct stat attributes = {};
  if (stat("/dev/shm", &attributes) != 0) GTEST_SKIP() << "there is no /dev/shm";
  expect_refused("/dev/shm", StatusCode::kInvalidArgument, "in memory (tmpfs)");
}

/// Mounts an overlay at `folder`/merged that writes into `folder`/below/upper. Returns false where
/// that is not allowed.
bool mount_overlay(const std::string& folder) {
  const std::string below = folder + "/below";
  for (const char* name : {"/lower", "/upper", "/work"}) mkdir((below + name).c_str(), 0700);
  mkdir((folder + "/merged").c_str(), 0700);
  const std::string options =
      "lowerdir=" + below + "/lower,upperdir=" + below + "/upper,workdir=" + below + "/work";
  return mount("overlay", (folder + "/merged").c_str(), "overlay", 0, options.c_str()) == 0;
}

bool has_own_mounts() {
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// Each child has its own view of the mounts, which ends with the child.
TEST(ProbeDirectoryTest, LooksBelowAnOverlay) {
  const TestDirectory directory;
  const std::string below = directory.path() + "/below";
  const std::string merged = directory.path() + "/merged";
  ASSERT_EQ(mkdir(below.c_str(), 0700), 0);
  int result = run_in_child([&] {
    if (!has_own_mounts() || !mount_overlay(directory.path())) _exit(kSkipped);
    const Result<DiskProbe> probe = probe_directory(merged);
    ASSERT_TRUE(probe.is_ok()) << probe.status().message();
    EXPECT_EQ(probe.value().file_system,
              "overlayfs over " + probe_directory(below).value().file_system);
  });
  if (result == kSkipped) GTEST_SKIP() << "needs root to mount an overlay";
  EXPECT_EQ(result, 0);
  result = run_in_child([&] {
    if (!has_own_mounts() || mount("tmpfs", below.c_str(), "tmpfs", 0, "size=256m") != 0 ||
        !mount_overlay(directory.path())) {
      _exit(kSkipped);
    }
    expect_refused(merged, StatusCode::kInvalidArgument, "in memory (overlayfs over tmpfs)");
    // Now the folder below is out of sight, as in a container.
    ASSERT_EQ(umount2(below.c_str(), MNT_DETACH), 0);
    const Result<DiskProbe> probe = probe_directory(merged);
    ASSERT_TRUE(probe.is_ok()) << probe.status().message();
    EXPECT_EQ(probe.value().file_system,
              "overlayfs over a file system that cannot be seen from here");
  });
  if (result == kSkipped) GTEST_SKIP() << "needs root to mount";
  EXPECT_EQ(result, 0);
}

TEST(ProbeDirectoryTest, RefusesADirectoryOfSomebodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a directory away";
  const TestDirectory directory;
  ASSERT_EQ(chown(directory.path().c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(chmod(directory.path().c_str(), 0777), 0);
  expect_refused(directory.path(), StatusCode::kInvalidArgument, "belongs to user 65534");
  ASSERT_EQ(chmod(directory.path().c_str(), 01777), 0);
  EXPECT_TRUE(probe_directory(directory.path()).is_ok()) << "sticky, as /var/tmp is";
}

TEST(ProbeDirectoryTest, RefusesWhatMayNotBeWritten) {
  const TestDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0500), 0);
  const bool is_root = geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(chown(directory.path().c_str(), kNobody, kNobody), 0);
  }
  const int result = run_in_child([&] {
    if (is_root) {
      ASSERT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    }
    expect_refused(directory.path(), StatusCode::kInvalidArgument, "Permission denied");
  });
  EXPECT_EQ(result, 0);
}

TEST(ProbeDirectoryTest, RefusesAFullDisk) {
  const SmallFileSystem disk(32 * kMiB);
  if (!disk.is_mounted()) GTEST_SKIP() << "needs root, mkfs.ext4 and a loop device";
  expect_refused(disk.path(), StatusCode::kNoSpace, "at least 64.0 MiB are needed");
}

TEST(ProbeDirectoryTest, RefusesADiskWithoutInodes) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall_when(SYS_openat, ENOSPC, 2, O_RDWR)) _exit(kSkipped);
    expect_refused(directory.path(), StatusCode::kNoSpace, "No space left");
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST(ProbeDirectoryTest, ReportsWhatIsRefused) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall(SYS_io_uring_setup, EPERM)) _exit(kSkipped);
    if (!deny_syscall_when(SYS_fcntl, EINVAL, 2, O_DIRECT)) _exit(kSkipped);
    Result<DiskProbe> probe = probe_directory(directory.path());
    ASSERT_TRUE(probe.is_ok()) << probe.status().message();
    EXPECT_NE(probe.value().direct_io_reason.find("Invalid argument"), std::string::npos)
        << probe.value().direct_io_reason;
    EXPECT_NE(probe.value().io_uring_reason.find("seccomp"), std::string::npos)
        << probe.value().io_uring_reason;
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

// ---- The file --------------------------------------------------------------------------------

void expect_private_file(int fd, const TestDirectory& directory) {
  struct stat attributes = {};
  ASSERT_EQ(fstat(fd, &attributes), 0);
  EXPECT_TRUE(S_ISREG(attributes.st_mode));
  EXPECT_EQ(attributes.st_mode & 07777, 0600U);
  EXPECT_EQ(attributes.st_nlink, 0U);
  EXPECT_EQ(attributes.st_size, 0);
  EXPECT_EQ(attributes.st_uid, geteuid());
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(directory.is_empty());
  const std::string source = "/proc/self/fd/" + std::to_string(fd);
  const std::string target = directory.path() + "/named";
  EXPECT_NE(linkat(AT_FDCWD, source.c_str(), AT_FDCWD, target.c_str(), AT_SYMLINK_FOLLOW), 0)
      << "the file must not get a name";
}

Result<SpillFile> make_spill_file(const TestDirectory& directory, Choice direct_io) {
  Result<SpillDirectory> opened = open_spill_directory(directory.path());
  if (!opened.is_ok()) return opened.status();
  return open_spill_file(opened.value(), directory.path(), direct_io);
}

TEST(SpillFileTest, HasNoNameAndIsPrivate) {
  const TestDirectory directory;
  const mode_t saved = umask(0);
  Result<SpillFile> file = make_spill_file(directory, Choice::kAuto);
  umask(saved);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  expect_private_file(file.value().fd.get(), directory);
}

TEST(SpillFileTest, DirectIoIsAsAskedFor) {
  const TestDirectory directory;
  Result<SpillFile> off = make_spill_file(directory, Choice::kOff);
  ASSERT_TRUE(off.is_ok());
  EXPECT_FALSE(off.value().direct_io);
  EXPECT_EQ(fcntl(off.value().fd.get(), F_GETFL) & O_DIRECT, 0);
  EXPECT_NE(off.value().direct_io_reason.find("switched off"), std::string::npos);
  Result<SpillFile> automatic = make_spill_file(directory, Choice::kAuto);
  ASSERT_TRUE(automatic.is_ok());
  EXPECT_EQ((fcntl(automatic.value().fd.get(), F_GETFL) & O_DIRECT) != 0,
            automatic.value().direct_io);
}

TEST(SpillFileTest, WithoutTmpfileANameLivesForAnInstant) {
  const TestDirectory directory;
  constexpr uint32_t kTmpfileBit = O_TMPFILE & ~O_DIRECTORY;
  for (const int error_number : {EOPNOTSUPP, EISDIR, EINVAL}) {
    const int result = run_in_child([&] {
      if (!deny_syscall_when(SYS_openat, error_number, 2, kTmpfileBit)) _exit(kSkipped);
      Result<SpillFile> file = make_spill_file(directory, Choice::kAuto);
      ASSERT_TRUE(file.is_ok()) << file.status().message();
      expect_private_file(file.value().fd.get(), directory);
    });
    if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(result, 0) << error_number;
  }
}

TEST(SpillFileTest, ANameThatCannotBeRemovedIsAnError) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall(SYS_unlinkat, EPERM)) _exit(kSkipped);
    const UniqueFd opened(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY));
    EXPECT_EQ(open_and_unlink(opened.get()), -1);
    EXPECT_EQ(errno, EPERM);
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST(SpillFileTest, AnExistingNameIsNeverTaken) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall_when(SYS_openat, EEXIST, 2, O_EXCL)) _exit(kSkipped);
    const UniqueFd opened(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY));
    EXPECT_EQ(open_and_unlink(opened.get()), -1);
    EXPECT_EQ(errno, EEXIST);
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST(SpillFileTest, DirectIoThatFailsAtTheFirstTransferIsNotUsed) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall_when(SYS_fcntl, EINVAL, 2, O_DIRECT)) _exit(kSkipped);
    Result<SpillFile> file = make_spill_file(directory, Choice::kAuto);
    ASSERT_TRUE(file.is_ok()) << file.status().message();
    EXPECT_FALSE(file.value().direct_io);
    Result<SpillFile> forced = make_spill_file(directory, Choice::kOn);
    ASSERT_FALSE(forced.is_ok());
    EXPECT_EQ(forced.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(forced.status().message().find("direct_io is on"), std::string::npos)
        << forced.status().message();
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

TEST(SpillFileTest, AFirstWriteThatFailsIsAnError) {
  const TestDirectory directory;
  const std::pair<int, StatusCode> cases[] = {{EIO, StatusCode::kIoError},
                                              {EDQUOT, StatusCode::kNoSpace}};
  for (const auto& [error_number, code] : cases) {
    const int result = run_in_child([&, error = error_number, expected = code] {
      if (!deny_syscall(SYS_pwrite64, error)) _exit(kSkipped);
      expect_refused(directory.path(), expected, "a first write failed");
    });
    if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(result, 0) << error_number;
  }
}

TEST(SpillFileTest, AFileThatCannotBeMappedIsAnError) {
  if (kHasSanitizer) GTEST_SKIP() << "sanitizers map what they allocate";
  const TestDirectory directory;
  const int result = run_in_child([&] {
    if (!deny_syscall(SYS_mmap, ENODEV)) _exit(kSkipped);
    expect_refused(directory.path(), StatusCode::kUnavailable, "cannot be mapped (No such device)");
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
}

// ---- Finding a directory ---------------------------------------------------------------------

TEST(FindSpillDirectoryTest, TakesTheFirstThatServes) {
  const TestDirectory directory;
  const int result = run_in_child([&] {
    setenv("TMPDIR", "/dev/shm", 1);
    setenv("XDG_CACHE_HOME", (directory.path() + "/missing").c_str(), 1);
    Result<DiskProbe> found = find_spill_directory();
    ASSERT_TRUE(found.is_ok()) << found.status().message();
    EXPECT_EQ(found.value().directory, "/var/tmp");

    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", directory.path().c_str(), 1);
    ASSERT_EQ(mkdir((directory.path() + "/.cache").c_str(), 0700), 0);
    found = find_spill_directory();
    ASSERT_TRUE(found.is_ok());
    EXPECT_EQ(found.value().directory, directory.path() + "/.cache");

    setenv("TMPDIR", directory.path().c_str(), 1);
    found = find_spill_directory();
    ASSERT_TRUE(found.is_ok());
    EXPECT_EQ(found.value().directory, directory.path());
  });
  EXPECT_EQ(result, 0);
}

TEST(FindSpillDirectoryTest, NamesAllThatWereTried) {
  const int result = run_in_child([] {
    // In this view of the machine everything is in memory.
    const bool has_own_view = unshare(CLONE_NEWNS) == 0 &&
                              mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                              mount("tmpfs", "/var/tmp", "tmpfs", 0, nullptr) == 0;
    if (!has_own_view || chdir("/dev/shm") != 0) _exit(kSkipped);
    setenv("TMPDIR", "/nowhere", 1);
    setenv("XDG_CACHE_HOME", "", 1);
    setenv("HOME", "/also/nowhere", 1);
    Result<DiskProbe> found = find_spill_directory();
    ASSERT_FALSE(found.is_ok()) << found.value().directory;
    EXPECT_EQ(found.status().code(), StatusCode::kUnavailable);
    const std::string& message = found.status().message();
    for (const char* part :
         {"/nowhere: it does not exist", "/also/nowhere/.cache: it does not exist",
          "/var/tmp: it is in memory", "/dev/shm: it is in memory", "TENCACHE_SPILL_DIR"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " not in:\n" << message;
    }
  });
  if (result == kSkipped) GTEST_SKIP() << "needs root to mount";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace tencache
