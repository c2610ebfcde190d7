// SPDX-License-Identifier: Apache-2.0
//
// Output files: a regular file is replaced as a whole or not at all, whatever other users put
// beside it; what is no regular file is written to and stays; and what would fail later is refused
// when it is tried.
//
// Devices are the tests' own: a mistake in what is tested could replace the machine's.
#include "platform/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "support/child_process.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

Status write_file(const std::string& path, std::string_view text) {
  return write_output_file(path, [text](OutputText& file) { file.append(text); });
}

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string read_to_end(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

mode_t mode_of(const std::string& path) {
  struct stat found = {};
  EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
  return found.st_mode;
}

class OutputFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  /// The names in the folder, in order.
  std::string names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory_.path())) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    std::string list;
    for (const std::string& name : found) list += (list.empty() ? "" : " ") + name;
    return list;
  }
  void expect_refused(const std::string& name, const std::string& reason) const {
    for (const Status& status : {try_output_file(name), write_file(name, "new")}) {
      EXPECT_FALSE(status.is_ok()) << name;
      EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
    }
  }

  TestDirectory directory_;
};

// ---- Regular files -----------------------------------------------------------------------------

TEST_F(OutputFileTest, FileIsMadeOrReplacedWithTheModeOfTheUmask) {
  const mode_t before = umask(027);
  EXPECT_TRUE(write_file(path("run.json"), "one").is_ok());
  EXPECT_EQ(mode_of(path("run.json")), S_IFREG | 0640u);
  umask(0);
  EXPECT_TRUE(write_file(path("run.json"), "two").is_ok());
  EXPECT_EQ(mode_of(path("run.json")), S_IFREG | 0666u);
  umask(before);
  EXPECT_EQ(read_file(path("run.json")), "two");
  EXPECT_EQ(names(), "run.json");
}

TEST_F(OutputFileTest, NameWithoutAFolderIsInTheWorkingDirectory) {
  EXPECT_EQ(run_in_child([this] {
              ASSERT_EQ(chdir(directory_.path().c_str()), 0);
              EXPECT_TRUE(try_output_file("run.json").is_ok());
              EXPECT_TRUE(write_file("run.json", "text").is_ok());
            }),
            0);
  EXPECT_EQ(read_file(path("run.json")), "text");
}

TEST_F(OutputFileTest, TextOfAnySizeArrivesInOrder) {
  std::string expected;
  const Status status = write_output_file(path("long"), [&expected](OutputText& file) {
    for (size_t bytes = 1; bytes < 1'000'000; bytes = bytes * 3 + 1) {
      const std::string part(bytes, static_cast<char>('a' + bytes % 26));
      file.append(part);
      expected += part;
    }
  });
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(read_file(path("long")) == expected);
}

TEST_F(OutputFileTest, TryingLeavesNothingAndChangesNothing) {
  EXPECT_TRUE(try_output_file(path("run.json")).is_ok());
  EXPECT_EQ(names(), "");
  std::ofstream(path("run.json")) << "old";
  EXPECT_TRUE(try_output_file(path("run.json")).is_ok());
  EXPECT_EQ(read_file(path("run.json")), "old");
  EXPECT_EQ(names(), "run.json");
}

TEST_F(OutputFileTest, FailedWriteKeepsTheOldFileAndLeavesNoTemporary) {
  std::ofstream(path("run.json")) << "old";
  EXPECT_EQ(run_in_child([this] {
              const rlimit limit = {4096, 4096};
              ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
              signal(SIGXFSZ, SIG_IGN);
              const Status status = write_file(path("run.json"), std::string(10'000, 'x'));
              ASSERT_FALSE(status.is_ok());
              EXPECT_EQ(status.message(), "File too large");
            }),
            0);
  EXPECT_EQ(read_file(path("run.json")), "old");
  EXPECT_EQ(names(), "run.json");
}

TEST_F(OutputFileTest, RefusedRenameLeavesNoTemporary) {
  EXPECT_EQ(run_in_child([this] {
              if (!deny_syscall(SYS_renameat, EIO)) _exit(kSkipped);
              EXPECT_EQ(write_file(path("run.json"), "text").message(), "Input/output error");
            }) % kSkipped,
            0);
  EXPECT_EQ(names(), "");
}

// Earlier versions used 'run.json.unfinished' and '.run.json.PID.tmp', names that others could take
// first.
TEST_F(OutputFileTest, NoNameBesideTheFileIsUsedThatOthersCouldKnow) {
  std::ofstream(path("victim")) << "victim";
  const std::string planted[] = {"run.json.unfinished", ".run.json.tmp",
                                 ".run.json." + std::to_string(getpid()) + ".tmp"};
  for (const std::string& name : planted) {
    fs::create_symlink(path("victim"), path(name));
  }
  ASSERT_TRUE(write_file(path("run.json"), "text").is_ok());
  EXPECT_EQ(read_file(path("victim")), "victim");
}

TEST_F(OutputFileTest, WritersOfOneNameNeverMixAndReadersSeeWholeFiles) {
  constexpr int kRounds = 200;
  const std::string texts[] = {std::string(300'000, 'a'), std::string(200'000, 'b')};
  ASSERT_TRUE(write_file(path("run.json"), texts[0]).is_ok());
  std::vector<std::thread> writers;
  for (const std::string& text : texts) {
    writers.emplace_back([this, &text] {
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(write_file(path("run.json"), text).is_ok());
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    const std::string seen = read_file(path("run.json"));
    ASSERT_TRUE(seen == texts[0] || seen == texts[1]) << "half a file of " << seen.size();
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(names(), "run.json");
}

TEST_F(OutputFileTest, WhatACrashLeavesBehindIsInNobodysWay) {
  EXPECT_NE(run_in_child([this] {
              (void)write_output_file(path("run.json"), [](OutputText&) { _exit(9); });
            }),
            0);
  const std::string left = names();
  EXPECT_TRUE(left.starts_with(".tencache-") && left.ends_with(".tmp")) << left;
  EXPECT_TRUE(write_file(path("run.json"), "text").is_ok());
  EXPECT_EQ(names(), left + " run.json");
}

TEST_F(OutputFileTest, NoFileGetsTheDescriptorOfAClosedStream) {
  EXPECT_EQ(run_in_child([this] {
              for (int fd = 0; fd <= STDERR_FILENO; ++fd) close(fd);
              (void)write_output_file(path("run.json"), [](OutputText& file) {
                for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
                  if (fcntl(fd, F_GETFD) >= 0) _exit(fd + 1);
                }
                file.append("text");
              });
            }),
            0);
  EXPECT_EQ(read_file(path("run.json")), "text");
}

// ---- What is no regular file --------------------------------------------------------------------

TEST_F(OutputFileTest, DeviceIsWrittenToAndStays) {
  const std::string null = path("null");
  if (mknod(null.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "this user cannot make a device";
  }
  EXPECT_TRUE(try_output_file(null).is_ok());
  EXPECT_TRUE(write_file(null, "text").is_ok());
  EXPECT_TRUE(S_ISCHR(mode_of(null)));
  EXPECT_TRUE(is_shared_output(null));
  EXPECT_EQ(names(), "null");
}

TEST_F(OutputFileTest, FullDeviceIsAnError) {
  const std::string full = path("full");
  if (mknod(full.c_str(), S_IFCHR | 0666, makedev(1, 7)) != 0) {
    GTEST_SKIP() << "this user cannot make a device";
  }
  EXPECT_TRUE(try_output_file(full).is_ok());
  const Status status = write_file(full, "text");
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_EQ(status.message(), "No space left on device");
  EXPECT_TRUE(S_ISCHR(mode_of(full)));
}

TEST_F(OutputFileTest, PipeIsWrittenToItsReaderAndStays) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  std::string seen;
  UniqueFd reader(open(path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.is_valid());
  ASSERT_EQ(fcntl(reader.get(), F_SETFL, 0), 0);
  EXPECT_TRUE(try_output_file(path("fifo")).is_ok());
  // The text is longer than a pipe holds, so that the writer waits for the reader.
  const std::string text(300'000, 'x');
  std::thread writer([&] { EXPECT_TRUE(write_file(path("fifo"), text).is_ok()); });
  // Until the writer has opened it, the pipe looks as if all had been written.
  while (seen.empty()) seen = read_to_end(reader.get());
  writer.join();
  EXPECT_TRUE(seen == text) << seen.size();
  EXPECT_TRUE(S_ISFIFO(mode_of(path("fifo"))));
  EXPECT_TRUE(is_shared_output(path("fifo")));
}

TEST_F(OutputFileTest, PipeThatNobodyReadsIsAnErrorOnlyWhenWritten) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_TRUE(try_output_file(path("fifo")).is_ok()) << "a reader may come yet";
  EXPECT_EQ(write_file(path("fifo"), "text").message(), "nobody reads this pipe");
  EXPECT_TRUE(S_ISFIFO(mode_of(path("fifo"))));
}

TEST_F(OutputFileTest, TryingDoesNotTellAPipesReaderThatAllIsWritten) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  const UniqueFd reader(open(path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(try_output_file(path("fifo")).is_ok());
  pollfd seen = {reader.get(), POLLIN, 0};
  EXPECT_EQ(poll(&seen, 1, 0), 0) << "a writer came and went: " << seen.revents;
}

TEST_F(OutputFileTest, SocketIsRefusedAndStays) {
  const UniqueFd server(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(server.is_valid());
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path("socket").c_str());
  ASSERT_EQ(bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  expect_refused(path("socket"), "it is a socket");
  EXPECT_TRUE(S_ISSOCK(mode_of(path("socket"))));
}

TEST_F(OutputFileTest, LinkStaysAndWhatItLeadsToIsWritten) {
  std::ofstream(path("file")) << "an old and longer text";
  fs::create_symlink("file", path("link"));
  fs::create_symlink("missing", path("dangling"));
  for (const char* name : {"link", "dangling"}) {
    EXPECT_TRUE(try_output_file(path(name)).is_ok());
    EXPECT_TRUE(write_file(path(name), "text").is_ok());
    EXPECT_TRUE(S_ISLNK(mode_of(path(name))));
    EXPECT_FALSE(is_shared_output(path(name)));
  }
  EXPECT_EQ(read_file(path("file")), "text");
  EXPECT_EQ(read_file(path("missing")), "text");
}

TEST_F(OutputFileTest, LinkToADirectoryOrIntoNowhereIsRefused) {
  fs::create_symlink(".", path("folder"));
  fs::create_symlink("none/file", path("nowhere"));
  fs::create_symlink("round", path("round"));
  expect_refused(path("folder"), "it is a directory");
  expect_refused(path("nowhere"), "No such file");
  expect_refused(path("round"), "Too many levels of symbolic links");
}

TEST_F(OutputFileTest, LinkOfAnotherUserInASharedFolderIsRefusedByTheKernel) {
  if (geteuid() != 0 || read_file("/proc/sys/fs/protected_symlinks") != "1\n") {
    GTEST_SKIP() << "needs root, and fs.protected_symlinks=1";
  }
  std::ofstream(path("victim")) << "victim";
  fs::create_symlink(path("victim"), path("run.json"));
  ASSERT_EQ(lchown(path("run.json").c_str(), 65534, 65534), 0);
  ASSERT_EQ(chown(directory_.path().c_str(), 1, 1), 0);
  ASSERT_EQ(chmod(directory_.path().c_str(), 01777), 0);
  expect_refused(path("run.json"), "Permission denied");
  EXPECT_EQ(read_file(path("victim")), "victim");
}

TEST_F(OutputFileTest, FileThatIsMountedByItselfIsWrittenTo) {
  std::ofstream(path("outer")) << "an old and longer text";
  std::ofstream(path("run.json")) << "below";
  if (mount(path("outer").c_str(), path("run.json").c_str(), nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "this user cannot mount";
  }
  EXPECT_TRUE(try_output_file(path("run.json")).is_ok());
  const Status status = write_file(path("run.json"), "text");
  EXPECT_EQ(umount(path("run.json").c_str()), 0);
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(read_file(path("outer")), "text");
  EXPECT_EQ(names(), "outer run.json");
}

// ---- Open descriptors ---------------------------------------------------------------------------

TEST_F(OutputFileTest, DescriptorIsWrittenWhereItsNextOutputWouldGo) {
  const UniqueFd log(open(path("log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(write(log.get(), "before\n", 7), 7);
  for (const char* folder : {"/dev/fd/", "/proc/self/fd/"}) {
    const std::string name = folder + std::to_string(log.get());
    EXPECT_TRUE(is_shared_output(name));
    EXPECT_TRUE(try_output_file(name).is_ok());
    EXPECT_TRUE(write_file(name, "text\n").is_ok());
  }
  ASSERT_EQ(write(log.get(), "after\n", 6), 6);
  EXPECT_EQ(read_file(path("log")), "before\ntext\ntext\nafter\n");
  EXPECT_EQ(names(), "log");
}

TEST_F(OutputFileTest, SocketThatIsOpenIsWrittenTo) {
  // Under systemd, stdout is a socket. Its name in /dev cannot be opened.
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  const std::string name = "/dev/fd/" + std::to_string(near.get());
  EXPECT_TRUE(try_output_file(name).is_ok());
  EXPECT_TRUE(write_file(name, "text").is_ok());
  char text[16] = {};
  EXPECT_EQ(recv(far.get(), text, sizeof text, MSG_DONTWAIT), 4);
  EXPECT_STREQ(text, "text");
}

TEST_F(OutputFileTest, StandardStreamsAreKnownByTheirNames) {
  EXPECT_EQ(run_in_child([this] {
              for (const auto& [name, fd] : {std::pair{"/dev/stdout", 1}, {"/dev/stderr", 2}}) {
                // The name leads to a regular file, but must count as an open descriptor.
                const UniqueFd log(open(path("log").c_str(), O_WRONLY | O_CREAT, 0600));
                if (dup2(log.get(), fd) != fd) _exit(1);
                if (!is_shared_output(name) || !try_output_file(name).is_ok()) _exit(2);
                close(fd);
                if (try_output_file(name).is_ok()) _exit(3);
              }
            }),
            0);
}

TEST_F(OutputFileTest, DescriptorThatIsNotOpenForWritingIsRefused) {
  const UniqueFd input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  expect_refused("/dev/fd/" + std::to_string(input.get()), "is not open for writing");
  expect_refused("/dev/fd/987654", "descriptor 987654 is not open for writing");
}

TEST_F(OutputFileTest, ReaderThatHasGoneIsAnErrorAndNoSignal) {
  EXPECT_EQ(run_in_child([] {
              int ends[2] = {-1, -1};
              ASSERT_EQ(pipe(ends), 0);
              close(ends[0]);
              signal(SIGPIPE, SIG_DFL);
              const Status status = write_file("/dev/fd/" + std::to_string(ends[1]), "text");
              EXPECT_EQ(status.message(), "Broken pipe");
              sigset_t pending;
              sigpending(&pending);
              EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
            }),
            0);
}

// ---- Known beforehand ---------------------------------------------------------------------------

TEST_F(OutputFileTest, WhatCannotBeWrittenIsRefusedWithItsReason) {
  fs::create_directory(path("folder"));
  std::ofstream(path("file")) << "old";
  expect_refused(path("none/run.json"), "the directory " + path("none") + " does not exist");
  expect_refused(path("folder"), "it is a directory");
  expect_refused(path("none/"), "it is a directory");
  expect_refused(path("file/run.json"), "Not a directory");
  expect_refused(path(std::string(256, 'x')), "File name too long");
  EXPECT_TRUE(try_output_file(path(std::string(255, 'x'))).is_ok());
  EXPECT_TRUE(write_file(path(std::string(255, 'x')), "text").is_ok());
}

TEST_F(OutputFileTest, OneFileMayHaveSeveralNames) {
  fs::create_directory(path("folder"));
  fs::create_directory_symlink(directory_.path(), path("folder/back"));
  fs::create_symlink("run.json", path("link"));
  fs::create_symlink("loop", path("loop"));
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  ASSERT_TRUE(try_output_file(path("link")).is_ok());
  for (const char* name : {"run.json", "./run.json", "folder/../run.json", "folder/back/run.json",
                           "folder/back/link", "link"}) {
    EXPECT_TRUE(is_same_output(path("run.json"), path(name))) << name;
    EXPECT_TRUE(is_same_output(path(name), path("run.json"))) << name;
    EXPECT_FALSE(is_same_output(path(name), path("folder/run.json"))) << name;
  }
  EXPECT_FALSE(is_same_output(path("loop"), path("loop")));
  for (const std::string& shared : {path("fifo"), std::string("/dev/null")}) {
    EXPECT_FALSE(is_same_output(shared, shared)) << "nothing there is replaced";
  }
  EXPECT_EQ(run_in_child([this] {
              ASSERT_EQ(chdir(path("folder").c_str()), 0);
              EXPECT_TRUE(is_same_output("run.json", path("folder/run.json")));
              ASSERT_EQ(chdir(path("folder/back").c_str()), 0);
              EXPECT_TRUE(is_same_output("folder/new.json", path("folder/new.json")));
            }),
            0);
}

TEST_F(OutputFileTest, FolderThatTheUserCannotWriteIsRefused) {
  fs::create_directory(path("folder"));
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(path("folder").c_str(), 0555), 0);
  EXPECT_EQ(run_in_child([this] {
              if (geteuid() == 0) {
                ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
              }
              expect_refused(path("folder/run.json"), path("folder") + " cannot be written");
            }),
            0);
}

TEST_F(OutputFileTest, FileOfAnotherUserInASharedFolderIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  std::ofstream(path("run.json")) << "theirs";
  ASSERT_EQ(chown(path("run.json").c_str(), 1, 1), 0);
  ASSERT_EQ(chmod(directory_.path().c_str(), 01777), 0);
  EXPECT_EQ(run_in_child([this] {
              ASSERT_EQ(setresuid(65534, 65534, 65534), 0);
              expect_refused(path("run.json"), "it belongs to user 1, and the directory");
            }),
            0);
  EXPECT_EQ(read_file(path("run.json")), "theirs");
  EXPECT_EQ(names(), "run.json");
}

TEST_F(OutputFileTest, FileSystemThatIsReadOnlyIsRefused) {
  if (mount("none", directory_.path().c_str(), "tmpfs", MS_RDONLY, nullptr) != 0) {
    GTEST_SKIP() << "this user cannot mount";
  }
  expect_refused(path("run.json"), "Read-only file system");
  EXPECT_EQ(umount(directory_.path().c_str()), 0);
}

}  // namespace
}  // namespace tencache
