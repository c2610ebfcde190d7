// SPDX-License-Identifier: Apache-2.0
//
// NCCL's types and reductions. Values are reduced one rank after another, rank 0 first, and each
// partial result is rounded to the type; so all ranks get the same bits, every time. As in NCCL, an
// average of floating-point values multiplies by 1/ranks before it adds; one of integers divides
// the sum. A rank may have a factor of its own, by which it multiplies its input before any other
// rank gets it. Floating-point types of 8 bits can be moved but not reduced. Pure functions.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <optional>
#include <span>

namespace emulated_gpu::nccl {

/// The size of one value, or 0 for an unknown type.
size_t bytes_of(ncclDataType_t type);
bool is_reducible(ncclDataType_t type);

/// A factor of the values, of their type. It lies in device memory, where it is read when the
/// reduction runs, or here.
struct Factor {
  const void* address = nullptr;  // in device memory, or null
  alignas(8) char value[8] = {};

  const void* get() const { return address != nullptr ? address : value; }
};

struct Reduction {
  ncclRedOp_t operation = ncclSum;  // one of NCCL's own
  ncclDataType_t type = ncclFloat32;
  std::optional<Factor> factor;  // of this rank's input
};

/// Multiplies this rank's input by its factor. REQUIRES: there is one.
void scale(const Reduction& reduction, const void* from, void* to, size_t count);

/// Reduces the parts of rank 0, 1, ... to the result, which may be one of them. Factors count as
/// applied already.
void reduce(const Reduction& reduction, std::span<const void* const> parts, void* result,
            size_t count);

}  // namespace emulated_gpu::nccl
