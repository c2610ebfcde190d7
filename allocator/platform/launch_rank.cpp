// SPDX-License-Identifier: Apache-2.0
#include "platform/launch_rank.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace tencache {
namespace {

/// The number in an environment variable; -1 if it is not set or holds none.
int number_in(const char* name) {
  const char* const text = getenv(name);
  if (text == nullptr) return -1;
  const std::string_view digits(text);
  int number = -1;
  const auto [rest, error] = std::from_chars(text, text + digits.size(), number);
  const bool is_number = error == std::errc() && rest == text + digits.size() && number >= 0;
  return is_number ? number : -1;
}

}  // namespace

int launch_rank() {
  if (number_in("WORLD_SIZE") <= 1) return -1;
  // Lightning tells a process only its place on its machine. On the first machine that is its rank.
  const bool has_rank = getenv("RANK") != nullptr || number_in("NODE_RANK") != 0;
  return number_in(has_rank ? "RANK" : "LOCAL_RANK");
}

}  // namespace tencache
