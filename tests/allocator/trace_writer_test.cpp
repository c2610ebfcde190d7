// SPDX-License-Identifier: Apache-2.0
//
// The trace file: one JSON object a line, in order of time.
#include "learn/trace_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "support/test_directory.h"

namespace tencache {
namespace {

using Json = nlohmann::json;

class TraceWriterTest : public ::testing::Test {
 protected:
  std::vector<Json> write_and_read() {
    const Status status = write_trace({recorder_, &moves_, "host"}, path_);
    EXPECT_TRUE(status.is_ok()) << status.message();
    std::vector<Json> lines;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  TestDirectory directory_;
  const std::string path_ = directory_.path() + "/trace.jsonl";
  Recorder recorder_;
  MoveLog moves_;
};

TEST_F(TraceWriterTest, WritesWhatTheHeaderDescribes) {
  const uint32_t mm = recorder_.register_op("aten::mm");
  EventRing* ring = recorder_.acquire_ring();
  const uint64_t now = timestamp();
  ring->append({now, 0, 0, mm, EventKind::kOpBegin});
  ring->append({now, 17, 4096, mm, EventKind::kRead});
  ring->append({now + 1000, 0, 0, mm, EventKind::kOpEnd});
  ring->append({now + 2000, 18, 8192, 0, EventKind::kAllocate});
  ring->append({now + 3000, 0, 0, 0, EventKind::kStep});
  const std::vector<Json> lines = write_and_read();
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0], Json::parse(R"({"format":"tencache-events","version":2,"threads":1,)"
                                  R"("events":5,"lost":0,"moves_lost":0,"names":{}})"));
  EXPECT_EQ(lines[1]["kind"], "op_begin");
  EXPECT_EQ(lines[1]["op"], "aten::mm");
  EXPECT_EQ(lines[2]["kind"], "read");
  EXPECT_EQ(lines[2]["extent"], 17);
  EXPECT_EQ(lines[2]["bytes"], 4096);
  EXPECT_FALSE(lines[2].contains("op"));
  EXPECT_EQ(lines[1]["ns"], lines[2]["ns"]) << "the same tick";
  EXPECT_EQ(lines[3]["kind"], "op_end");
  EXPECT_EQ(lines[4]["extent"], 18);
  EXPECT_EQ(lines[5]["kind"], "step");
  EXPECT_FALSE(lines[5].contains("extent"));
}

TEST_F(TraceWriterTest, TheRunIsToldWhereItIsKnown) {
  EXPECT_FALSE(write_and_read()[0].contains("run_id"));
  ASSERT_TRUE(write_trace({.recorder = recorder_, .run_id = "0123456789abcdef"}, path_).is_ok());
  std::ifstream file(path_);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(Json::parse(line)["run_id"], "0123456789abcdef");
}

TEST_F(TraceWriterTest, ThreadsAreMergedInOrderOfTime) {
  const uint32_t op = recorder_.register_op("op");
  std::vector<EventRing*> rings;
  for (int index = 0; index < 3; ++index) rings.push_back(recorder_.acquire_ring());
  for (int round = 0; round < 1000; ++round) {
    for (EventRing* ring : rings) ring->append({timestamp(), 0, 0, op, EventKind::kOpBegin});
  }
  const std::vector<Json> lines = write_and_read();
  ASSERT_EQ(lines.size(), 3001u);
  uint64_t last_ns = 0;
  for (size_t index = 1; index < lines.size(); ++index) {
    EXPECT_GE(lines[index]["ns"], last_ns);
    last_ns = lines[index]["ns"];
    EXPECT_EQ(lines[index]["thread"], (index - 1) % 3);
  }
}

TEST_F(TraceWriterTest, CountsWhatTheRingsNoLongerHold) {
  EventRing* ring = recorder_.acquire_ring();
  for (uint64_t index = 0; index < kRingEvents + 10; ++index) {
    ring->append({timestamp(), 0, 0, 0, EventKind::kStep});
  }
  ASSERT_TRUE(write_trace({recorder_}, path_).is_ok());
  std::ifstream file(path_);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const Json header = Json::parse(line);
  uint64_t count = 0;
  while (std::getline(file, line)) ++count;
  EXPECT_EQ(header["lost"], 11);
  EXPECT_EQ(header["events"], count);
}

TEST_F(TraceWriterTest, MovesStandWhereTheyBegin) {
  EventRing* ring = recorder_.acquire_ring();
  const uint64_t now = timestamp();
  ring->append({now + 1000, 0, 0, 0, EventKind::kStep});
  // Moves are logged as they end.
  moves_.add({now + 2000, now + 3000, 7, 4096, 100, MoveKind::kDrop});
  moves_.add({now, now + 9000, 8, 8192, 200, MoveKind::kFetchAhead});
  moves_.add({now + 4000, now + 9000, 9, 1, 300, MoveKind::kDemote});
  moves_.add({now + 5000, now + 9000, 9, 1, 400, MoveKind::kReadBack});
  recorder_.name_extent(8, "first");
  recorder_.name_extent(8, "layers.0.weight");
  const std::vector<Json> lines = write_and_read();
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0]["events"], 5);
  EXPECT_EQ(lines[0]["names"], Json::parse(R"({"8":"layers.0.weight"})"));
  EXPECT_EQ(lines[1]["kind"], "fetch");
  EXPECT_EQ(lines[1]["extent"], 8);
  EXPECT_EQ(lines[1]["bytes"], 8192);
  EXPECT_EQ(lines[1]["from"], "host");
  EXPECT_EQ(lines[1]["to"], "device");
  EXPECT_EQ(lines[1]["device_used"], 200);
  EXPECT_EQ(lines[1]["ahead"], true);
  EXPECT_GT(lines[1]["took_ns"], 0);
  EXPECT_EQ(lines[2]["kind"], "step");
  EXPECT_EQ(lines[3]["kind"], "evict");
  EXPECT_EQ(lines[3]["from"], "device");
  EXPECT_EQ(lines[3]["copied"], false);
  EXPECT_EQ(lines[4]["kind"], "demote");
  EXPECT_EQ(lines[4]["to"], "disk");
  EXPECT_EQ(lines[5]["kind"], "read_back");
  EXPECT_EQ(lines[5]["from"], "disk");
}

TEST_F(TraceWriterTest, TheNewestMovesAreKept) {
  for (uint64_t number = 0; number < kMovesKept + 3; ++number) {
    moves_.add({number, number, number, 1, 0, MoveKind::kFetch});
  }
  const KeptMoves kept = moves_.kept();
  EXPECT_EQ(kept.lost_count, 3u);
  ASSERT_EQ(kept.moves.size(), kMovesKept);
  for (uint64_t index = 0; index < kMovesKept; ++index) {
    ASSERT_EQ(kept.moves[index].extent_id, index + 3);
  }
}

TEST_F(TraceWriterTest, EmptyTraceHasItsHeader) {
  const std::vector<Json> lines = write_and_read();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["events"], 0);
}

}  // namespace
}  // namespace tencache
