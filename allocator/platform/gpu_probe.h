// SPDX-License-Identifier: Apache-2.0
//
// The GPUs of this machine, for `tencache doctor`, or why there are none. The probe loads the
// driver and makes no context. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tencache {

struct ProbedGpu {
  std::string name;
  uint64_t total_bytes = 0;
  std::string reason;  // why the cuda backend could not use it; empty: it could
};

struct GpuProbe {
  std::vector<ProbedGpu> gpus;
  std::string reason;  // why there is none; empty: there are some
};

GpuProbe probe_gpus();

}  // namespace tencache
