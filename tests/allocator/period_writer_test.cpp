// SPDX-License-Identifier: Apache-2.0
//
// The period file: the lines that its header promises, from which the same trace can be rebuilt.
#include "learn/period_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/random_trace.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

using Json = nlohmann::json;

class PeriodWriterTest : public ::testing::Test {
 protected:
  std::vector<Json> write_and_read(const Trace& trace, const Machine& machine = {}) {
    const Status status = write_period(trace, machine, path_);
    EXPECT_TRUE(status.is_ok()) << status.message();
    std::vector<Json> lines;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  static std::string order_of(const TraceOp& op) {
    std::string order;
    for (const TraceAccess& access : op.accesses) order += access.is_write ? 'w' : 'r';
    return order;
  }

  TestDirectory directory_;
  const std::string path_ = directory_.path() + "/period.jsonl";
};

TEST_F(PeriodWriterTest, WritesWhatTheHeaderDescribes) {
  Trace trace;
  trace.op_names = {"aten::mm", "aten::add_.Tensor"};
  trace.ops = {{0, 1200, {{0, false}, {1, true}}}, {1, 300, {{1, false}, {0, true}}}, {0, 5, {}}};
  trace.tensors = {{4096, kNoTick, kNoTick}, {8192, 0, 1}};
  trace.fixed_bytes = 100;
  const std::vector<Json> lines = write_and_read(
      trace, {.budget_bytes = 9000, .read_bytes_per_s = 2.5e9, .write_work_ns_per_byte = 0.25});
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0], Json::parse(R"({"format":"tencache-period","version":1,"ops":3,"tensors":2,)"
                                  R"("fixed_bytes":100,"peak_bytes":12388,)"
                                  R"("device_budget_bytes":9000,"read_bytes_per_s":2.5e9,)"
                                  R"("write_bytes_per_s":0.0,"read_work_ns_per_byte":0.0,)"
                                  R"("write_work_ns_per_byte":0.25,"drop_work_ns_per_byte":0.0})"));
  EXPECT_EQ(lines[1], Json::parse(R"({"id":0,"bytes":4096})"));
  EXPECT_EQ(lines[2], Json::parse(R"({"id":1,"bytes":8192,"allocated_at":0,"freed_at":1})"));
  EXPECT_EQ(lines[3],
            Json::parse(
                R"({"name":"aten::mm","compute_ns":1200,"reads":[0],"writes":[1],"order":"rw"})"));
  EXPECT_EQ(lines[4], Json::parse(R"({"name":"aten::add_.Tensor","compute_ns":300,"reads":[1],)"
                                  R"("writes":[0],"order":"rw"})"));
  EXPECT_EQ(lines[5], Json::parse(R"({"name":"aten::mm","compute_ns":5,"reads":[],"writes":[]})"));
}

TEST_F(PeriodWriterTest, ASpeedThatWasGuessedIsNotTold) {
  Trace trace;
  trace.op_names = {"aten::mm"};
  trace.ops = {{0, 5, {{0, false}}}};
  trace.tensors = {{4096, kNoTick, kNoTick}};
  Machine machine{.budget_bytes = 9000, .read_bytes_per_s = 2.5e9, .write_bytes_per_s = 1e9};
  machine.is_write_guessed = true;
  const Json header = write_and_read(trace, machine)[0];
  EXPECT_EQ(header["read_bytes_per_s"], 2.5e9);
  EXPECT_EQ(header["write_bytes_per_s"], 0.0);
}

TEST_F(PeriodWriterTest, ThatReadsAndWritesTakeTurnsIsToldWhereTheyDo) {
  Trace trace;
  trace.op_names = {"aten::mm"};
  trace.ops = {{0, 5, {{0, false}}}};
  trace.tensors = {{4096, kNoTick, kNoTick}};
  EXPECT_EQ(write_and_read(trace, {.is_half_duplex = true})[0]["half_duplex"], true);
  EXPECT_FALSE(write_and_read(trace, {})[0].contains("half_duplex"));
}

TEST_F(PeriodWriterTest, TheRunIsToldWhereItIsKnown) {
  Trace trace;
  trace.op_names = {"aten::mm"};
  trace.ops = {{0, 5, {{0, false}}}};
  trace.tensors = {{4096, kNoTick, kNoTick}};
  EXPECT_FALSE(write_and_read(trace)[0].contains("run_id"));
  ASSERT_TRUE(write_period(trace, {}, path_, "0123456789abcdef").is_ok());
  std::ifstream file(path_);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(Json::parse(line)["run_id"], "0123456789abcdef");
}

TEST_F(PeriodWriterTest, TheTraceCanBeMadeAgain) {
  const Trace trace = transformer_trace({.layers = 3});
  const std::vector<Json> lines = write_and_read(trace);
  ASSERT_EQ(lines.size(), 1 + trace.tensors.size() + trace.ops.size());
  for (size_t id = 0; id < trace.tensors.size(); ++id) {
    const TraceTensor& tensor = trace.tensors[id];
    const Json& line = lines[1 + id];
    EXPECT_EQ(line["id"], id);
    EXPECT_EQ(line["bytes"], tensor.bytes);
    EXPECT_EQ(line.value("allocated_at", kNoTick), tensor.allocated_at);
    EXPECT_EQ(line.value("freed_at", kNoTick), tensor.freed_at);
  }
  for (Tick tick = 0; tick < trace.tick_count(); ++tick) {
    const TraceOp& op = trace.ops[tick];
    const Json& line = lines[1 + trace.tensors.size() + tick];
    EXPECT_EQ(line["name"], trace.op_names[op.name]);
    EXPECT_EQ(line["compute_ns"], op.compute_ns);
    std::vector<uint32_t> reads;
    std::vector<uint32_t> writes;
    for (const TraceAccess& access : op.accesses) {
      (access.is_write ? writes : reads).push_back(access.tensor);
    }
    EXPECT_EQ(line["reads"].get<std::vector<uint32_t>>(), reads);
    EXPECT_EQ(line["writes"].get<std::vector<uint32_t>>(), writes);
    const bool is_mixed = !reads.empty() && !writes.empty();
    EXPECT_EQ(line.contains("order"), is_mixed);
    if (is_mixed) {
      EXPECT_EQ(line["order"], order_of(op));
    }
  }
}

TEST_F(PeriodWriterTest, ATraceThatIsNotValidIsRefusedAndTheOldFileStays) {
  std::ofstream(path_) << "old";
  Trace trace;
  trace.op_names = {"op"};
  trace.ops = {{0, 1, {{7, false}}}};
  const Status status = write_period(trace, {}, path_);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), trace.validate().message());
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "old");
}

}  // namespace
}  // namespace tencache
