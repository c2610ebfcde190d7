// SPDX-License-Identifier: Apache-2.0
//
// settings() reads the variables of the environment that README.md lists for operators. A variable
// counts if it is set to anything. The first thread that asks reads them for all.
#include "operators/settings.h"

#include <cstdlib>

namespace emulated_gpu::operators {

const Settings& settings() {
  static const Settings found = {.is_logging = std::getenv("EMULATED_GPU_LOG") != nullptr,
                                 .is_waiting = std::getenv("EMULATED_GPU_SYNC") != nullptr};
  return found;
}

}  // namespace emulated_gpu::operators
