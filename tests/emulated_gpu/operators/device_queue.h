// SPDX-License-Identifier: Apache-2.0
// Puts callables as kernels into the current CUDA stream. The stream's thread runs them with the
// program's hooks off. An error in a task fails the device. The times that tasks took are kept by
// name, under a mutex. A generator is made when its task runs, because a replayed graph has another
// seed and offset with each replay.
#pragma once
#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "operators/aliases.h"

namespace tencache {

// No hooks of the program for what happens inside an operator.
struct InsideGuard {
  at::RecordFunctionGuard no_hooks{false};
  at::AutoDispatchBelowAutograd below;
};

// How long tasks took, by name.
struct DeviceTime {
  uint64_t count = 0, total_ns = 0, max_ns = 0;
};
extern std::mutex device_times_mutex;
std::map<std::string, DeviceTime>& device_times();
void queue(const char* name, const Ranges& ranges, std::function<void()> run,
           c10::DeviceIndex device);

using MakeGenerator = std::function<at::Generator()>;
MakeGenerator device_generator(const IValue& given, c10::DeviceIndex device, Ranges* ranges);

}  // namespace tencache
