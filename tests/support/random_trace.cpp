// SPDX-License-Identifier: Apache-2.0
#include "support/random_trace.h"

#include <algorithm>

#include "base/check.h"

namespace tencache {
namespace {

void name_at(Trace& trace, Tick tick, uint32_t tensor, bool is_write) {
  for (TraceAccess& access : trace.ops[tick].accesses) {
    if (access.tensor != tensor) continue;
    access.is_write |= is_write;
    return;
  }
  trace.ops[tick].accesses.push_back({tensor, is_write});
}

class TransformerBuilder {
 public:
  explicit TransformerBuilder(const TransformerShape& shape) : shape_(shape) {
    trace_.op_names = {"forward", "backward", "update"};
  }

  Trace build() {
    const uint32_t weight_count = shape_.layers * shape_.weights_per_layer;
    for (uint32_t index = 0; index < 3 * weight_count; ++index) {
      trace_.tensors.push_back({shape_.weight_bytes, kNoTick, kNoTick});
    }
    // Weight w has its AdamW states at weight_count + 2 w and the one after.
    std::vector<uint32_t> activations;
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (uint32_t index = 0; index < shape_.activations_per_layer; ++index) {
        std::vector<TraceAccess> accesses;
        if (!activations.empty()) accesses.push_back({activations.back(), false});
        if (index < shape_.weights_per_layer) accesses.push_back({weight(layer, index), false});
        activations.push_back(born(shape_.activation_bytes));
        add(0, shape_.op_ns, std::move(accesses));
      }
    }
    std::vector<uint32_t> gradients(weight_count);
    for (uint32_t layer = shape_.layers; layer-- > 0;) {
      for (uint32_t index = shape_.activations_per_layer; index-- > 0;) {
        const uint32_t activation = activations[layer * shape_.activations_per_layer + index];
        std::vector<TraceAccess> accesses = {{activation, false}};
        if (index < shape_.weights_per_layer) {
          accesses.push_back({weight(layer, index), false});
          gradients[layer * shape_.weights_per_layer + index] = born(shape_.weight_bytes);
        }
        trace_.tensors[activation].freed_at = trace_.tick_count();
        add(1, 2 * shape_.op_ns, std::move(accesses));
      }
    }
    for (uint32_t index = 0; index < weight_count; ++index) {
      trace_.tensors[gradients[index]].freed_at = trace_.tick_count();
      add(2, shape_.optimizer_op_ns,
          {{gradients[index], false},
           {index, true},
           {weight_count + 2 * index, true},
           {weight_count + 2 * index + 1, true}});
    }
    TENCACHE_CHECK(trace_.validate().is_ok());
    return std::move(trace_);
  }

 private:
  uint32_t weight(uint32_t layer, uint32_t index) const {
    return layer * shape_.weights_per_layer + index;
  }
  uint32_t born(uint64_t bytes) {
    trace_.tensors.push_back({bytes, trace_.tick_count(), trace_.tick_count()});
    return static_cast<uint32_t>(trace_.tensors.size() - 1);
  }
  void add(uint32_t name, uint64_t compute_ns, std::vector<TraceAccess> accesses) {
    trace_.ops.push_back({name, compute_ns, std::move(accesses)});
  }

  const TransformerShape shape_;
  Trace trace_;
};

}  // namespace

Trace random_trace(Random& random, const RandomTraceShape& shape) {
  Trace trace;
  trace.op_names = {"op"};
  trace.fixed_bytes = random.between(0, 2);
  for (Tick tick = 0; tick < shape.ops; ++tick) {
    trace.ops.push_back({0, random.between(0, shape.compute_ns_max), {}});
  }
  for (uint32_t index = 0; index < shape.tensors; ++index) {
    TraceTensor tensor{random.between(1, shape.bytes_max), kNoTick, kNoTick};
    if (random.chance(0.5)) {
      tensor.allocated_at = static_cast<Tick>(random.between(0, shape.ops - 1));
      tensor.freed_at = static_cast<Tick>(random.between(0, shape.ops - 1));
    }
    trace.tensors.push_back(tensor);
    const Tick first = tensor.is_persistent() ? 0 : tensor.allocated_at;
    const Tick length = tensor.is_persistent()
                            ? shape.ops
                            : (tensor.freed_at + shape.ops - tensor.allocated_at) % shape.ops + 1;
    const uint64_t uses = random.between(1, std::min<uint64_t>(4, length));
    for (uint64_t use = 0; use < uses; ++use) {
      const Tick tick = (first + static_cast<Tick>(random.between(0, length - 1))) % shape.ops;
      name_at(trace, tick, index, random.chance(0.3));
    }
  }
  return trace;
}

Trace transformer_trace(const TransformerShape& shape) { return TransformerBuilder(shape).build(); }

}  // namespace tencache
