// SPDX-License-Identifier: Apache-2.0
//
// Sizes and times as text: every unit, the limits, and the refusals.
#include "base/units.h"

#include <gtest/gtest.h>

namespace tencache {
namespace {

TEST(UnitsTest, ParsesWhatPeopleWrite) {
  const std::pair<std::string_view, uint64_t> expected[] = {
      {"1.5GiB", kGiB + kGiB / 2},
      {"512 MiB", 512 * kMiB},
      {"2GB", 2'000'000'000},
      {"1048576", kMiB},
      {"8g", 8 * kGiB},
      {"8G", 8 * kGiB},
      {"3k", 3 * kKiB},
      {"3kB", 3000},
      {"7m", 7 * kMiB},
      {"7 mb", 7'000'000},
      {"7 mib", 7 * kMiB},
      {"9b", 9},
      {"1t", kKiB * kGiB},
      {"1TiB", kKiB * kGiB},
      {"1TB", 1'000'000'000'000},
      {"  64KiB\t", 64 * kKiB},
      {"12B", 12},
      {"0", 0},
      {".5MiB", kMiB / 2},
      {"1.KiB", kKiB},
      {"0.0001KiB", 0},
      {"18446744073709551615", UINT64_MAX},
      {"9007199254740993", 9007199254740993},  // no double has this value
  };
  for (const auto& [text, bytes] : expected) {
    Result<uint64_t> parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.is_ok()) << text << ": " << parsed.status().message();
    EXPECT_EQ(parsed.value(), bytes) << text;
  }
}

TEST(UnitsTest, RefusesTheRestAndNamesIt) {
  const std::pair<std::string_view, std::string_view> expected[] = {
      {"", "empty"},
      {"   ", "empty"},
      {"-1", "negative"},
      {"GiB", "number"},
      {"1.2.3", "number"},
      {".", "number"},
      {"1e3", "unit"},
      {"0x10", "unit"},
      {"5 apples", "unit"},
      {"5GiBs", "unit"},
      {"203Mb", "Mb counts bits, and sizes are in bytes, MB"},
      {"5 Gib", "Gib counts bits, and sizes are in bytes, GiB"},
      {"1Kb", "bits"},
      {"2Tb", "bits"},
      {"1 GiB 2", "unit"},
      {"inf", "number"},
      {"nan", "number"},
      {"18446744073709551616", "too large"},
      {"16777216TiB", "too large"},
      {"16777216.5TiB", "too large"},
      {"99999999999999999999999999.5", "too large"},
  };
  for (const auto& [text, reason] : expected) {
    Result<uint64_t> parsed = parse_bytes(text);
    ASSERT_FALSE(parsed.is_ok()) << text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    const std::string& message = parsed.status().message();
    EXPECT_NE(message.find(reason), std::string::npos) << message;
    EXPECT_NE(message.find("\"" + std::string(text) + "\""), std::string::npos) << message;
  }
}

TEST(UnitsTest, FormatsThreeSignificantDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(12), "12 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(kKiB), "1.00 KiB");
  EXPECT_EQ(format_bytes(kGiB + kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(640 * kMiB), "640 MiB");
  EXPECT_EQ(format_bytes(12 * kMiB + kMiB / 4), "12.2 MiB");
  EXPECT_EQ(format_bytes(1023 * kMiB), "1023 MiB");
  EXPECT_EQ(format_bytes(kGiB - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(10 * kMiB - 1), "10.0 MiB");
  EXPECT_EQ(format_bytes(100 * kMiB - 1), "100 MiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(UnitsTest, TimesAreReadAndWritten) {
  const std::pair<std::string_view, uint64_t> cases[] = {{"30s", 30'000'000'000},
                                                         {"30", 30'000'000'000},
                                                         {" 1.5 S ", 1'500'000'000},
                                                         {"250ms", 250'000'000},
                                                         {"0", 0},
                                                         {"5min", 300'000'000'000},
                                                         {"0.000000001", 1}};
  for (const auto& [text, ns] : cases) {
    const Result<uint64_t> parsed = parse_seconds(text);
    ASSERT_TRUE(parsed.is_ok()) << parsed.status().message();
    EXPECT_EQ(parsed.value(), ns) << text;
    EXPECT_EQ(parse_seconds(format_seconds(ns)).value(), ns) << text;
  }
  EXPECT_EQ(format_seconds(30'000'000'000), "30s");
  EXPECT_EQ(format_seconds(1'500'000'000), "1.5s");
  EXPECT_EQ(format_seconds(0), "0s");
}

TEST(UnitsTest, RefusesWhatIsNoTime) {
  for (std::string_view text : {"", "s", "-1s", "1h", "1s2", "nan", "inf", "1e400", "soon"}) {
    const Result<uint64_t> parsed = parse_seconds(text);
    ASSERT_FALSE(parsed.is_ok()) << text;
    EXPECT_NE(parsed.status().message().find("\"" + std::string(text) + "\" is not a time"),
              std::string::npos)
        << parsed.status().message();
  }
}

TEST(UnitsTest, SizesForOptionsAreEnough) {
  EXPECT_EQ(option_bytes(0), "0MiB");
  EXPECT_EQ(option_bytes(1), "1MiB");
  EXPECT_EQ(option_bytes(kMiB), "1MiB");
  EXPECT_EQ(option_bytes(50 * kMiB + 100 * kKiB), "51MiB");
  EXPECT_EQ(option_bytes(3 * kGiB), "3072MiB");
  EXPECT_EQ(option_bytes(UINT64_MAX), "17592186044416MiB");
}

TEST(UnitsTest, RoundsUpToPowersOfTwo) {
  EXPECT_EQ(round_up(0, 4096), 0U);
  EXPECT_EQ(round_up(1, 4096), 4096U);
  EXPECT_EQ(round_up(4096, 4096), 4096U);
  EXPECT_EQ(round_up(4097, 4096), 8192U);
}

}  // namespace
}  // namespace tencache
