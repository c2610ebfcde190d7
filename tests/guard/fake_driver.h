// SPDX-License-Identifier: Apache-2.0
//
// A driver of a few functions, built as a library with the driver's name. It notes the calls that
// do work, counts questions about the arguments of kernels, and answers as the test has set. It
// serves the guard's suite, which checks who is asked for a function and what a call passes on, not
// what a driver does. Threads: one at a time.
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
  CUstream stream = nullptr;       // of the last call; null if it has none
  void** arguments = nullptr;      // of the last launch
  size_t bytes = 0;                // of the last call; 0 if it copies and sets nothing
  CUresult result = CUDA_SUCCESS;  // of every call in `calls`
  size_t questions = 0;            // number of questions about arguments of kernels
};

}  // namespace tencache

/// The driver of the process.
extern "C" tencache::FakeDriver* fake_driver();
