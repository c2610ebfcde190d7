// SPDX-License-Identifier: Apache-2.0
//
// JSON lines on their way into a file: one object a line, so that a reader needs to hold no more
// than one. Owns how such a file comes to be: under another name beside it, renamed when it is
// whole, so that nobody ever reads half of one and a failure leaves what was there before.
#pragma once

#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tencache {

class JsonLines {
 public:
  explicit JsonLines(std::ostream& file) : file_(file) {}
  /// Text that is no UTF-8 is replaced, not thrown at: names come from the program.
  void add(const nlohmann::ordered_json& line);

 private:
  std::ostream& file_;
};

/// Replaces the file at `path` with the lines that `write` adds, wholly or not at all. `what`
/// stands in the message of a failure: "writing <what> to '<path>': <reason>".
Status replace_json_lines(const std::string& path, std::string_view what,
                          const std::function<void(JsonLines&)>& write);

}  // namespace tencache
