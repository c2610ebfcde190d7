// SPDX-License-Identifier: Apache-2.0
//
// Every decision by an operator's name, in tables: how a CPU kernel differs from CUDA's in its
// arguments and results, which operators PyTorch itself serves on an emulated GPU, and which
// composite and sparse ones get a kernel of their own. All other operators are treated alike. The
// tables never change, so any thread may read them.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "operators/values.h"

namespace emulated_gpu::operators {

/// How one operator's CPU kernel differs from CUDA's.
struct SpecialCase {
  std::string_view name;
  bool is_waited_for = false;       // its shapes depend on data, or it gives numbers
  bool takes_host_tensors = false;  // of any size, beside those of the device
  bool may_leave_empty = false;     // in evaluation the CPU's statistics are empty, CUDA's are not
  bool widens_statistics = false;   // CUDA's have more bits than the CPU's
  bool adds_to_out = false;         // reads its out= argument, as if it wrote in place
  void (*adapt)(Stack* arguments) = nullptr;  // changes the arguments to those of the CPU kernel
};

/// The operator's row; a default one where the name is in no table.
SpecialCase special_case_of(std::string_view name);
/// Whether PyTorch's own code stays: views, memory, and operators that only call others.
bool is_kept(std::string_view name);
/// Composite operators whose parts would choose a library or a kernel of CUDA's by the device.
std::span<const std::string_view> composite_operators();
/// Operators on sparse tensors that launch kernels themselves.
std::span<const std::string_view> sparse_operators();

}  // namespace emulated_gpu::operators
