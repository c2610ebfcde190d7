// SPDX-License-Identifier: Apache-2.0
//
// A trace as the flat arrays in which it passes the C ABI.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/tencache.h"
#include "learn/trace.h"

namespace tencache {

/// The flat arrays of a trace, and the struct of the C ABI that points into them. The names of ops
/// point into the trace, which outlives this object.
class FlatPeriod {
 public:
  explicit FlatPeriod(const Trace& trace) {
    for (const TraceTensor& tensor : trace.tensors) {
      tensor_bytes_.push_back(tensor.bytes);
      allocated_at_.push_back(tensor.allocated_at);
      freed_at_.push_back(tensor.freed_at);
    }
    for (const TraceOp& op : trace.ops) {
      compute_ns_.push_back(op.compute_ns);
      op_names_.push_back(trace.op_names.at(op.name).c_str());
      access_counts_.push_back(static_cast<uint32_t>(op.accesses.size()));
      for (const TraceAccess& access : op.accesses) {
        access_tensors_.push_back(access.tensor);
        access_writes_.push_back(access.is_write ? 1 : 0);
      }
    }
    period_ = {.fixed_bytes = trace.fixed_bytes,
               .tensor_count = static_cast<uint32_t>(trace.tensors.size()),
               .tensor_bytes = tensor_bytes_.data(),
               .allocated_at = allocated_at_.data(),
               .freed_at = freed_at_.data(),
               .op_count = trace.tick_count(),
               .compute_ns = compute_ns_.data(),
               .access_counts = access_counts_.data(),
               .access_tensors = access_tensors_.data(),
               .access_writes = access_writes_.data()};
  }
  const tencache_period* get() const { return &period_; }
  /// A name for each op.
  const char* const* op_names() const { return op_names_.data(); }

 private:
  std::vector<const char*> op_names_;  // the trace's
  std::vector<uint64_t> tensor_bytes_;
  std::vector<uint32_t> allocated_at_;
  std::vector<uint32_t> freed_at_;
  std::vector<uint64_t> compute_ns_;
  std::vector<uint32_t> access_counts_;
  std::vector<uint32_t> access_tensors_;
  std::vector<uint8_t> access_writes_;
  tencache_period period_ = {};
};

}  // namespace tencache
