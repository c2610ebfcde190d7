// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_devices.h"

#include <atomic>
#include <cstdio>

#include "backend/cuda/driver_api.h"
#include "base/check.h"

namespace tencache {
namespace {

struct ErrorText {
  CUresult result;
  const char* name;
  const char* text;
};

#define TENCACHE_CUDA_ERROR(name, text) \
  { name, #name, text }
constexpr ErrorText kErrorTexts[] = {
    TENCACHE_CUDA_ERROR(CUDA_SUCCESS, "no error"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU,
                        "no kernel image is available for execution on the device"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                        "part or all of the requested memory range is already mapped"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                        "pointer does not correspond to a registered memory region"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                        "system has unsupported display driver / cuda driver combination"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        "operation not permitted when stream is capturing"),
    TENCACHE_CUDA_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef TENCACHE_CUDA_ERROR

const ErrorText* find_error(CUresult result) {
  for (const ErrorText& error : kErrorTexts) {
    if (error.result == result) return &error;
  }
  return nullptr;
}

// The state of one thread. The generation says of which driver.
struct ThreadState {
  uint64_t generation = 0;
  CUcontext context = nullptr;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

ThreadState& thread_state(uint64_t generation) {
  thread_local ThreadState state;
  if (state.generation != generation) state = {generation, nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL};
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
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* error = find_error(result);
  *text = error != nullptr ? error->name : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult SimulatedDevices::error_string(CUresult result, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* error = find_error(result);
  *text = error != nullptr ? error->text : nullptr;
  return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

// A context is a number that looks like an address. Nothing lies there.
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
  *context = thread_state(generation_).context;
  return CUDA_SUCCESS;
}

CUresult SimulatedDevices::set_current(CUcontext context) {
  if (context != nullptr) {
    const int device = device_of(context);
    MutexLock lock(mutex_);
    if (device < 0 || retained_[static_cast<size_t>(device)] == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
  }
  thread_state(generation_).context = context;
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

bool SimulatedDevices::is_active(int device) const {
  MutexLock lock(mutex_);
  return retained_[static_cast<size_t>(device)] > 0;
}

bool SimulatedDevices::has_current() const {
  const int device = device_of(thread_state(generation_).context);
  return device >= 0 && is_active(device);
}

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
  const int device = device_of(thread_state(generation_).context);
  TENCACHE_CHECK(device >= 0);
  return device;
}

}  // namespace tencache
