// SPDX-License-Identifier: Apache-2.0
#include "learn/trace_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "learn/json_lines.h"

namespace tencache {
namespace {

struct ThreadEvent {
  uint32_t thread_index;
  Event event;
};

bool names_op(EventKind kind) { return kind == EventKind::kOpBegin || kind == EventKind::kOpEnd; }

nlohmann::ordered_json to_json(const ThreadEvent& entry, const TimestampLine& clock,
                               const Recorder& recorder) {
  const Event& event = entry.event;
  nlohmann::ordered_json line = {{"ns", clock.ns_since_start(event.at)},
                                 {"thread", entry.thread_index},
                                 {"kind", event_kind_name(event.kind)}};
  if (names_op(event.kind)) {
    line["op"] = recorder.op_name(event.op);
  } else if (event.kind == EventKind::kWait) {
    line["waited_ns"] = event.bytes;
  } else if (event.kind != EventKind::kStep) {
    line["extent"] = event.extent_id;
    line["bytes"] = event.bytes;
  }
  return line;
}

}  // namespace

Status write_trace(const Recorder& recorder, const std::string& path) {
  std::vector<ThreadEvent> entries;
  uint64_t lost_count = 0;
  const std::vector<ThreadEvents> threads = recorder.snapshot();
  for (const ThreadEvents& thread : threads) {
    lost_count += thread.lost_count;
    for (const Event& event : thread.events) entries.push_back({thread.thread_index, event});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const ThreadEvent& a, const ThreadEvent& b) {
    return a.event.at < b.event.at;
  });
  const TimestampLine clock = recorder.clock().line();
  return write_json_lines(path, [&](JsonLines& lines) {
    lines.add({{"format", "tencache-events"},
               {"version", 1},
               {"threads", threads.size()},
               {"events", entries.size()},
               {"lost", lost_count}});
    for (const ThreadEvent& entry : entries) lines.add(to_json(entry, clock, recorder));
  });
}

}  // namespace tencache
