// SPDX-License-Identifier: Apache-2.0
//
// The settings of the operators in the environment. The variables are read once, at the first use,
// so that a program cannot change them half way. Any thread may ask.
#pragma once

namespace emulated_gpu::operators {

struct Settings {
  bool is_logging;  // EMULATED_GPU_LOG: each operator's name goes to stderr
  bool is_waiting;  // EMULATED_GPU_SYNC: the caller waits for each task, for debugging
};

const Settings& settings();

}  // namespace emulated_gpu::operators
