// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_devices.h"

#include <array>
#include <atomic>
#include <cstdio>

#include "base/check.h"
#include "platform/cuda/driver_api.h"
#include "support/cuda/simulated_errors.h"

namespace tencache {
namespace {

// The most contexts that one thread may push.
constexpr size_t kStackMax = 64;

// The state of one thread, for the driver with this generation. It has no destructor, because exit
// handlers may call the driver after the main thread's objects are gone.
struct ThreadState {
  uint64_t generation = 0;
  std::array<CUcontext, kStackMax> contexts = {};
  size_t depth = 0;  // the context below it is current
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

ThreadState& thread_state(uint64_t generation) {
  thread_local ThreadState state;
  if (state.generation != generation) state = {.generation = generation};
  return state;
}

uint64_t next_generation() {
  static std::atomic<uint64_t> generation = 0;
  return ++generation;
}

CUresult copy_text(char* target, int length, const std::string& text) {
  if (target == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(target, static_cast<size_t>(length), "%s", text.c_str());
  return CUDA_SUCCESS;
}

}  // namespace

SimulatedDevices::SimulatedDevices(const SimulatedDriverConfig& config)
    : config_(config),
      generation_(next_generation()),
      retained_(static_cast<size_t>(config.device_count)) {
  TENCACHE_CHECK(config.device_count >= 1);
}

CUresult SimulatedDevices::init(unsigned flags) {
  return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult SimulatedDevices::driver_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverApiVersion;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::error_name(CUresult result, const char** text) {
  return simulated_error_name(result, text);
}

CUresult SimulatedDevices::error_string(CUresult result, const char** text) {
  return simulated_error_string(result, text);
}

CUresult SimulatedDevices::count(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = config_.device_count;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::get(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::name(char* name, int length, CUdevice device) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return copy_text(name, length, config_.device_name);
}

CUresult SimulatedDevices::total_memory(size_t* bytes, CUdevice device) {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = config_.capacity_bytes;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (const auto found = config_.attributes.find(attribute); found != config_.attributes.end()) {
    *value = found->second;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      *value = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      *value = 2;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = device + 1;
      break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      *value = config_.host_numa_id;
      break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = config_.has_host_numa_handles ? 1 : 0;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::pci_bus_id(char* id, int length, CUdevice device) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  char text[32];
  snprintf(text, sizeof(text), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return copy_text(id, length, text);
}

// A context is a number that looks like an address; nothing lies there.
CUcontext SimulatedDevices::context_of(int device) const {
  return reinterpret_cast<CUcontext>((generation_ << 16) + static_cast<uint64_t>(device) * 8 + 8);
}

int SimulatedDevices::device_of(CUcontext context) const {
  for (int device = 0; device < config_.device_count; ++device) {
    if (context_of(device) == context) return device;
  }
  return -1;
}

CUresult SimulatedDevices::retain_primary(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(mutex_);
  ++retained_[static_cast<size_t>(device)];
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::release_primary(CUdevice device) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(mutex_);
  uint64_t& retained = retained_[static_cast<size_t>(device)];
  if (retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --retained;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::current(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = current_context();
  return CUDA_SUCCESS;
}

CUcontext SimulatedDevices::current_context() const {
  const ThreadState& state = thread_state(generation_);
  return state.depth > 0 ? state.contexts[state.depth - 1] : nullptr;
}

CUresult SimulatedDevices::set_current(CUcontext context) {
  if (context != nullptr && !is_alive(context)) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadState& state = thread_state(generation_);
  if (state.depth > 0) --state.depth;
  if (context != nullptr) state.contexts[state.depth++] = context;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::push_current(CUcontext context) {
  if (!is_alive(context)) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadState& state = thread_state(generation_);
  if (state.depth == kStackMax) return CUDA_ERROR_OUT_OF_MEMORY;
  state.contexts[state.depth++] = context;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::pop_current(CUcontext* context) {
  ThreadState& state = thread_state(generation_);
  if (state.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --state.depth;
  if (context != nullptr) *context = state.contexts[state.depth];
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::device_of_current(CUdevice* device) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::primary_state(CUdevice device, unsigned* flags, int* active) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = is_active(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::uuid(CUuuid* uuid, CUdevice device) {
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = {};
  uuid->bytes[0] = 'e';
  uuid->bytes[15] = static_cast<char>(device + 1);
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::exchange_capture_mode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, thread_state(generation_).capture_mode);
  return CUDA_SUCCESS;
}

CUstreamCaptureMode SimulatedDevices::capture_mode() const {
  return thread_state(generation_).capture_mode;
}

bool SimulatedDevices::is_active(int device) const {
  MutexLock lock(mutex_);
  return retained_[static_cast<size_t>(device)] > 0;
}

bool SimulatedDevices::is_alive(CUcontext context) const {
  const int device = device_of(context);
  return device >= 0 && is_active(device);
}

bool SimulatedDevices::has_current() const { return is_alive(current_context()); }

std::string SimulatedDevices::leaks() const {
  MutexLock lock(mutex_);
  std::string text;
  for (size_t device = 0; device < retained_.size(); ++device) {
    if (retained_[device] == 0) continue;
    text += "the context of device " + std::to_string(device) + ", retained " +
            std::to_string(retained_[device]) + " times\n";
  }
  return text;
}

int SimulatedDevices::current_device() const {
  const int device = device_of(current_context());
  TENCACHE_CHECK(device >= 0);
  return device;
}

}  // namespace tencache
