// SPDX-License-Identifier: Apache-2.0
//
// write_trace(): what the recorder remembers, as the JSON lines that `tencache trace dump` reads:
//
//   {"format":"tencache-events","version":1,"threads":2,"events":4711,"lost":0}
//   {"ns":1200,"thread":0,"kind":"op_begin","op":"aten::mm"}
//   {"ns":1200,"thread":0,"kind":"read","extent":17,"bytes":4194304}
//   {"ns":98000,"thread":0,"kind":"op_end","op":"aten::mm"}
//
// The first line describes the file; "lost" counts events that the rings no longer held. The other
// lines are events in order of time. "ns" counts from the start of the runtime, "thread" is the
// index of the ring, and "kind" is one of op_begin, op_end, read, write, allocate, free, step,
// wait. op_begin and op_end have "op", and wait has "waited_ns". The four that name an extent have
// "extent" (a number that is new for every allocation) and "bytes". Reads and writes belong to the
// op_begin before them on the same thread.
#pragma once

#include <string>

#include "base/status.h"
#include "learn/recorder.h"

namespace tencache {

/// Writes it to `path` (platform/output_file.h).
Status write_trace(const Recorder& recorder, const std::string& path);

}  // namespace tencache
