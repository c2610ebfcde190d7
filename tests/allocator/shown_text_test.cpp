// SPDX-License-Identifier: Apache-2.0
//
// Text from outside in messages: it takes one line, is never long, and is readable where it is
// text.
#include "base/shown_text.h"

#include <gtest/gtest.h>

#include <string>

namespace tencache {
namespace {

TEST(ShownTextTest, UsualTextStaysAsItIs) {
  for (const char* text : {"", "/var/tmp/a b", "C:\\x \"y\"", "caf\xc3\xa9", "\xff\xfe"}) {
    EXPECT_EQ(shown(text), text);
  }
}

TEST(ShownTextTest, ControlCharactersAreEscaped) {
  using std::string_literals::operator""s;
  EXPECT_EQ(shown("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(shown("\033[31mred\r\x7f"), "\\x1b[31mred\\x0d\\x7f");
  EXPECT_EQ(shown("a\0b"s), "a\\x00b");
}

TEST(ShownTextTest, LongTextKeepsItsEndsAndTellsWhatIsLeftOut) {
  const std::string text = "/begin/" + std::string(5'000'000, 'x') + "/end.json";
  const std::string line = shown(text);
  EXPECT_LE(line.size(), 300u);
  EXPECT_TRUE(line.starts_with("/begin/xxx")) << line;
  EXPECT_TRUE(line.ends_with("xxx/end.json")) << line;
  EXPECT_NE(line.find(" [" + std::to_string(text.size() - 240) + " bytes left out] "),
            std::string::npos)
      << line;
}

TEST(ShownTextTest, NoLetterIsCut) {
  for (int before = 0; before < 4; ++before) {
    std::string text(static_cast<size_t>(before), 'x');
    for (int letter = 0; letter < 200; ++letter) text += "\xe2\x82\xac";  // the euro sign
    const std::string line = shown(text);
    const size_t note = line.find(" [");
    const size_t after = line.find("] ");
    ASSERT_NE(note, std::string::npos);
    ASSERT_NE(after, std::string::npos);
    EXPECT_EQ((note - static_cast<size_t>(before)) % 3, 0u) << line;
    EXPECT_EQ((line.size() - after - 2) % 3, 0u) << line;
  }
}

TEST(ShownTextTest, BytesThatAreNoTextAreCutToo) {
  EXPECT_LE(shown(std::string(100'000, '\x80')).size(), 300u);
}

}  // namespace
}  // namespace tencache
