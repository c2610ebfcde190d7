// SPDX-License-Identifier: Apache-2.0
//
// JsonLines writes a file of JSON objects, one a line, so that a reader needs to hold only one.
// replace_json_lines() writes it under another name beside the file and renames it once whole. So
// nobody reads half a file, and a failure leaves what was there before.
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
  /// Text that is not UTF-8 is replaced instead of throwing, since names come from the program.
  void add(const nlohmann::ordered_json& line);

 private:
  std::ostream& file_;
};

/// Replaces the file at `path` with the lines that `write` adds, wholly or not at all. A failure
/// says "writing <what> to '<path>': <reason>".
Status replace_json_lines(const std::string& path, std::string_view what,
                          const std::function<void(JsonLines&)>& write);

}  // namespace tencache
