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
  explicit TransformerBuilder(const TransformerShape& shape)
      : shape_(shape),
        weight_count_(shape.layers * weights_per_layer()),
        gradients_(weight_count_) {
    TENCACHE_CHECK(weights_per_layer() <= activations_per_layer());
    trace_.op_names = {"forward", "backward", "update"};
  }

  Trace build() {
    // Weight w has its AdamW states at weight_count_ + 2 w and the one after.
    for (uint32_t weight = 0; weight < weight_count_; ++weight) {
      trace_.tensors.push_back({weight_bytes(weight), kNoTick, kNoTick});
    }
    for (uint32_t weight = 0; weight < weight_count_; ++weight) {
      const uint64_t bytes = shape_.state_bytes_per_weight_byte * weight_bytes(weight);
      trace_.tensors.insert(trace_.tensors.end(), 2, {bytes, kNoTick, kNoTick});
    }
    for (uint32_t batch = 0; batch < shape_.micro_batches; ++batch) {
      forward();
      backward(batch == 0);
    }
    update();
    TENCACHE_CHECK(trace_.validate().is_ok());
    return std::move(trace_);
  }

 private:
  void forward() {
    activations_.clear();
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (uint32_t index = 0; index < activations_per_layer(); ++index) {
        std::vector<TraceAccess> accesses;
        if (!activations_.empty()) accesses.push_back({activations_.back(), false});
        if (index < weights_per_layer()) accesses.push_back({weight(layer, index), false});
        activations_.push_back(born(shape_.activation_bytes[index]));
        add_ops(0, shape_.op_ns, std::move(accesses), {activations_.back()});
      }
    }
  }

  void backward(bool is_first) {
    std::vector<uint32_t> incoming;  // the gradient that the previous ops made
    for (uint32_t layer = shape_.layers; layer-- > 0;) {
      for (uint32_t index = activations_per_layer(); index-- > 0;) {
        std::vector<uint32_t> ending = {activations_[layer * activations_per_layer() + index]};
        ending.insert(ending.end(), incoming.begin(), incoming.end());
        std::vector<TraceAccess> accesses;
        accesses.reserve(ending.size() + 2);
        for (const uint32_t tensor : ending) accesses.push_back({tensor, false});
        std::vector<uint32_t> made;
        if (index < weights_per_layer()) {
          uint32_t& gradient = gradients_[weight(layer, index)];
          accesses.push_back({weight(layer, index), false});
          if (is_first) {
            made.push_back(gradient = born(shape_.weight_bytes[index]));
          } else {
            accesses.push_back({gradient, true});
          }
        }
        incoming.clear();
        if (shape_.has_activation_gradients) {
          incoming.push_back(born(shape_.activation_bytes[index]));
          made.push_back(incoming.back());
        }
        add_ops(1, 2 * shape_.op_ns, std::move(accesses), made);
        end_with_last_op(ending);
      }
    }
    end_with_last_op(incoming);
  }

  void update() {
    for (uint32_t first = 0; first < weight_count_; first += shape_.weights_per_update) {
      const uint32_t end = std::min(first + shape_.weights_per_update, weight_count_);
      std::vector<TraceAccess> accesses;
      for (uint32_t index = first; index < end; ++index) {
        accesses.push_back({gradients_[index], false});
        accesses.push_back({index, true});
        accesses.push_back({weight_count_ + 2 * index, true});
        accesses.push_back({weight_count_ + 2 * index + 1, true});
      }
      trace_.ops.push_back({2, shape_.optimizer_op_ns * (end - first), std::move(accesses)});
      end_with_last_op({gradients_.begin() + first, gradients_.begin() + end});
    }
  }

  uint32_t weights_per_layer() const { return static_cast<uint32_t>(shape_.weight_bytes.size()); }
  uint32_t activations_per_layer() const {
    return static_cast<uint32_t>(shape_.activation_bytes.size());
  }
  uint32_t weight(uint32_t layer, uint32_t index) const {
    return layer * weights_per_layer() + index;
  }
  uint64_t weight_bytes(uint32_t weight) const {
    return shape_.weight_bytes[weight % weights_per_layer()];
  }
  uint32_t born(uint64_t bytes) {
    trace_.tensors.push_back({bytes, trace_.tick_count(), trace_.tick_count()});
    return static_cast<uint32_t>(trace_.tensors.size() - 1);
  }
  void end_with_last_op(const std::vector<uint32_t>& tensors) {
    for (const uint32_t tensor : tensors) trace_.tensors[tensor].freed_at = trace_.tick_count() - 1;
  }

  // Adds ops with these accesses. The first op makes the tensors of `made`; the others name those
  // too.
  void add_ops(uint32_t name, uint64_t compute_ns, std::vector<TraceAccess> accesses,
               const std::vector<uint32_t>& made) {
    trace_.ops.push_back({name, compute_ns, accesses});
    for (const uint32_t tensor : made) accesses.push_back({tensor, false});
    trace_.ops.insert(trace_.ops.end(), shape_.ops_per_activation - 1,
                      {name, compute_ns, std::move(accesses)});
  }

  const TransformerShape shape_;
  const uint32_t weight_count_;
  std::vector<uint32_t> gradients_;    // by weight
  std::vector<uint32_t> activations_;  // of the micro-batch, in order
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
