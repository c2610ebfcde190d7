// SPDX-License-Identifier: Apache-2.0
#include "support/period_file.h"

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace tencache {
namespace {

using Json = nlohmann::json;

class PeriodReader {
 public:
  void take(const Json& line) {
    if (line.contains("format")) {
      trace_.fixed_bytes = line.value("fixed_bytes", uint64_t{0});
    } else if (line.contains("name")) {
      take_op(line);
    } else {
      numbers_[line.at("id")] = static_cast<uint32_t>(trace_.tensors.size());
      trace_.tensors.push_back(
          {line.at("bytes"), line.value("allocated_at", kNoTick), line.value("freed_at", kNoTick)});
    }
  }
  Trace trace() { return std::move(trace_); }

 private:
  void take_op(const Json& line) {
    const std::string name = line.at("name");
    const auto [entry, is_new] =
        names_.try_emplace(name, static_cast<uint32_t>(trace_.op_names.size()));
    if (is_new) trace_.op_names.push_back(name);
    TraceOp op{entry->second, line.value("compute_ns", uint64_t{0}), {}};
    const std::vector<uint64_t> none;
    for (const uint64_t id : line.value("reads", none)) {
      op.accesses.push_back({numbers_.at(id), false});
    }
    for (const uint64_t id : line.value("writes", none)) {
      op.accesses.push_back({numbers_.at(id), true});
    }
    trace_.ops.push_back(std::move(op));
  }

  Trace trace_;
  std::map<uint64_t, uint32_t> numbers_;  // of tensors, by id
  std::map<std::string, uint32_t> names_;
};

}  // namespace

Result<Trace> read_period(const std::string& path) {
  const auto invalid = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, path + " is no period: " + why);
  };
  std::ifstream file(path);
  if (!file) return invalid("it cannot be read.");
  PeriodReader reader;
  std::string line;
  try {
    while (std::getline(file, line)) reader.take(Json::parse(line));
  } catch (const std::exception& error) {
    return invalid(error.what());
  }
  Trace trace = reader.trace();
  const Status status = trace.validate();
  if (!status.is_ok()) return invalid(status.message());
  return trace;
}

}  // namespace tencache
