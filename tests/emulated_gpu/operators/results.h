// SPDX-License-Identifier: Apache-2.0
//
// Functions that copy the output of a CPU kernel to the device, for kernels that wait for their
// results. The copy is a task in the current stream under the operator's name, as if the kernel had
// written there itself. The task holds the tensor of the host until it ran. A sparse tensor is
// copied by its parts, its indices and values. Any thread may call.
#pragma once
#include "operators/tasks.h"

namespace emulated_gpu::operators {

/// Copies `made` to `target` in a task of that name. The name must live for ever.
void copy_to_device(const char* name, const Tensor& target, const Tensor& made);
/// A fresh tensor on the device, dense or sparse like the given one.
Tensor moved_to_device(const char* name, const Tensor& made, c10::DeviceIndex device);

}  // namespace emulated_gpu::operators
