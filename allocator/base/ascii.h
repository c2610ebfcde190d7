// SPDX-License-Identifier: Apache-2.0
//
// Letters and blanks of ASCII. These functions serve in place of isspace, tolower and toupper,
// which depend on the locale of the host program.
#pragma once

#include <string>
#include <string_view>

namespace tencache {

constexpr bool is_blank(char c) { return c == ' ' || c == '\t'; }
constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
constexpr char to_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

inline std::string lower_case(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += to_lower(c);
  return lower;
}

}  // namespace tencache
