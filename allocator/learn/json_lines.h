// SPDX-License-Identifier: Apache-2.0
//
// JsonLines writes a file of JSON objects, one a line, so that a reader needs to hold only one.
// platform/output_file.h says what becomes of a file that has the name already.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "platform/output_file.h"

namespace tencache {

class JsonLines {
 public:
  explicit JsonLines(OutputText& file) : file_(file) {}
  /// Text that is not UTF-8 is replaced instead of throwing, since names come from the program.
  void add(const nlohmann::ordered_json& line);

 private:
  OutputText& file_;
};

/// Writes the lines that `write` adds. The message of a failure is a clause without the path.
Status write_json_lines(const std::string& path, const std::function<void(JsonLines&)>& write);

}  // namespace tencache
