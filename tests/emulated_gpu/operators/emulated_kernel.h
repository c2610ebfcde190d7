// SPDX-License-Identifier: Apache-2.0
//
// The boxed kernel of one operator. It runs the operator's CPU kernel in the current stream, over
// aliases of device memory. Where the Meta kernel knows the shapes of the results, the program runs
// ahead of its device. Where it does not, or they depend on data, the caller waits. A task holds no
// device tensor, so a program that frees or moves one while a task uses it gets wrong bits or an
// illegal address. Kernels live for ever, since tasks and graphs refer to them. Any thread may call
// one.
#pragma once
#include <atomic>

#include "operators/random.h"
#include "operators/result_shapes.h"
#include "operators/signature.h"

namespace emulated_gpu::operators {

class EmulatedKernel final : public c10::OperatorKernel {
 public:
  explicit EmulatedKernel(const OperatorHandle& op) : signature_(op) {}
  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack);
  uint64_t calls() const { return calls_; }

 private:
  /// One call, as it goes from step to step.
  struct Call {
    const OperatorHandle& op;
    std::vector<IValue> arguments;
    c10::DeviceIndex device;
    Ranges ranges = {};
    MakeGenerator generator = nullptr;
  };

  void check_arguments(const Call& call) const;
  bool try_queue(Call* call, std::vector<IValue>* results);
  std::optional<std::vector<IValue>> make_results(const Call& call, const Shapes* shapes,
                                                  std::vector<Tensor>* fresh) const;
  void queue_with_results(Call* call, const std::vector<Tensor>& fresh);
  std::vector<IValue> run_and_copy(Call* call);
  Stack host_arguments(Call* call) const;
  void run_on_host(const OperatorHandle& op, const MakeGenerator& generator, Stack* host) const;
  void fill(const Stack& host, std::vector<Tensor>* targets) const;

  const Signature signature_;
  ResultShapes shapes_;
  std::atomic<uint64_t> calls_ = 0;
};

}  // namespace emulated_gpu::operators
