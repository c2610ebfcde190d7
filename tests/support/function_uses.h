// SPDX-License-Identifier: Apache-2.0
//
// FunctionUses: a plan's knowledge of the next uses (engine/move/next_uses.h), given by a test as a
// function. Any thread of the engine may call it.
#pragma once

#include <functional>
#include <unordered_map>
#include <utility>

#include "engine/move/next_uses.h"

namespace tencache {

class FunctionUses final : public NextUses {
 public:
  using Function = std::function<std::unordered_map<const Extent*, uint64_t>()>;

  explicit FunctionUses(Function function) : function_(std::move(function)) {}

  std::unordered_map<const Extent*, uint64_t> next_uses() const override { return function_(); }

 private:
  const Function function_;
};

}  // namespace tencache
