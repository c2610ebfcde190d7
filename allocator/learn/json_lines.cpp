// SPDX-License-Identifier: Apache-2.0
#include "learn/json_lines.h"

#include <nlohmann/json.hpp>

namespace tencache {

void append_json_line(const nlohmann::ordered_json& line, OutputText& file) {
  file.append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
}

}  // namespace tencache
