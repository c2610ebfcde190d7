// SPDX-License-Identifier: Apache-2.0
//
// How a callable becomes a task of the emulated run time. The task owns the callable. The run time
// destroys the task after it ran, with the graph that holds it, or when the context fails. The
// program's threads queue; the streams' threads run and must not call CUDA.
#include "operators/tasks.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <string>

#include "operators/settings.h"

namespace emulated_gpu::operators {

namespace {

struct Work {
  const char* name;
  std::function<void()> run;
};

void run_work(void* state) {
  const auto* work = static_cast<Work*>(state);
  try {
    const InsideOperator inside;
    work->run();
  } catch (const std::exception& error) {
    const std::string why = std::string(work->name) + " failed on the device: " + error.what();
    emulated_gpu_device_failed(why.c_str());
  }
}

bool is_capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

void destroy_work(void* state) { delete static_cast<Work*>(state); }

}  // namespace

void queue(const char* name, const Ranges& ranges, c10::DeviceIndex device,
           std::function<void()> run) {
  auto* work = new Work{name, std::move(run)};
  const EmulatedTask task = {name, run_work, destroy_work, work};
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  const CUresult result =
      emulated_gpu_launch(stream.stream(), &task, ranges.all().data(), ranges.all().size());
  C10_CUDA_CHECK(static_cast<cudaError_t>(result));
  if (settings().is_waiting && !is_capturing()) stream.synchronize();
}

void run_and_wait(const char* name, const Ranges& ranges, c10::DeviceIndex device,
                  const std::function<void()>& run) {
  TORCH_CHECK(!is_capturing(), "emulated GPU: ", name,
              " waits for its results, which no captured graph can do");
  std::exception_ptr error;
  queue(name, ranges, device, [&] {
    try {
      run();
    } catch (...) {
      error = std::current_exception();
    }
  });
  C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(device).stream()));
  if (error) std::rethrow_exception(error);
}

}  // namespace emulated_gpu::operators
