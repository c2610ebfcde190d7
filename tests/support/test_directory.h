// SPDX-License-Identifier: Apache-2.0
//
// TestDirectory: a fresh, empty directory on a real disk. The destructor removes it with everything
// in it. The directory lies in TENCACHE_TEST_DIR, or else in /var/tmp, which unlike /tmp is never
// in memory.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/check.h"

namespace tencache {

class TestDirectory {
 public:
  TestDirectory() {
    const char* parent = std::getenv("TENCACHE_TEST_DIR");
    path_ = std::string(parent != nullptr ? parent : "/var/tmp") + "/tencache-test-XXXXXX";
    TENCACHE_CHECK(mkdtemp(path_.data()) != nullptr, "no test directory %s", path_.c_str());
  }
  ~TestDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

}  // namespace tencache
