// SPDX-License-Identifier: Apache-2.0
#include "platform/launch_rank.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace tencache {

int launch_rank() {
  int rank = -1;
  int world = 0;
  for (const auto& [name, value] : {std::pair("RANK", &rank), std::pair("WORLD_SIZE", &world)}) {
    const char* const text = getenv(name);
    if (text == nullptr) return -1;
    const std::string_view digits(text);
    const auto [rest, error] = std::from_chars(text, text + digits.size(), *value);
    if (error != std::errc() || rest != text + digits.size()) return -1;
  }
  return world > 1 && rank >= 0 ? rank : -1;
}

}  // namespace tencache
