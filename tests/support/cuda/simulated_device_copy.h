// SPDX-License-Identifier: Apache-2.0
//
// The copy kernel for the simulated driver: the very text that NVRTC compiles, compiled for the
// host and run lane after lane.
#pragma once

#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/racy_access.h"
#include "platform/cuda/copy_kernel.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_modules.h"

namespace tencache {

inline CopyJob copy_job_of(const SimulatedLaunch& launch) {
  CopyJob job = {};
  memcpy(&job, launch.values.at(0).data(), sizeof job);
  return job;
}

/// Adds the copy kernel to the driver's. `reads_may_race` means what it does in
/// SimulatedDriverConfig.
inline void add_copy_kernel(SimulatedDriver& driver, bool reads_may_race = false) {
  driver.add_kernel(kDeviceCopyKernelName,
                    {.parameter_bytes = {sizeof(CopyJob)},
                     .ranges =
                         [](const SimulatedLaunch& launch) {
                           const CopyJob job = copy_job_of(launch);
                           const uint64_t bytes = job.words * sizeof(CopyWord);
                           return SimulatedKernel::Ranges{
                               .device = {},
                               .host = {},
                               .either = {{reinterpret_cast<CUdeviceptr>(job.from), bytes, false},
                                          {reinterpret_cast<CUdeviceptr>(job.to), bytes, true}}};
                         },
                     .run =
                         [reads_may_race](const SimulatedLaunch& launch) {
                           std::optional<RacyReads> racy;
                           if (reads_may_race) racy.emplace();
                           TENCACHE_CHECK(launch.threads == kCopyLanes, "%u threads",
                                          launch.threads);
                           const CopyJob job = copy_job_of(launch);
                           for (unsigned block = 0; block < launch.blocks; ++block) {
                             for (unsigned lane = 0; lane < kCopyLanes; ++lane) {
                               copy_lane(job, block, launch.blocks, lane);
                             }
                           }
                         }});
}

}  // namespace tencache
