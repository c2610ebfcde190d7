// SPDX-License-Identifier: Apache-2.0
//
// Traces for tests: small random ones with persistent tensors, tensors that come and go within a
// period and tensors that live across its border; and training steps of a transformer of any
// size. And the machine that makes their times easy to work out by hand.
#pragma once

#include <cstdint>

#include "learn/plan.h"
#include "learn/trace.h"
#include "support/random.h"

namespace tencache {

struct RandomTraceShape {
  Tick ops = 12;
  uint32_t tensors = 6;
  uint64_t bytes_max = 8;
  uint64_t compute_ns_max = 10;
};

/// Every tensor is named at least once.
Trace random_trace(Random& random, const RandomTraceShape& shape);

struct TransformerShape {
  uint32_t layers = 4;
  uint32_t weights_per_layer = 6;
  uint32_t activations_per_layer = 8;
  uint64_t weight_bytes = uint64_t{64} << 20;
  uint64_t activation_bytes = uint64_t{32} << 20;
  uint64_t op_ns = 20'000'000;
  uint64_t optimizer_op_ns = 5'000'000;
};

/// A machine on whose links one byte takes one nanosecond.
inline Machine byte_per_ns(uint64_t budget_bytes, bool is_half_duplex = false) {
  return {.budget_bytes = budget_bytes,
          .read_bytes_per_s = 1e9,
          .write_bytes_per_s = 1e9,
          .is_half_duplex = is_half_duplex};
}

/// Forward, backward, and an AdamW step that updates one weight with two states at a time.
Trace transformer_trace(const TransformerShape& shape);

}  // namespace tencache
