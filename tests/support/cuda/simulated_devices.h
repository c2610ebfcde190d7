// SPDX-License-Identifier: Apache-2.0
//
// SimulatedDevices: the devices of the simulated driver, their attributes, and their primary
// contexts. A method has the parameters of the driver's function that it simulates. The current
// context is the top of a stack of the calling thread; the stack is empty at first and forgotten
// with the driver. The capture mode is the thread's, too.
//
// A primary context exists while it is retained more often than released. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "support/cuda/simulated_driver_config.h"

namespace tencache {

class SimulatedDevices {
 public:
  explicit SimulatedDevices(const SimulatedDriverConfig& config);

  CUresult init(unsigned flags);
  CUresult driver_version(int* version);
  CUresult error_name(CUresult result, const char** text);
  CUresult error_string(CUresult result, const char** text);

  CUresult count(int* count);
  CUresult get(CUdevice* device, int ordinal);
  CUresult name(char* name, int length, CUdevice device);
  CUresult total_memory(size_t* bytes, CUdevice device);
  /// Gives the attributes that the backends ask for; an attribute unknown here is 0.
  CUresult attribute(int* value, CUdevice_attribute attribute, CUdevice device);
  CUresult pci_bus_id(char* id, int length, CUdevice device);
  CUresult uuid(CUuuid* uuid, CUdevice device);

  CUresult retain_primary(CUcontext* context, CUdevice device) TENCACHE_EXCLUDES(mutex_);
  CUresult release_primary(CUdevice device) TENCACHE_EXCLUDES(mutex_);
  CUresult primary_state(CUdevice device, unsigned* flags, int* active);
  CUresult current(CUcontext* context);
  /// Puts the context in place of the top of the stack; null removes the top.
  CUresult set_current(CUcontext context) TENCACHE_EXCLUDES(mutex_);
  CUresult push_current(CUcontext context) TENCACHE_EXCLUDES(mutex_);
  CUresult pop_current(CUcontext* context);
  /// REQUIRES: has_current().
  CUresult device_of_current(CUdevice* device);
  CUresult exchange_capture_mode(CUstreamCaptureMode* mode);

  bool has_peers() const { return config_.has_peers; }
  bool has_device(int device) const { return device >= 0 && device < config_.device_count; }
  /// Whether the primary context is retained. REQUIRES: has_device().
  bool is_active(int device) const TENCACHE_EXCLUDES(mutex_);
  /// The device of a context, or -1 for any other value.
  int device_of(CUcontext context) const;
  /// Whether the value is a retained context of this driver.
  bool is_alive(CUcontext context) const TENCACHE_EXCLUDES(mutex_);
  /// Whether the calling thread has a current context that exists.
  bool has_current() const TENCACHE_EXCLUDES(mutex_);
  /// REQUIRES: has_current().
  int current_device() const;
  /// The calling thread's mode, for captures of streams.
  CUstreamCaptureMode capture_mode() const;

  /// A line for each device whose primary context is still retained.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  CUcontext context_of(int device) const;
  CUcontext current_context() const;  // null for none

  const SimulatedDriverConfig config_;
  const uint64_t generation_;  // tells this driver's contexts from those of an earlier one
  mutable Mutex mutex_;
  std::vector<uint64_t> retained_ TENCACHE_GUARDED_BY(mutex_);  // by device
};

}  // namespace tencache
