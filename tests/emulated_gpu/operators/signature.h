// SPDX-License-Identifier: Apache-2.0
//
// An operator's schema as a call needs it: which arguments are written, which of them are out=,
// which result is which argument, and the place of the generator. It is read once, when the kernel
// is installed, so that a call looks nothing up by name. A signature never changes, so any thread
// may read it.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "operators/special_cases.h"

namespace emulated_gpu::operators {

struct Signature {
  explicit Signature(const OperatorHandle& op);

  /// Whether the operator returns only its own arguments, none of them out=: no shape has to be
  /// found.
  bool is_in_place() const { return !has_fresh && !has_out; }

  std::string name;
  bool has_fresh = false;  // some result is a tensor that the operator makes
  bool has_out = false;
  bool has_meta = false;
  std::optional<size_t> generator;              // the argument's place
  std::vector<bool> written;                    // by argument
  std::vector<bool> is_out;                     // by argument: it is an out=
  std::vector<std::optional<size_t>> returned;  // by result: which argument it is
  SpecialCase special;
};

}  // namespace emulated_gpu::operators
