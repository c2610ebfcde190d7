// SPDX-License-Identifier: Apache-2.0
//
// Stand-ins on the emulated GPU for the kernels that the tests in tests/gpu compile from text: they
// do on the host what the text does. The emulated GPU runs no other kernel that a program compiles.
#pragma once

#include <cstdint>
#include <cstring>

#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_modules.h"

namespace tencache {

inline constexpr char kTestAddKernelName[] = "tencache_test_add";
inline constexpr char kTestScaleKernelName[] = "tencache_test_scale";

template <typename Value>
Value launch_value(const SimulatedLaunch& launch, size_t index) {
  Value value = {};
  memcpy(&value, launch.values.at(index).data(), sizeof value);
  return value;
}

/// tencache_test_add of gpu_core_test.cpp: target[i] += source[i] + more + i.
inline SimulatedKernel test_add_kernel() {
  SimulatedKernel kernel;
  kernel.parameter_bytes = {sizeof(CUdeviceptr), sizeof(CUdeviceptr), sizeof(uint32_t),
                            sizeof(uint64_t)};
  kernel.ranges = [](const SimulatedLaunch& launch) {
    const uint64_t bytes = launch_value<uint64_t>(launch, 3) * sizeof(uint32_t);
    return SimulatedKernel::Ranges{{{launch_value<CUdeviceptr>(launch, 0), bytes, true},
                                    {launch_value<CUdeviceptr>(launch, 1), bytes, false}},
                                   {},
                                   {}};
  };
  kernel.run = [](const SimulatedLaunch& launch) {
    auto* const target = launch_value<uint32_t*>(launch, 0);
    const auto* const source = launch_value<const uint32_t*>(launch, 1);
    const auto more = launch_value<uint32_t>(launch, 2);
    const auto count = launch_value<uint64_t>(launch, 3);
    for (uint64_t i = 0; i < count; ++i) target[i] += source[i] + more + static_cast<uint32_t>(i);
  };
  return kernel;
}

/// tencache_test_scale of test_programs.py: data[i] *= factor.
inline SimulatedKernel test_scale_kernel() {
  SimulatedKernel kernel;
  kernel.parameter_bytes = {sizeof(CUdeviceptr), sizeof(double), sizeof(int)};
  kernel.ranges = [](const SimulatedLaunch& launch) {
    const uint64_t bytes = static_cast<uint64_t>(launch_value<int>(launch, 2)) * sizeof(float);
    return SimulatedKernel::Ranges{{{launch_value<CUdeviceptr>(launch, 0), bytes, true}}, {}, {}};
  };
  kernel.run = [](const SimulatedLaunch& launch) {
    auto* const data = launch_value<float*>(launch, 0);
    const auto factor = launch_value<double>(launch, 1);
    const int count = launch_value<int>(launch, 2);
    for (int i = 0; i < count; ++i) data[i] = static_cast<float>(data[i] * factor);
  };
  return kernel;
}

inline void add_test_kernels(SimulatedDriver& driver) {
  driver.add_kernel(kTestAddKernelName, test_add_kernel());
  driver.add_kernel(kTestScaleKernelName, test_scale_kernel());
}

}  // namespace tencache
