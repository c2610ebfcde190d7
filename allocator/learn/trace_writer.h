// SPDX-License-Identifier: Apache-2.0
//
// write_trace(): what the recorder and the log of moves remember, as the JSON lines that `tencache
// trace dump` reads:
//
//   {"format":"tencache-events","version":2,"run_id":"5f0c62d19e4ab387","threads":2,"events":4711,
//    "lost":0,"moves_lost":0,"names":{"17":"layers.0.weight"}}             (one line in the file)
//   {"ns":900,"kind":"fetch","took_ns":80000,"extent":17,"bytes":4194304,"from":"disk",
//    "to":"device","device_used":8388608,"ahead":true}                     (one line in the file)
//   {"ns":1200,"thread":0,"kind":"op_begin","op":"aten::mm"}
//   {"ns":1200,"thread":0,"kind":"read","extent":17,"bytes":4194304}
//   {"ns":98000,"thread":0,"kind":"op_end","op":"aten::mm"}
//
// The first line describes the file; "events" counts the other lines, "lost" events that the rings
// no longer held, and "moves_lost" moves that the log no longer held. "names" has the names that
// the program gave to extents. "run_id" is also in the stats of the process, so that a reader knows
// whether both are of one run; earlier builds wrote none. The other lines are events in order of
// time. "ns" counts from the start of the runtime. "kind" is what happened.
//
// On a thread ("thread" is the index of its ring): op_begin and op_end have "op"; read, write,
// allocate and free have "extent" (a number that is new for every allocation) and "bytes"; wait has
// "waited_ns", and stands at the end of the wait; step has nothing more. Reads and writes belong to
// the op_begin before them on the same thread.
//
// Between tiers: fetch, evict, demote and read_back begin at "ns" and take "took_ns". They have
// "extent", "bytes", the tiers "from" and "to", and "device_used", the bytes in the device's budget
// when the move ended. A fetch is "ahead" of use or demanded; an eviction is "copied", or needed no
// copy because the tier below had the bytes. A read from disk straight to a GPU counts as a fetch
// from host memory.
//
// Version 1 had no moves and no names.
#pragma once

#include <string>

#include "base/status.h"
#include "learn/move_log.h"
#include "learn/recorder.h"

namespace tencache {

struct TraceSource {
  const Recorder& recorder;
  const MoveLog* moves = nullptr;  // null where nothing ever moves
  const char* below = "disk";      // the tier that the device's extents go to
  std::string run_id = {};         // empty: not known
};

/// Writes the trace to `path` (platform/output_file.h), and fails as write_output_file() does.
Status write_trace(const TraceSource& source, const std::string& path);

}  // namespace tencache
