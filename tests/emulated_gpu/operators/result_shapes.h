// SPDX-License-Identifier: Apache-2.0
//
// ResultShapes asks an operator's Meta kernel for the shapes of its results, and remembers the
// answers, because a training loop asks the same few questions in each step and many Meta kernels
// are Python. An answer never goes stale, since the key holds everything that determines a shape.
// Past a number of entries all are dropped. Where Meta has no answer the caller must run the
// operator to know. A mutex guards the memory. Any thread may ask; Meta kernels run on the asking
// thread.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "operators/values.h"

namespace emulated_gpu::operators {

/// Meta tensors in place of device tensors.
struct Shapes {
  std::vector<IValue> results;
  std::vector<IValue> arguments;  // of out= arguments, which the Meta kernel resized
};

class ResultShapes {
 public:
  /// Returns null where the Meta kernel throws: the call may be wrong, or Meta has no answer.
  std::shared_ptr<const Shapes> find(const OperatorHandle& op,
                                     const std::vector<IValue>& arguments);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Shapes>> by_key_;  // under mutex_
};

}  // namespace emulated_gpu::operators
