// SPDX-License-Identifier: Apache-2.0
//
// The log as seen on file descriptor 2: levels, prefixes, cutting, whole lines under threads.
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/child_process.h"

namespace tencache {
namespace {

/// A guard that sends file descriptor 2 to memory while it lives, and restores the level at the
/// end.
class StderrCapture {
 public:
  StderrCapture()
      : saved_fd_(dup(STDERR_FILENO)), memory_fd_(memfd_create("log", 0)), level_(log_level()) {
    // A memfd does not serialise writers by itself; append mode does, as for any log file.
    fcntl(memory_fd_, F_SETFL, O_APPEND);
    dup2(memory_fd_, STDERR_FILENO);
  }
  ~StderrCapture() {
    dup2(saved_fd_, STDERR_FILENO);
    close(saved_fd_);
    close(memory_fd_);
    set_log_level(level_);
  }
  std::string text() const {
    const off_t bytes = lseek(memory_fd_, 0, SEEK_END);
    std::string result(static_cast<size_t>(bytes), '\0');
    EXPECT_EQ(pread(memory_fd_, result.data(), result.size(), 0), bytes);
    return result;
  }

 private:
  int saved_fd_;
  int memory_fd_;
  LogLevel level_;
};

TEST(LogTest, PrefixesByLevel) {
  StderrCapture capture;
  set_log_level(LogLevel::kDebug);
  TENCACHE_LOG_ERROR("lost %d", 1);
  TENCACHE_LOG_WARNING("slow %s", "disk");
  TENCACHE_LOG_INFO("budget 2 GiB");
  TENCACHE_LOG_DEBUG("detail");
  EXPECT_EQ(capture.text(),
            "tencache: error: lost 1\n"
            "tencache: warning: slow disk\n"
            "tencache: budget 2 GiB\n"
            "tencache: debug: detail\n");
}

TEST(LogTest, PrintsNothingAboveTheLevel) {
  StderrCapture capture;
  set_log_level(LogLevel::kWarning);
  EXPECT_EQ(log_level(), LogLevel::kWarning);
  TENCACHE_LOG_INFO("silent");
  TENCACHE_LOG_DEBUG("silent");
  EXPECT_EQ(capture.text(), "");
  TENCACHE_LOG_WARNING("seen");
  EXPECT_EQ(capture.text(), "tencache: warning: seen\n");
}

TEST(LogTest, CutsLongText) {
  StderrCapture capture;
  TENCACHE_LOG_INFO("%s", std::string(5000, 'x').c_str());
  const std::string text = capture.text();
  EXPECT_EQ(text.size(), 2001U);
  EXPECT_TRUE(text.ends_with("xxx...\n"));
}

TEST(LogTest, KeepsErrno) {
  StderrCapture capture;
  errno = ENOSPC;
  TENCACHE_LOG_INFO("text");
  EXPECT_EQ(errno, ENOSPC);
}

TEST(LogTest, SurvivesAClosedStderr) {
  StderrCapture capture;
  close(STDERR_FILENO);
  TENCACHE_LOG_INFO("nobody reads this");
  EXPECT_EQ(capture.text(), "");
}

TEST(LogTest, LinesOfThreadsStayWhole) {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  StderrCapture capture;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread] {
        for (int line = 0; line < kLines; ++line) {
          TENCACHE_LOG_INFO("thread %d line %d %s", thread, line, std::string(80, '.').c_str());
        }
      });
    }
  }
  std::istringstream lines(capture.text());
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with("tencache: thread ")) << line;
    EXPECT_TRUE(line.ends_with(std::string(80, '.'))) << line;
    seen.insert(line);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kThreads) * kLines);
}

// The label is for good, so it is set in a child.
TEST(LogTest, ALabelTellsWhoSpeaks) {
  EXPECT_EQ(run_in_child([] {
              StderrCapture capture;
              set_log_label("");
              TENCACHE_LOG_WARNING("before");
              set_log_label("rank 3");
              set_log_label("another");
              TENCACHE_LOG_WARNING("slow");
              TENCACHE_LOG_INFO("done");
              EXPECT_EQ(capture.text(),
                        "tencache: warning: before\n"
                        "tencache: rank 3: warning: slow\n"
                        "tencache: rank 3: done\n");
            }),
            0);
}

TEST(LogTest, ALongLabelIsCut) {
  EXPECT_EQ(run_in_child([] {
              StderrCapture capture;
              set_log_label(std::string(100, 'x'));
              TENCACHE_LOG_INFO("here");
              EXPECT_EQ(capture.text(), "tencache: " + std::string(31, 'x') + ": here\n");
            }),
            0);
}

}  // namespace
}  // namespace tencache
