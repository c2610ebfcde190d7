// SPDX-License-Identifier: Apache-2.0
//
// SimulatedDevices: the devices of the simulated driver, what they say of themselves, and their
// primary contexts. A method has the parameters of the driver's function of that name. The current
// context is the top of a stack of the calling thread, which is empty at first and is forgotten
// with the driver; the capture mode is the thread's, too.
//
// A primary context exists while it is retained more often than released. Any thread.
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
  /// What the backends ask for; attributes that nothing here knows are 0.
  CUresult attribute(int* value, CUdevice_attribute attribute, CUdevice device);
  CUresult pci_bus_id(char* id, int length, CUdevice device);
  CUresult uuid(CUuuid* uuid, CUdevice device);

  CUresult retain_primary(CUcontext* context, CUdevice device) TENCACHE_EXCLUDES(mutex_);
  CUresult release_primary(CUdevice device) TENCACHE_EXCLUDES(mutex_);
  CUresult primary_state(CUdevice device, unsigned* flags, int* active);
  CUresult current(CUcontext* context);
  /// The top of the stack becomes that context, or goes where it is null.
  CUresult set_current(CUcontext context) TENCACHE_EXCLUDES(mutex_);
  CUresult push_current(CUcontext context) TENCACHE_EXCLUDES(mutex_);
  CUresult pop_current(CUcontext* context);
  /// REQUIRES: has_current().
  CUresult device_of_current(CUdevice* device);
  CUresult exchange_capture_mode(CUstreamCaptureMode* mode);

  bool has_device(int device) const { return device >= 0 && device < config_.device_count; }
  /// Whether the primary context is retained. REQUIRES: has_device().
  bool is_active(int device) const TENCACHE_EXCLUDES(mutex_);
  /// -1 for what is no context of this driver.
  int device_of(CUcontext context) const;
  /// Whether it is a context of this driver that is retained.
  bool is_alive(CUcontext context) const TENCACHE_EXCLUDES(mutex_);
  /// Whether the calling thread has a current context that exists.
  bool has_current() const TENCACHE_EXCLUDES(mutex_);
  /// REQUIRES: has_current().
  int current_device() const;

  /// A line for each device whose primary context is retained still.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  CUcontext context_of(int device) const;
  CUcontext current_context() const;  // null for none

  const SimulatedDriverConfig config_;
  const uint64_t generation_;  // tells this driver's contexts from those of one before it
  mutable Mutex mutex_;
  std::vector<uint64_t> retained_ TENCACHE_GUARDED_BY(mutex_);  // by device
};

}  // namespace tencache
