// SPDX-License-Identifier: Apache-2.0
#include "learn/json_lines.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tencache {

void JsonLines::add(const nlohmann::ordered_json& line) {
  file_ << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

Status replace_json_lines(const std::string& path, std::string_view what,
                          const std::function<void(JsonLines&)>& write) {
  const std::string unfinished = path + ".unfinished";
  errno = 0;
  std::ofstream file(unfinished, std::ios::trunc);
  JsonLines lines(file);
  write(lines);
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int error_number = errno != 0 ? errno : EIO;
    std::remove(unfinished.c_str());
    return status_from_errno(error_number, "writing " + std::string(what) + " to '" + path + "'");
  }
  return Status::ok();
}

}  // namespace tencache
