// SPDX-License-Identifier: Apache-2.0
//
// JSON lines: a file of JSON objects, one a line, so that a reader needs to hold only one.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "platform/output_file.h"

namespace tencache {

/// Appends an object and the end of its line. Text that is not UTF-8, which the program's names may
/// hold, is replaced.
void append_json_line(const nlohmann::ordered_json& line, OutputText& file);

}  // namespace tencache
