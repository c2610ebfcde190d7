// SPDX-License-Identifier: Apache-2.0
//
// TraceReplay: replays a recorded period over and over on a whole allocator over the simulated
// driver, as the recorded program would run on a GPU. Its tensors are allocated through the engine.
// Its ops pass the gate and queue one kernel each, which is busy for the op's time and uses every
// tensor that the op names. The queueing thread waits for the stream once a period, like a training
// loop that reads the loss.
//
// A kernel detects a tensor that is not resident by failing the context. It detects wrong bytes by
// comparing both ends of the tensor with a number that each write changes.
//
// Time is that of the simulated device, whose rates are given. On a slow device the processors of
// this machine, which move the bytes, have next to nothing to do, so times follow from the rates
// alone. Where host memory is to be short, bytes that find no room in it go to a file, whose pieces
// pass one after another in each direction at the given rates.
//
// Threads: make, use and destroy it on one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/gate/event_timer.h"
#include "learn/simulator.h"
#include "learn/trace.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_nvrtc.h"
#include "support/test_directory.h"
#include "tier/disk_tier.h"

namespace tencache {

struct ReplayConfig {
  uint64_t budget_bytes = 0;
  bool plans = true;                                        // else the least recently used leaves
  uint64_t link_bytes_per_s = 0;                            // each way
  uint64_t device_bytes_per_s = 0;                          // of hashes and copies on the device
  uint64_t wait_resolution_ns = EventTimer::kResolutionNs;  // shorter waits count as none
  uint64_t host_bytes = 0;  // of host memory, a disk below it; 0: enough for everything
  uint64_t disk_read_bytes_per_s = 0;
  uint64_t disk_write_bytes_per_s = 0;
  uint64_t learned_after = 0;     // followed periods before those that are measured; without plans,
                                  // periods of any kind
  uint64_t measured_periods = 3;  // after that
  uint64_t periods_max = 0;       // in all; then the replay gives up
};

struct ReplayResult {
  uint64_t periods = 0;
  uint64_t peak_bytes = 0;
  uint64_t over_budget_events = 0;  // in the measured periods
  // Sums over all measured periods.
  uint64_t early_fetches = 0;
  uint64_t late_fetches = 0;
  uint64_t wasted_fetches = 0;
  uint64_t early_fetched_bytes = 0;
  uint64_t stall_ns = 0;  // the device waited
  uint64_t fetched_bytes = 0;
  uint64_t evicted_bytes = 0;
  uint64_t dropped_bytes = 0;  // of evicted_bytes, without a copy
  uint64_t disk_read_bytes = 0;
  uint64_t disk_written_bytes = 0;
  // Figures of one measured period.
  uint64_t measured_ns = 0;  // the median
  uint64_t simulated_ns = 0;
  uint64_t compute_ns = 0;  // as the learner estimates it
  uint64_t bound_ns = 0;
  uint64_t simulated_stall_ns = 0;
  uint64_t simulated_late_bytes = 0;
  uint64_t simulated_fetched_bytes = 0;
  uint64_t simulated_evicted_bytes = 0;
  uint64_t simulated_disk_read_bytes = 0;
  uint64_t simulated_disk_written_bytes = 0;
  uint64_t differences = 0;  // ends of tensors where a kernel found other bytes than it should
  std::string failure;       // empty when all went well
};

/// Returns the trace's ops on tensors of whole granules; together the ops take `compute_ns`.
Trace scaled_for_replay(Trace trace, uint64_t compute_ns);

class TraceReplay {
 public:
  TraceReplay(const Trace& trace, const ReplayConfig& config);
  ~TraceReplay();
  TraceReplay(const TraceReplay&) = delete;
  TraceReplay& operator=(const TraceReplay&) = delete;

  /// Replays the period and returns the figures. Call it once.
  ReplayResult run();

 private:
  struct Tensor {
    char* address = nullptr;
    uint64_t stamp = 0;  // the number that the last write leaves
  };
  using Named = std::pair<uint32_t, bool>;  // a tensor, and whether it is written
  struct Use {
    char* address = nullptr;
    uint64_t bytes = 0;
    uint64_t before = 0;  // 0: any
    uint64_t after = 0;
  };
  struct Plans {
    Mutex mutex;
    uint64_t bound_ns TENCACHE_GUARDED_BY(mutex) = 0;
    Simulation simulation TENCACHE_GUARDED_BY(mutex);  // the last one
  };

  void start_engine();
  DiskTierConfig disk_config();
  Status allocate(uint32_t tensor);
  Status make_persistent(uint32_t tensor);
  /// Queues a kernel that uses these tensors.
  Status queue_kernel(const std::vector<Named>& named, uint64_t duration_ns);
  void free(uint32_t tensor);
  Status run_period();
  Status run_op(Tick tick);
  void note_plan(const LearnedPlan& learned);
  uint64_t periods_followed();
  void measure(ReplayResult* result);

  const Trace& trace_;
  const ReplayConfig config_;
  std::vector<std::vector<uint32_t>> born_at_;  // by tick
  std::vector<std::vector<uint32_t>> freed_at_;
  std::vector<uint32_t> op_numbers_;  // by op name
  uint32_t fill_number_ = 0;
  SimulatedDriver driver_;
  CurrentContext context_;
  SimulatedNvrtc nvrtc_;
  std::optional<TestDirectory> directory_;  // where there is a disk
  Plans plans_;
  std::unique_ptr<Engine> engine_;
  CUstream stream_ = nullptr;
  std::vector<Tensor> tensors_;
  uint64_t writes_ = 0;
  std::vector<uint64_t> period_ns_;
  std::atomic<uint64_t> differences_{0};
};

}  // namespace tencache
