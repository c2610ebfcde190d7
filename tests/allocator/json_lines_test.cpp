// SPDX-License-Identifier: Apache-2.0
//
// JSON lines: a file appears whole or not at all, whatever fails, and any name becomes valid text.
#include "learn/json_lines.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/test_directory.h"

namespace tencache {
namespace {

class JsonLinesTest : public ::testing::Test {
 protected:
  static Status replace(const std::string& path, const std::string& name = "op") {
    return replace_json_lines(path, "the list", [&name](JsonLines& lines) {
      lines.add({{"name", name}});
      lines.add({{"b", 2}, {"a", 1}});
    });
  }
  std::string content() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  TestDirectory directory_;
  const std::string path_ = directory_.path() + "/list.jsonl";
};

TEST_F(JsonLinesTest, OneObjectALineWithItsFieldsInOrder) {
  std::ofstream(path_) << "old";
  const Status status = replace(path_);
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(content(), "{\"name\":\"op\"}\n{\"b\":2,\"a\":1}\n");
}

TEST_F(JsonLinesTest, NamesThatAreNoTextDoNotThrow) {
  ASSERT_TRUE(replace(path_, "caf\xe9 \"quoted\"\n").is_ok());
  EXPECT_TRUE(content().starts_with("{\"name\":\"caf\xef\xbf\xbd \\\"quoted\\\"\\n\"}\n"))
      << content();
}

TEST_F(JsonLinesTest, FailureNamesPathAndReasonAndLeavesNothing) {
  const Status missing = replace(directory_.path() + "/none/list.jsonl");
  ASSERT_FALSE(missing.is_ok());
  EXPECT_NE(missing.message().find("writing the list to"), std::string::npos);
  EXPECT_NE(missing.message().find("/none/list.jsonl"), std::string::npos);
  EXPECT_NE(missing.message().find("No such file"), std::string::npos) << missing.message();
  // A folder stands in the way; the unfinished file is removed.
  const std::string folder = directory_.path() + "/folder";
  std::filesystem::create_directory(folder);
  EXPECT_FALSE(replace(folder).is_ok());
  EXPECT_FALSE(std::filesystem::exists(folder + ".unfinished"));
}

TEST_F(JsonLinesTest, FullDiskKeepsTheOldFile) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  std::filesystem::create_symlink("/dev/full", path_ + ".unfinished");
  std::ofstream(path_) << "old";
  const Status status = replace(path_);
  ASSERT_FALSE(status.is_ok());
  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status.message();
  EXPECT_EQ(content(), "old");
}

}  // namespace
}  // namespace tencache
