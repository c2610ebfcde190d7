// SPDX-License-Identifier: Apache-2.0
//
// What a C++ program gets when it exits: the stats file, the trace file, and a short summary on
// stderr (none with quiet=on). A Python program gets them from the package instead
// (python/tencache/_report.py), with a longer summary. The stats file has the same fields, so
// `tencache stats` and `tencache report` read both. A file that cannot be written costs one line
// and never the exit status. A process that ends by a signal or by _exit() writes none of them, nor
// does a forked child.
//
// Threads: one; at exit, the one that calls exit().
#pragma once

#include <string>

#include "abi/runtime.h"
#include "base/status.h"

namespace tencache {

/// Makes the paths of the options stats, trace and record absolute, with the rank in them where a
/// launcher has started several processes, and tries each. Returns an error for a path that could
/// not be written, and for two that name one file. After hours of training an error would come too
/// late. Call before start.
Status settle_output_files(Runtime& runtime);

/// Makes the process write the files and the summary when it exits. Call once, after start.
void report_at_exit(const std::string& torch_version);

}  // namespace tencache
