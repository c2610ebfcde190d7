// SPDX-License-Identifier: Apache-2.0
//
// Batches sorted by streams, and the tasks.
#include "launch.h"

#include <string>
#include <thread>
#include <utility>

#include "emulated_gpu.h"
#include "errors.h"

namespace emulated_gpu::nccl {

namespace {

// A scope in which the device is the thread's current one.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

// The batches of one task, all of them in one stream.
using Task = std::vector<Batch>;

const char* name_of(const Task& task) {
  const bool is_one = task.size() == 1 && task[0].operations.size() == 1;
  return is_one ? task[0].operations[0].name : "ncclGroupEnd";
}

void run_task(const Task& task) {
  std::vector<std::thread> others;
  for (size_t i = 1; i < task.size(); ++i) {
    others.emplace_back([&batch = task[i]] { batch.communicator->run(batch.operations); });
  }
  task[0].communicator->run(task[0].operations);
  for (std::thread& other : others) other.join();
  for (const Batch& batch : task) {
    if (!batch.communicator->has_failed()) continue;
    emulated_gpu_device_failed((std::string(name_of(task)) + " failed").c_str());
  }
}

// Whether both batches are in one stream. Each device has a NULL stream of its own.
bool is_one_stream(const Batch& first, const Batch& second) {
  return first.stream == second.stream &&
         first.communicator->device() == second.communicator->device();
}

ncclResult_t launch_task(Task task) {
  const cudaStream_t stream = task[0].stream;
  std::vector<EmulatedRange> ranges;
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (const Batch& batch : task) {
    communicators.push_back(batch.communicator);
    const DeviceScope scope(batch.communicator->device());
    const ncclResult_t result = batch.communicator->enter_stream(stream);
    if (result != ncclSuccess) return result;
    for (const Operation& operation : batch.operations) {
      ranges.insert(ranges.end(), operation.ranges.begin(), operation.ranges.end());
    }
  }
  const DeviceScope scope(communicators[0]->device());
  const EmulatedTask emulated = {
      name_of(task), [](void* state) { run_task(*static_cast<Task*>(state)); },
      [](void* state) { delete static_cast<Task*>(state); }, new Task(std::move(task))};
  const CUresult queued = emulated_gpu_launch(stream, &emulated, ranges.data(), ranges.size());
  if (queued != CUDA_SUCCESS) {
    return fail(ncclUnhandledCudaError, "%s: %s", emulated.name,
                cudaGetErrorString(static_cast<cudaError_t>(queued)));
  }
  for (const auto& communicator : communicators) {
    const DeviceScope its_device(communicator->device());
    const ncclResult_t result = communicator->mark_stream(stream);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace

ncclResult_t launch(std::vector<Batch> batches) {
  std::vector<Task> tasks;
  for (Batch& batch : batches) {
    auto task = tasks.begin();
    while (task != tasks.end() && !is_one_stream(task->front(), batch)) ++task;
    if (task == tasks.end()) task = tasks.emplace(task);
    task->push_back(std::move(batch));
  }
  for (Task& task : tasks) {
    const ncclResult_t result = launch_task(std::move(task));
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace emulated_gpu::nccl
