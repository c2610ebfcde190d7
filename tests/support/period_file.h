// SPDX-License-Identifier: Apache-2.0
//
// read_period(): reads a period that `tencache trace record` wrote (learn/period_writer.h has the
// format) back into a trace, for tests and benchmarks that replay one.
#pragma once

#include <string>

#include "base/status.h"
#include "learn/trace.h"

namespace tencache {

/// Fails with kInvalidArgument and a message that names the file and the error.
Result<Trace> read_period(const std::string& path);

}  // namespace tencache
