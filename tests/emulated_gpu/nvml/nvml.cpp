// SPDX-License-Identifier: Apache-2.0
//
// libnvidia-ml.so.1 of the emulated GPU. torch.cuda.device_count() asks NVIDIA's management library
// while CUDA must not start yet, and PyTorch's text for an out-of-memory error asks for processes.
// Every other symbol of NVML is missing. A handle is a number: the ordinal plus one. There is no
// state. Threads: any.
#include <cstdint>
#include <cstdio>

#include "driver/environment.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;

unsigned count() { return static_cast<unsigned>(tencache::device_count_from_environment()); }

int write_count(unsigned* target) {
  *target = count();
  return kSuccess;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit() { return kSuccess; }
int nvmlInit_v2() { return kSuccess; }
int nvmlInitWithFlags(unsigned) { return kSuccess; }
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int error) { return error == kSuccess ? "success" : "error"; }

int nvmlDeviceGetCount(unsigned* target) { return write_count(target); }
int nvmlDeviceGetCount_v2(unsigned* target) { return write_count(target); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= count()) return kInvalidArgument;
  *device = reinterpret_cast<void*>(uintptr_t{index} + 1);
  return kSuccess;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  // The driver's bus numbers are the ordinals plus one.
  unsigned bus = 0;
  if (sscanf(id, "%*x:%x:", &bus) != 1 || bus == 0 || bus > count()) return kInvalidArgument;
  *device = reinterpret_cast<void*>(uintptr_t{bus});
  return kSuccess;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned length) {
  snprintf(text, length, "GPU-65000000-0000-0000-0000-%012zx", reinterpret_cast<size_t>(device));
  return kSuccess;
}

int nvmlDeviceGetName(void*, char* text, unsigned length) {
  snprintf(text, length, "Emulated GPU");
  return kSuccess;
}

int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  snprintf(text, length, "580.00");
  return kSuccess;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* processes, void*) {
  *processes = 0;
  return kSuccess;
}

int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }

}  // extern "C"
#pragma GCC visibility pop
