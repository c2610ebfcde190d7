// SPDX-License-Identifier: Apache-2.0
#include "learn/period_writer.h"

#include <nlohmann/json.hpp>

#include "learn/json_lines.h"
#include "platform/output_file.h"

namespace tencache {
namespace {

using Json = nlohmann::ordered_json;

Json header(const Trace& trace, const Machine& machine, const std::string& run_id) {
  Json line = {{"format", "tencache-period"}, {"version", 1}};
  if (!run_id.empty()) line["run_id"] = run_id;
  line.update({{"ops", trace.ops.size()},
               {"tensors", trace.tensors.size()},
               {"fixed_bytes", trace.fixed_bytes},
               {"peak_bytes", trace.peak_bytes()},
               {"device_budget_bytes", machine.budget_bytes},
               {"read_bytes_per_s", machine.is_read_guessed ? 0 : machine.read_bytes_per_s},
               {"write_bytes_per_s", machine.is_write_guessed ? 0 : machine.write_bytes_per_s},
               {"read_work_ns_per_byte", machine.read_work_ns_per_byte},
               {"write_work_ns_per_byte", machine.write_work_ns_per_byte},
               {"drop_work_ns_per_byte", machine.drop_work_ns_per_byte}});
  if (machine.is_half_duplex) line["half_duplex"] = true;
  return line;
}

Json tensor_line(size_t id, const TraceTensor& tensor) {
  Json line = {{"id", id}, {"bytes", tensor.bytes}};
  if (!tensor.is_persistent()) {
    line["allocated_at"] = tensor.allocated_at;
    line["freed_at"] = tensor.freed_at;
  }
  return line;
}

Json op_line(const Trace& trace, const TraceOp& op) {
  Json reads = Json::array();
  Json writes = Json::array();
  std::string order;
  for (const TraceAccess& access : op.accesses) {
    (access.is_write ? writes : reads).push_back(access.tensor);
    order += access.is_write ? 'w' : 'r';
  }
  const bool is_mixed = !reads.empty() && !writes.empty();
  Json line = {{"name", trace.op_names[op.name]},
               {"compute_ns", op.compute_ns},
               {"reads", std::move(reads)},
               {"writes", std::move(writes)}};
  if (is_mixed) line["order"] = std::move(order);
  return line;
}

}  // namespace

Status write_period(const Trace& trace, const Machine& machine, const std::string& path,
                    const std::string& run_id) {
  TENCACHE_RETURN_IF_ERROR(trace.validate());
  return write_output_file(path, [&](OutputText& file) {
    append_json_line(header(trace, machine, run_id), file);
    for (size_t id = 0; id < trace.tensors.size(); ++id) {
      append_json_line(tensor_line(id, trace.tensors[id]), file);
    }
    for (const TraceOp& op : trace.ops) append_json_line(op_line(trace, op), file);
  });
}

}  // namespace tencache
