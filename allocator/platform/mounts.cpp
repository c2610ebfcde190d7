// SPDX-License-Identifier: Apache-2.0
//
// A line of mountinfo (proc(5)) is "ID PARENT MAJOR:MINOR ROOT POINT OPTIONS TAGS... - TYPE SOURCE
// SUPER_OPTIONS". Blanks, commas and other special characters inside a value are written as a
// backslash and three octal digits.
#include "platform/mounts.h"

#include <sys/sysmacros.h>

#include <fstream>
#include <sstream>
#include <vector>

namespace tencache {
namespace {

bool is_octal(char c) { return c >= '0' && c <= '7'; }

std::string unescape(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) &&
                           is_octal(text[i + 2]) && is_octal(text[i + 3]);
    if (is_escape) {
      const int code = (text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0');
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::optional<std::string> option_of(const std::string& options, const std::string& name) {
  std::istringstream stream(options);
  for (std::string option; std::getline(stream, option, ',');) {
    if (option.starts_with(name + "=")) return unescape(option.substr(name.size() + 1));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> overlay_upper_directory(std::string_view mounts, dev_t device) {
  const std::string number = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  std::istringstream stream{std::string(mounts)};
  for (std::string line; std::getline(stream, line);) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 10 || words[2] != number) continue;
    if (words[words.size() - 3] != "overlay") continue;
    return option_of(words.back(), "upperdir");
  }
  return std::nullopt;
}

std::string read_mounts() {
  std::ifstream file("/proc/self/mountinfo");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace tencache
