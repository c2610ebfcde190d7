// SPDX-License-Identifier: Apache-2.0
//
// Signature reads schemas. A result is an argument where both carry the same alias set, as
// `Tensor(a!)` does; a result without one is fresh. Views never get here, since PyTorch's own code
// serves them. The thread that installs the kernels makes the signatures.
#include "operators/signature.h"

namespace emulated_gpu::operators {

namespace {

std::optional<size_t> argument_of(const c10::Argument& result,
                                  const std::vector<c10::Argument>& arguments) {
  if (result.alias_info() == nullptr) return std::nullopt;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) return i;
  }
  return std::nullopt;
}

}  // namespace

Signature::Signature(const OperatorHandle& op)
    : name(c10::toString(op.operator_name())),
      has_meta(op.hasComputedKernelForDispatchKey(DispatchKey::Meta)),
      special(special_case_of(name)) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    written.push_back(alias != nullptr && alias->isWrite());
    is_out.push_back(arguments[i].is_out() && !special.adds_to_out);
    has_out = has_out || is_out[i];
    if (arguments[i].name() == "generator") generator = i;
  }
  for (const c10::Argument& result : op.schema().returns()) {
    returned.push_back(argument_of(result, arguments));
    if (!returned.back()) has_fresh = true;
  }
}

}  // namespace emulated_gpu::operators
