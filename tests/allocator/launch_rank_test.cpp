// SPDX-License-Identifier: Apache-2.0
#include "platform/launch_rank.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace tencache {
namespace {

constexpr const char* kNames[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"};

class LaunchRankTest : public ::testing::Test {
 protected:
  ~LaunchRankTest() override { set({}); }

  static void set(const std::map<std::string, std::string>& variables) {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, text] : variables) setenv(name.c_str(), text.c_str(), 1);
  }
  static int rank_with(const std::map<std::string, std::string>& variables) {
    set(variables);
    return launch_rank();
  }
};

TEST_F(LaunchRankTest, IsWhatTorchrunTells) {
  EXPECT_EQ(rank_with({{"RANK", "3"}, {"WORLD_SIZE", "4"}}), 3);
  EXPECT_EQ(rank_with({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"NODE_RANK", "0"}}), 0);
  EXPECT_EQ(rank_with({}), -1);
  EXPECT_EQ(rank_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), -1) << "there is only one";
  EXPECT_EQ(rank_with({{"RANK", "0"}}), -1);
  EXPECT_EQ(rank_with({{"WORLD_SIZE", "4"}}), -1);
  for (const char* nonsense : {"", "many", "3x", "-3"}) {
    EXPECT_EQ(rank_with({{"RANK", nonsense}, {"WORLD_SIZE", "4"}}), -1) << nonsense;
    EXPECT_EQ(rank_with({{"RANK", "3"}, {"WORLD_SIZE", nonsense}}), -1) << nonsense;
  }
}

TEST_F(LaunchRankTest, IsWhatLightningTellsOnTheFirstMachine) {
  std::map<std::string, std::string> variables = {
      {"LOCAL_RANK", "1"}, {"NODE_RANK", "0"}, {"WORLD_SIZE", "4"}};
  EXPECT_EQ(rank_with(variables), 1);
  variables["NODE_RANK"] = "1";
  EXPECT_EQ(rank_with(variables), -1) << "nobody tells how many the first machine has";
  variables.erase("NODE_RANK");
  EXPECT_EQ(rank_with(variables), -1);
  variables["RANK"] = "3";
  EXPECT_EQ(rank_with(variables), 3);
}

}  // namespace
}  // namespace tencache
