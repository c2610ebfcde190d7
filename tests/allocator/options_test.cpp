// SPDX-License-Identifier: Apache-2.0
//
// The option table: every row round-trips, every bound holds, every message names option, value and
// remedy, and the whole environment is read.
#include "base/options.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace tencache {
namespace {

using Environment = std::map<std::string, std::string>;

Status read(Options& options, const Environment& environment) {
  std::vector<std::string> names;
  for (const auto& [name, text] : environment) names.push_back(name);
  return read_environment(options, names, [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

struct Row {
  std::string name;
  std::string kind;
  std::string choices;
  std::string help;
};

std::vector<Row> option_table() {
  std::vector<Row> rows;
  for (const nlohmann::json& row : nlohmann::json::parse(option_table_json())) {
    rows.push_back({row.at("name"), row.at("kind"), row.at("choices"), row.at("help")});
  }
  return rows;
}

Options options_with(std::string_view name, std::string_view text) {
  Options options;
  const Status status = set_option(options, name, text);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return options;
}

void expect_refused(std::string_view name, std::string_view text) {
  Options options;
  const std::string before = option_text(options, name);
  const Status status = set_option(options, name, text);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << "=" << text;
  EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("\"" + std::string(text) + "\""), std::string::npos)
      << status.message();
  EXPECT_EQ(option_text(options, name), before) << "a refused value must change nothing";
}

TEST(OptionsTest, EveryRowIsDescribed) {
  ASSERT_EQ(option_table().size(), 24U);
  for (const Row& row : option_table()) {
    EXPECT_TRUE(row.help.ends_with('.')) << row.name;
    EXPECT_EQ(row.kind == "choice", !row.choices.empty()) << row.name;
  }
}

TEST(OptionsTest, EveryRowTakesItsOwnText) {
  const std::map<std::string_view, std::string> others = {{"device_memory", "3GiB"},
                                                          {"spill_dir", "/var/tmp"},
                                                          {"disk_space", "1050625"},
                                                          {"disk_wait", "1.5s"},
                                                          {"stats", "s.json"},
                                                          {"trace", "t.jsonl"},
                                                          {"strict", "on"},
                                                          {"plan", "off"},
                                                          {"quiet", "on"},
                                                          {"log_level", "debug"},
                                                          {"extent_min", "64KiB"},
                                                          {"arm_at", "0.5"},
                                                          {"chunk_share", "1"},
                                                          {"io_uring", "off"},
                                                          {"userfaultfd", "off"},
                                                          {"launch_guard", "off"},
                                                          {"direct_storage", "on"},
                                                          {"direct_io", "on"},
                                                          {"chaos", "42"},
                                                          {"chaos_probability", "0"},
                                                          {"record", "period.jsonl"},
                                                          {"learn_from", "earlier.jsonl"},
                                                          {"backend", "cuda"},
                                                          {"host_memory", "5GiB"}};
  for (const Row& row : option_table()) {
    const std::string& text = others.at(row.name);
    Options options = options_with(row.name, text);
    EXPECT_EQ(option_text(options, row.name), text) << row.name;
    EXPECT_NE(option_text(Options(), row.name), text) << row.name;
    const std::string default_text = option_text(Options(), row.name);
    ASSERT_TRUE(set_option(options, row.name, default_text).is_ok()) << row.name;
    EXPECT_EQ(option_text(options, row.name), default_text) << row.name;
  }
}

TEST(OptionsTest, SetsTheMembers) {
  EXPECT_EQ(options_with("device_memory", "1.5GiB").device_memory_bytes, kGiB + kGiB / 2);
  EXPECT_EQ(options_with("device_memory", "AUTO").device_memory_bytes, std::nullopt);
  EXPECT_EQ(options_with("disk_space", "1MiB").disk_space_bytes, kMiB);
  EXPECT_EQ(options_with("disk_wait", "2").disk_wait_ns, 2'000'000'000U);
  EXPECT_EQ(options_with("disk_wait", "0").disk_wait_ns, 0U);
  EXPECT_EQ(options_with("spill_dir", "/mnt/nvme").spill_dir, "/mnt/nvme");
  EXPECT_EQ(options_with("spill_dir", "auto").spill_dir, "");
  EXPECT_EQ(options_with("stats", "run.json").stats_path, "run.json");
  EXPECT_EQ(options_with("trace", "off").trace_path, "");
  EXPECT_EQ(options_with("record", "period.jsonl").record_path, "period.jsonl");
  EXPECT_EQ(options_with("learn_from", "earlier.jsonl").learn_from_path, "earlier.jsonl");
  EXPECT_EQ(options_with("log_level", "Warning").log_level, LogLevel::kWarning);
  EXPECT_EQ(options_with("io_uring", "off").io_uring, Choice::kOff);
  EXPECT_EQ(options_with("direct_io", "on").direct_io, Choice::kOn);
  EXPECT_EQ(options_with("userfaultfd", "on").userfaultfd, Choice::kOn);
  EXPECT_EQ(options_with("chaos", "18446744073709551615").chaos_seed, UINT64_MAX);
  EXPECT_EQ(options_with("chaos_probability", "0.25").chaos_probability, 0.25);
  EXPECT_EQ(options_with("arm_at", "1e-3").arm_at, 1e-3);
}

TEST(OptionsTest, FlagsTakeFourSpellings) {
  for (std::string_view text : {"1", "true", "on", "yes", "TRUE", "On"}) {
    EXPECT_TRUE(options_with("strict", text).strict) << text;
  }
  for (std::string_view text : {"0", "false", "off", "no"}) {
    Options options;
    options.quiet = true;
    EXPECT_TRUE(set_option(options, "quiet", text).is_ok());
    EXPECT_FALSE(options.quiet) << text;
  }
  expect_refused("strict", "2");
  expect_refused("strict", "auto");
}

TEST(OptionsTest, BoundsHold) {
  EXPECT_EQ(options_with("extent_min", "4KiB").extent_min_bytes, 4 * kKiB);
  EXPECT_EQ(options_with("extent_min", "1GiB").extent_min_bytes, kGiB);
  expect_refused("extent_min", "4095");
  expect_refused("extent_min", "1073741825");
  expect_refused("extent_min", "auto");
  expect_refused("device_memory", "1048575");
  expect_refused("device_memory", "lots");
  expect_refused("device_memory", "");
  expect_refused("disk_space", "0");
  expect_refused("disk_wait", "-1s");
  expect_refused("disk_wait", "2days");
  expect_refused("disk_wait", "25000min");
  expect_refused("disk_wait", "nan");
  for (std::string_view name : {"arm_at", "chunk_share"}) {
    for (std::string_view text : {"0", "-0.1", "1.01", "nan", "inf", "0.5x", "", "70%"}) {
      expect_refused(name, text);
    }
  }
  for (std::string_view text : {"-0.1", "1.5", "nan", "", "often"}) {
    expect_refused("chaos_probability", text);
  }
  for (std::string_view text : {"-1", "1.5", "", "0x1", "18446744073709551616"}) {
    expect_refused("chaos", text);
  }
  expect_refused("log_level", "loud");
  expect_refused("io_uring", "maybe");
  expect_refused("spill_dir", "");
  expect_refused("stats", "");
}

TEST(OptionsTest, RefusalNamesTheRemedy) {
  Options options;
  EXPECT_EQ(set_option(options, "arm_at", "2").message(),
            "Option arm_at does not take the value \"2\". It must be above 0 and at most 1. Set "
            "--arm-at or TENCACHE_ARM_AT, or leave it at its default, 0.7.");
}

// A terminal would obey raw escape codes, and a long value would push the remedy out of sight.
TEST(OptionsTest, RefusalsShowNoRawText) {
  const std::string value = "1\x1b[2J" + std::string(5000, 'x');
  for (const Row& row : option_table()) {
    if (row.kind == "path") continue;  // takes any text
    Options options;
    const std::string message = set_option(options, row.name, value).message();
    EXPECT_NE(message.find("\\x1b[2J"), std::string::npos) << row.name;
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << row.name;
    EXPECT_LT(message.size(), 1500U) << row.name;
  }
}

TEST(OptionsTest, SuggestsTheNearestName) {
  Options options;
  const std::pair<std::string_view, std::string_view> expected[] = {
      {"device_memroy", "\"device_memory\"?"},
      {"device-memory", "\"device_memory\"?"},
      {"disk_spce", "\"disk_space\"?"},
      {"Strict", "\"strict\"?"},
      {"spilldir", "\"spill_dir\"?"},
      {"stat", "\"stats\"?"},
      {"memory", "\"device_memory\" or \"host_memory\"?"},
      {"gpu_memory", "\"device_memory\" or \"host_memory\"?"},
      {"dir", "\"spill_dir\"?"},
      {"learn", "\"learn_from\"?"}};
  for (const auto& [name, suggestion] : expected) {
    const Status status = set_option(options, name, "1");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("Did you mean " + std::string(suggestion)), std::string::npos)
        << status.message();
  }
  for (const std::string_view name : {"", "_", "__"}) {
    EXPECT_EQ(set_option(options, name, "1").message().find("Did you mean"), std::string::npos);
  }
  const Status far = set_option(options, "colour", "1");
  EXPECT_EQ(far.message().find("Did you mean"), std::string::npos) << far.message();
  EXPECT_NE(far.message().find(" device_memory"), std::string::npos) << far.message();
}

TEST(OptionsTest, ReadsTheEnvironment) {
  Options options;
  const Status status = read(options, {{"TENCACHE_DEVICE_MEMORY", "2GiB"},
                                       {"TENCACHE_CHAOS", "7"},
                                       {"TENCACHE_STRICT", ""},
                                       {"TENCACHE", "1"},
                                       {"TENCACHE_INTERNAL_CHILD", "x"},
                                       {"TENCACHED", "x"},
                                       {"PATH", "/bin"}});
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(options.device_memory_bytes, 2 * kGiB);
  EXPECT_EQ(options.chaos_seed, 7U);
  EXPECT_FALSE(options.strict) << "an empty variable is an unset one";
}

TEST(OptionsTest, EnvironmentRefusesUnknownNamesAndBadValues) {
  Options options;
  Status status = read(options, {{"TENCACHE_DEVICE_MEMORI", "2GiB"}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("Did you mean \"TENCACHE_DEVICE_MEMORY\"?"), std::string::npos)
      << status.message();
  status = read(options, {{"TENCACHE_MEMORY", "2GiB"}});
  EXPECT_NE(
      status.message().find("Did you mean \"TENCACHE_DEVICE_MEMORY\" or \"TENCACHE_HOST_MEMORY\"?"),
      std::string::npos)
      << status.message();
  status = read(options, {{"TENCACHE_device_memory", "2GiB"}});
  EXPECT_NE(status.message().find("\"TENCACHE_DEVICE_MEMORY\""), std::string::npos)
      << status.message();
  status = read(options, {{"TENCACHE_", "x"}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  status = read(options, {{"TENCACHE_ARM_AT", "5"}});
  EXPECT_NE(status.message().find("TENCACHE_ARM_AT"), std::string::npos) << status.message();
  EXPECT_EQ(read(options, {{"TENCACHE_" + std::string(10000, 'x'), "1"}}).code(),
            StatusCode::kInvalidArgument);
}

TEST(OptionsTest, JsonHoldsEveryRow) {
  const nlohmann::json table = nlohmann::json::parse(option_table_json());
  for (const nlohmann::json& row : table) {
    const std::string name = row.at("name");
    EXPECT_EQ(row.at("default"), option_text(Options(), name));
  }
  EXPECT_EQ(table[0].at("environment"), "TENCACHE_DEVICE_MEMORY");
  EXPECT_EQ(table[0].at("flag"), "--device-memory");
}

TEST(OptionsTest, SizesAreShownInTheUnitsInWhichTheyWereAskedFor) {
  const auto shown = [](std::string_view text) {
    return option_text(options_with("device_memory", text), "device_memory");
  };
  for (const std::string_view text :
       {"2GB", "500MB", "1500MB", "10240kB", "2GiB", "1536MiB", "4097KiB", "1048577"}) {
    EXPECT_EQ(shown(text), text);
  }
  EXPECT_EQ(shown("1.5GiB"), "1536MiB");
  EXPECT_EQ(shown("2000000000"), "2GB");
  EXPECT_EQ(shown("1048576kB"), "1000MiB") << "of two exact texts the shorter one";
}

TEST(OptionsTest, AllTextsAreOneObject) {
  Options options = options_with("device_memory", "2GB");
  options.stats_path = "run\xff.json";
  const nlohmann::ordered_json texts = options_json(options);
  EXPECT_EQ(texts.size(), option_table().size());
  for (const Row& row : option_table()) {
    const std::string text = texts.at(std::string(row.name));
    EXPECT_EQ(text, option_text(options, row.name)) << row.name;
  }
}

TEST(OptionsTest, TextOfAnUnknownNameIsEmpty) { EXPECT_EQ(option_text(Options(), "nothing"), ""); }

}  // namespace
}  // namespace tencache
