// SPDX-License-Identifier: Apache-2.0
//
// JSON lines: each line holds one object, and any name becomes valid text.
#include "learn/json_lines.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "platform/output_file.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

class JsonLinesTest : public ::testing::Test {
 protected:
  static Status write(const std::string& path, const std::string& name = "op") {
    return write_output_file(path, [&name](OutputText& file) {
      append_json_line({{"name", name}}, file);
      append_json_line({{"b", 2}, {"a", 1}}, file);
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
  const Status status = write(path_);
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(content(), "{\"name\":\"op\"}\n{\"b\":2,\"a\":1}\n");
}

TEST_F(JsonLinesTest, NamesThatAreNoTextDoNotThrow) {
  ASSERT_TRUE(write(path_, "caf\xe9 \"quoted\"\n").is_ok());
  EXPECT_TRUE(content().starts_with("{\"name\":\"caf\xef\xbf\xbd \\\"quoted\\\"\\n\"}\n"))
      << content();
}

TEST_F(JsonLinesTest, FailureTellsTheReason) {
  const Status missing = write(directory_.path() + "/none/list.jsonl");
  ASSERT_FALSE(missing.is_ok());
  EXPECT_EQ(missing.message(), "the directory " + directory_.path() + "/none does not exist");
}

}  // namespace
}  // namespace tencache
