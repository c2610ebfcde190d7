// SPDX-License-Identifier: Apache-2.0
#include "learn/json_lines.h"

#include <nlohmann/json.hpp>

namespace tencache {

void JsonLines::add(const nlohmann::ordered_json& line) {
  file_.append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
}

Status write_json_lines(const std::string& path, const std::function<void(JsonLines&)>& write) {
  return write_output_file(path, [&write](OutputText& file) {
    JsonLines lines(file);
    write(lines);
  });
}

}  // namespace tencache
