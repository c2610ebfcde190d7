// SPDX-License-Identifier: Apache-2.0
//
// Random numbers of tasks. A task draws from a generator of the CPU that is made of the seed and
// offset of CUDA's generator, when the task runs: while a graph is captured these lie in device
// memory, and each replay has others. So the same seed gives the same numbers on "cuda" twice, get
// and set of the generator's state work, and no number equals the CPU's for that seed or a real
// GPU's. Any thread may ask for a generator; the task makes it on the stream's thread.
#pragma once
#include "operators/tasks.h"

namespace emulated_gpu::operators {

using MakeGenerator = std::function<at::Generator()>;

/// Takes the next offset of the given generator, or of the device's own one where none is given.
/// What the task reads of it is added to the ranges.
MakeGenerator next_generator(const IValue& given, c10::DeviceIndex device, Ranges* ranges);

}  // namespace emulated_gpu::operators
