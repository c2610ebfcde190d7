// SPDX-License-Identifier: Apache-2.0
//
// Multi-tensor operators (_foreach_*, _fused_*, _amp_foreach_*) name a whole model at once, so no
// budget could hold the tensors of one call. We find them in the dispatcher by their schemas and
// give each a kernel at the dispatch key BackendSelect, below autograd and above the backends. That
// kernel cuts the lists into chunks whose extents fit a share of the budget. It calls the backend's
// own kernel once per chunk, with the gate open for that chunk. The results have the same bits,
// because these operators work tensor by tensor, in order.
//
// The rules are read from the schema once (make_split_plan) and checked against the values at each
// call:
//   Tensor[]            is cut; all non-empty ones have the length of the first, empty ones stay
//   Scalar[]            is cut, and has the same length
//   Tensor "scalars"    is narrowed, and has one dimension of the same length
//   other Tensor        is passed whole; it has at most one element, or the call is not split; none
//                       but "found_inf" is written
//   scalars, options    are passed whole
//   returned Tensor[]   is concatenated
//   returned Tensor     is called "<argument>_out": what one chunk returns is that argument of the
//                       next
//   Tensor[] "out"      is filled after all has been read; a call in which it shares memory with
//                       inputs is not split
// An operator that breaks a rule is left alone, with the reason; it then passes the gate as a
// whole.
//
// A call that writes tensors of its lists either ends or does not begin, as far as a failing disk
// is concerned: it must not leave some tensors changed and others not (tencache_begin_in_place).
//
// Threads: any. Until the runtime arms, the kernel only calls the original.
#pragma once

#include <ATen/core/function_schema.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tencache::shim {

enum class ArgumentRole : uint8_t { kTensorList, kScalarList, kScalarsTensor, kTensor, kOther };

struct ReturnRole {
  bool is_list = false;
  size_t threaded_argument = 0;  // for a Tensor: the argument that it becomes in the next chunk
};

/// How the arguments and returns of one list operator are cut and joined.
struct SplitPlan {
  std::vector<ArgumentRole> arguments;
  std::vector<ReturnRole> returns;
  std::vector<size_t> tensor_lists;   // each Tensor[]; the length of the first one counts
  std::vector<size_t> out_arguments;  // each Tensor[] that is written after everything is read
  bool writes_lists = false;          // tensors of the lists, "out" ones included
};

/// Returns an empty text on success, else the reason why the operator is left alone. Pure.
std::string make_split_plan(const c10::FunctionSchema& schema, SplitPlan* plan);

/// Registers the kernels. Call once, after install_operator_table() and before the hooks are armed.
void install_list_split();

struct LeftAlone {
  std::string name;
  std::string reason;
};

/// How many calls were cut so far, and into how many chunks.
struct SplitCounts {
  uint64_t calls;
  uint64_t chunks;
};
SplitCounts split_counts();

/// The operators that are split, and those left alone. Constant after install.
const std::vector<std::string>& split_operators();
const std::vector<LeftAlone>& operators_left_alone();

}  // namespace tencache::shim
