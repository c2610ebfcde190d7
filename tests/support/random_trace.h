// SPDX-License-Identifier: Apache-2.0
//
// Traces for tests: small random ones, with persistent tensors, tensors that come and go within a
// period and tensors that live across its border; and training steps of a transformer of any size,
// which benchmarks plan too. There is also a machine whose times are easy to work out by hand.
#pragma once

#include <cstdint>
#include <vector>

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

/// Makes a trace whose ops name every tensor at least once.
Trace random_trace(Random& random, const RandomTraceShape& shape);

/// A training step: forward and backward for each micro-batch, then an AdamW step.
struct TransformerShape {
  uint32_t layers = 4;
  // One entry for each weight of a layer, in the order of use. Weight i is named where activation i
  // is made; a layer has at least as many activations as weights.
  std::vector<uint64_t> weight_bytes = std::vector<uint64_t>(6, uint64_t{64} << 20);
  std::vector<uint64_t> activation_bytes = std::vector<uint64_t>(8, uint64_t{32} << 20);
  uint32_t state_bytes_per_weight_byte = 1;  // each of the two AdamW states: 2 when they are fp32
  uint32_t micro_batches = 1;                // gradients add up over them
  uint32_t ops_per_activation = 1;  // forward and backward; more name the same bytes, as views do
  bool has_activation_gradients = false;  // backward hands one from each activation to the next
  uint32_t weights_per_update = 1;        // in one op; above 1 as in a multi-tensor optimizer
  uint64_t op_ns = 20'000'000;            // forward; backward takes twice as long
  uint64_t optimizer_op_ns = 5'000'000;   // for each weight
};

/// A machine on whose links one byte takes one nanosecond.
inline Machine byte_per_ns(uint64_t budget_bytes, bool is_half_duplex = false) {
  return {.budget_bytes = budget_bytes,
          .read_bytes_per_s = 1e9,
          .write_bytes_per_s = 1e9,
          .is_half_duplex = is_half_duplex};
}

/// REQUIRES: the numbers of the shape are above 0.
Trace transformer_trace(const TransformerShape& shape);

}  // namespace tencache
