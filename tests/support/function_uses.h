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

  explicit FunctionUses(Function function, uint64_t copy_ahead_bytes = 0)
      : function_(std::move(function)), copy_ahead_bytes_(copy_ahead_bytes) {}

  std::unordered_map<const Extent*, uint64_t> next_uses() const override { return function_(); }
  uint64_t copy_ahead_bytes() const override { return copy_ahead_bytes_; }

 private:
  const Function function_;
  const uint64_t copy_ahead_bytes_;
};

}  // namespace tencache
