// SPDX-License-Identifier: Apache-2.0
//
// The kernel that hashes, for the simulated driver: the very text that NVRTC compiles, as the
// host's compiler has it, block after block.
#pragma once

#include <cstring>
#include <optional>

#include "backend/cuda/device_hash.h"
#include "base/check.h"
#include "base/racy_access.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_modules.h"

namespace tencache {

inline HashJob hash_job_of(const SimulatedLaunch& launch) {
  HashJob job = {};
  memcpy(&job, launch.values.at(0).data(), sizeof job);
  return job;
}

/// `reads_may_race`: as in SimulatedDriverConfig.
inline void add_hash_kernel(SimulatedDriver& driver, bool reads_may_race = false) {
  driver.add_kernel(
      kDeviceHashKernelName,
      {.parameter_bytes = {sizeof(HashJob)},
       .ranges =
           [](const SimulatedLaunch& launch) {
             const HashJob job = hash_job_of(launch);
             return SimulatedKernel::Ranges{
                 {{reinterpret_cast<CUdeviceptr>(job.data), job.bytes, false}},
                 {{reinterpret_cast<CUdeviceptr>(job.sums), launch.blocks * sizeof(HashSums)}},
                 {}};
           },
       .run =
           [reads_may_race](const SimulatedLaunch& launch) {
             std::optional<RacyReads> racy;
             if (reads_may_race) racy.emplace();
             TENCACHE_CHECK(launch.threads == kHashLanes, "%u threads", launch.threads);
             const HashJob job = hash_job_of(launch);
             for (unsigned block = 0; block < launch.blocks; ++block) {
               run_hash_block(job, block, launch.blocks);
             }
           }});
}

}  // namespace tencache
