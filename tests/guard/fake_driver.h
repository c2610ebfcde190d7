// SPDX-License-Identifier: Apache-2.0
//
// A driver of a few functions, as a library of the driver's name: it notes each call, and answers
// as the test has said. It serves the guard's suite, which checks who is asked for a function and
// what a call passes on, not what a driver does. Threads: one at a time.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tencache {

/// The target of a CUfunction or CUkernel.
struct FakeKernel {
  std::string name;
  std::vector<std::pair<size_t, size_t>> arguments;  // offset and bytes
  bool is_library_kernel = false;                    // a CUkernel, which has functions of its own
  bool tells_nothing = false;                        // like a driver that is too old
};

struct FakeDriver {
  std::vector<std::string> calls;  // names, in their order
  CUstream stream = nullptr;       // of the last call that has one
  void** arguments = nullptr;      // of the last launch
  size_t bytes = 0;                // of the last copy or set
  CUresult result = CUDA_SUCCESS;  // of calls that queue work
  size_t questions = 0;            // number of questions about arguments of kernels
};

}  // namespace tencache

/// The driver of the process.
extern "C" tencache::FakeDriver* fake_driver();
