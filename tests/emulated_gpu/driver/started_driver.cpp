// SPDX-License-Identifier: Apache-2.0
#include "driver/started_driver.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "driver/environment.h"
#include "driver/kernel_durations.h"
#include "support/cuda/simulated_device_copy.h"
#include "support/cuda/simulated_device_hash.h"
#include "support/cuda/simulated_test_kernels.h"

namespace tencache {
namespace {

// The driver is stored here once it is made, so that a thread that finds it finds it whole.
std::atomic<SimulatedDriver*> started = nullptr;
// Whether this process is a child of one that has started the driver.
std::atomic<bool> is_forked_child = false;

// How long the end of the process waits for running work. A collective may wait for a rank that has
// gone, and a host function for a program that is about to end.
constexpr uint64_t kRunningMaxNs = 10'000'000'000;

// Drops queued work, and waits for work that is running on the streams' threads, because it uses
// libraries that are about to be taken down.
void end_work(SimulatedDriver& driver) {
  driver.fail_context(CUDA_ERROR_DEINITIALIZED);
  const uint64_t begin_ns = now_ns();
  while (!driver.is_idle() && now_ns() - begin_ns < kRunningMaxNs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void at_exit() {
  SimulatedDriver* const driver = started_driver();
  if (driver == nullptr) return;
  end_work(*driver);
  if (const uint64_t late = driver->parts().streams.late(); late > 0) {
    fprintf(
        stderr,
        "emulated GPU: late works: %llu; they took the processor longer than the time they were "
        "given, so the device's times are void\n",
        static_cast<unsigned long long>(late));
  }
}

void in_forked_child() {
  is_forked_child = true;
  started = nullptr;
}

void make_driver() {
  SimulatedDriverConfig config = config_from_environment();
  config.works_first = has_device_clock();
  kernel_durations();  // a file that cannot be read ends the process here
  auto* const driver = new SimulatedDriver(config);
  add_hash_kernel(*driver);
  add_copy_kernel(*driver);
  add_test_kernels(*driver);
  // Libraries that were loaded before have registered their exit handlers, so this handler runs
  // before those.
  atexit(&at_exit);
  pthread_atfork(nullptr, nullptr, &in_forked_child);
  started = driver;
}

}  // namespace

SimulatedDriver* started_driver() { return started.load(); }

CUresult start_driver(unsigned flags) {
  if (is_forked_child) return CUDA_ERROR_NOT_INITIALIZED;
  static std::once_flag made;
  std::call_once(made, &make_driver);
  return started_driver()->api().cuInit(flags);
}

CUresult refuse(const char* name) {
  fprintf(stderr, "emulated GPU: the driver's %s is not emulated\n", name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace tencache
