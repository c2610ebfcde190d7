// SPDX-License-Identifier: Apache-2.0
//
// write_period(): writes one learned period of a program as JSON lines, the format that `tencache
// plan` reads, "tencache-period", version 1. A training step of two ops on two tensors:
//
//   {"format":"tencache-period","version":1,"run_id":"5f0c62d19e4ab387","ops":2,"tensors":2,
//    "fixed_bytes":4096,"peak_bytes":8392704,"device_budget_bytes":6291456,
//    "read_bytes_per_s":2.1e9,"write_bytes_per_s":4.3e9,"read_work_ns_per_byte":0.3,
//    "write_work_ns_per_byte":0.15,"drop_work_ns_per_byte":0.07}      (one line in the file)
//   {"id":0,"bytes":4194304}
//   {"id":1,"bytes":4194304,"allocated_at":0,"freed_at":1}
//   {"name":"aten::mm","compute_ns":1200000,"reads":[0],"writes":[1],"order":"rw"}
//   {"name":"aten::add_.Tensor","compute_ns":300000,"reads":[1],"writes":[0],"order":"wr"}
//
// The first line describes the file. `format` and `version` are required. `ops` and `tensors`, the
// numbers of lines of each kind, let a reader notice a truncated file. `run_id` is also in the
// stats of the process, so that a reader knows whether both are of one run. `fixed_bytes` are on
// the device all the time, besides the tensors. `peak_bytes` is the most that exists at one time.
// `device_budget_bytes` is the budget under which the period was seen. The two bandwidths are as
// measured; where `half_duplex` is true, reads and writes take turns at them. Measured, too, is the
// processor time that moving a byte takes from the program: to read it back, to write it, and to
// let it go, which is added to writing. Another tool's file may leave out any of these sizes,
// bandwidths and times, which means 0: unknown, or no processor time.
//
// Then comes one line per tensor, in any order. `id` is a whole number, unique to the tensor. The
// tensor is there from the start of op number `allocated_at` to the end of op number `freed_at`,
// counted from 0; `freed_at` is the smaller one when the tensor lives on into the next repetition.
// A tensor that is always there has neither. A tensor is whatever moves as a whole: one storage,
// one allocation.
//
// Then comes one line per op, in order. `compute_ns` is the time from its start to the start of the
// next op without waiting for memory. `reads` and `writes` list ids, and may be absent when empty.
// What an op writes must be on the device, too, and must be written out before it leaves again. It
// need not be in `reads` as well. `order` tells in which order the gate sees them, r for the next
// of `reads` and w for the next of `writes`. Plans do not depend on it. To follow the period in
// another run takes the exact order, so an op that both reads and writes must have it then (option
// learn_from). `overwrites`, absent when empty, lists those of `writes` whose old bytes the op
// neither uses nor leaves in place: those bytes need not be kept after the op that named the tensor
// last. tencache does not record `overwrites`, since it does not know that of an op.
//
// The period repeats for ever: after the last op comes the first. Readers must ignore fields that
// are not named here; a change that readers could not ignore gets a new version.
#pragma once

#include <string>

#include "base/status.h"
#include "learn/plan.h"
#include "learn/trace.h"

namespace tencache {

/// Writes the period to `path` (platform/output_file.h). Returns kInvalidArgument when the trace is
/// not valid, and otherwise fails as write_output_file() does. `machine` is where the period was
/// seen; a 0 in it means unknown. An empty `run_id` is left out.
Status write_period(const Trace& trace, const Machine& machine, const std::string& path,
                    const std::string& run_id = {});

}  // namespace tencache
