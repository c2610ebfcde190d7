// SPDX-License-Identifier: Apache-2.0
// Puts callables as kernels into the current CUDA stream. The stream's thread runs them with the
// program's hooks off. An error in a task fails the device. A generator is made when its task runs,
// because a replayed graph has another seed and offset with each replay.
#pragma once
#include <ATen/record_function.h>

#include <functional>

#include "operators/aliases.h"

namespace tencache {

// No hooks of the program for what happens inside an operator.
struct InsideGuard {
  at::RecordFunctionGuard no_hooks{false};
  at::AutoDispatchBelowAutograd below;
};

void queue(const char* name, const Ranges& ranges, std::function<void()> run,
           c10::DeviceIndex device);

using MakeGenerator = std::function<at::Generator()>;
MakeGenerator device_generator(const IValue& given, c10::DeviceIndex device, Ranges* ranges);

}  // namespace tencache
