// SPDX-License-Identifier: Apache-2.0
//
// Stand-ins for a device tensor: a CPU tensor over the same memory, for the CPU's kernel; a Meta
// tensor of the same shape, to ask for the shapes of results; and a fresh device tensor, made by
// the current CUDA allocator. An alias does not own its memory, so the device tensor must live
// until the task ran, as with a real kernel. None of these touches the memory itself. None is an
// inference tensor, because tasks write to them outside of that mode. Any thread may call.
#pragma once
#include "operators/values.h"

namespace emulated_gpu::operators {

/// Throws with the operator's name where a tensor is more than its memory: quantized or nested.
void check_supported(const char* name, const Tensor& t);
/// The bytes from the first element to the end of the last one, gaps included.
size_t span_bytes(const Tensor& t);
Tensor alias_of(const Tensor& t);
Tensor meta_of(const Tensor& t);
/// A copy for a task, since the program may change a tensor of the host after the call.
Tensor host_copy_of(const Tensor& t);
/// A fresh tensor on the device, with the sizes, strides and type of the given dense one.
Tensor device_tensor_like(const Tensor& t, c10::DeviceIndex device);

}  // namespace emulated_gpu::operators
