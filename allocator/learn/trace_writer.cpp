// SPDX-License-Identifier: Apache-2.0
#include "learn/trace_writer.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "learn/json_lines.h"
#include "platform/output_file.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

/// A line of the file: an event of a thread, or a move.
struct Line {
  uint64_t at = 0;
  const Event* event = nullptr;
  uint32_t thread_index = 0;  // of the event
  const Move* move = nullptr;
};

struct MoveText {
  const char* kind;
  const char* from;
  const char* to;
};

MoveText text_of(MoveKind kind, const char* below) {
  switch (kind) {
    case MoveKind::kFetch:
    case MoveKind::kFetchAhead:
      return {"fetch", below, "device"};
    case MoveKind::kEvict:
    case MoveKind::kDrop:
      return {"evict", "device", below};
    case MoveKind::kDemote:
      return {"demote", "host", "disk"};
    case MoveKind::kReadBack:
      return {"read_back", "disk", "host"};
  }
  return {"unknown", "", ""};
}

Json to_json(const Move& move, const TimestampLine& clock, const char* below) {
  const MoveText text = text_of(move.kind, below);
  const uint64_t begin_ns = clock.ns_since_start(move.begin);
  const uint64_t end_ns = clock.ns_since_start(move.end);
  Json line = {{"ns", begin_ns},
               {"kind", text.kind},
               {"took_ns", end_ns - std::min(begin_ns, end_ns)},
               {"extent", move.extent_id},
               {"bytes", move.bytes},
               {"from", text.from},
               {"to", text.to},
               {"device_used", move.device_used_bytes}};
  if (move.kind == MoveKind::kFetch || move.kind == MoveKind::kFetchAhead) {
    line["ahead"] = move.kind == MoveKind::kFetchAhead;
  } else if (move.kind == MoveKind::kEvict || move.kind == MoveKind::kDrop) {
    line["copied"] = move.kind == MoveKind::kEvict;
  }
  return line;
}

bool names_op(EventKind kind) { return kind == EventKind::kOpBegin || kind == EventKind::kOpEnd; }

Json to_json(const Line& of_event, const TimestampLine& clock, const Recorder& recorder) {
  const Event& event = *of_event.event;
  Json line = {{"ns", clock.ns_since_start(event.at)},
               {"thread", of_event.thread_index},
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

Json names_json(const std::map<uint64_t, std::string>& names) {
  Json json = Json::object();
  for (const auto& [extent_id, name] : names) json[std::to_string(extent_id)] = name;
  return json;
}

}  // namespace

Status write_trace(const TraceSource& source, const std::string& path) {
  std::vector<Line> lines_in_time;
  uint64_t lost_count = 0;
  const std::vector<ThreadEvents> threads = source.recorder.snapshot();
  for (const ThreadEvents& thread : threads) {
    lost_count += thread.lost_count;
    for (const Event& event : thread.events) {
      lines_in_time.push_back({event.at, &event, thread.thread_index, nullptr});
    }
  }
  const KeptMoves kept = source.moves != nullptr ? source.moves->kept() : KeptMoves{};
  for (const Move& move : kept.moves) lines_in_time.push_back({move.begin, nullptr, 0, &move});
  std::ranges::stable_sort(lines_in_time, {}, &Line::at);
  const TimestampLine clock = source.recorder.clock().line();
  Json header = {{"format", "tencache-events"}, {"version", 2}};
  if (!source.run_id.empty()) header["run_id"] = source.run_id;
  header.update({{"threads", threads.size()},
                 {"events", lines_in_time.size()},
                 {"lost", lost_count},
                 {"moves_lost", kept.lost_count},
                 {"names", names_json(source.recorder.extent_names())}});
  return write_output_file(path, [&](OutputText& file) {
    append_json_line(header, file);
    for (const Line& line : lines_in_time) {
      append_json_line(line.move != nullptr ? to_json(*line.move, clock, source.below)
                                            : to_json(line, clock, source.recorder),
                       file);
    }
  });
}

}  // namespace tencache
