// SPDX-License-Identifier: Apache-2.0
//
// Functions that queue callables as kernels in the current CUDA stream. The stream's thread runs a
// task when its turn comes, with the program's hooks off; the driver first checks that the ranges
// are mapped. A task that throws fails the device, like a kernel that faults. A graph runs a task
// once for each replay. Ranges belong to the thread that fills them. Any thread may queue.
#pragma once
#include <ATen/record_function.h>

#include <functional>
#include <vector>

#include "emulated_gpu.h"
#include "operators/aliases.h"

namespace emulated_gpu::operators {

/// The device memory that a task uses.
class Ranges {
 public:
  void add(const Tensor& t, bool is_written) {
    const size_t bytes = span_bytes(t);
    if (bytes != 0) add(t.const_data_ptr(), bytes, is_written);
  }
  void add(const void* data, size_t bytes, bool is_written) {
    all_.push_back({reinterpret_cast<uint64_t>(data), bytes, is_written});
  }
  const std::vector<EmulatedRange>& all() const { return all_; }

 private:
  std::vector<EmulatedRange> all_;
};

/// A scope inside an operator, in which the program's hooks see nothing and autograd records
/// nothing. Calls in it make no views for autograd either: they resize parts of sparse tensors.
struct InsideOperator {
  at::RecordFunctionGuard no_hooks{false};
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

/// Queues the callable as a kernel of that name. The name must live for ever.
void queue(const char* name, const Ranges& ranges, c10::DeviceIndex device,
           std::function<void()> run);
/// Queues the callable and waits. Passes the callable's exception to the caller. Throws while a
/// graph is captured.
void run_and_wait(const char* name, const Ranges& ranges, c10::DeviceIndex device,
                  const std::function<void()>& run);

}  // namespace emulated_gpu::operators
