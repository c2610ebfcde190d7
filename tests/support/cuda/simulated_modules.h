// SPDX-License-Identifier: Apache-2.0
//
// SimulatedModules: the modules and kernels of the simulated driver. A test gives the work of a
// kernel by name, as a callable of the host. A module is loaded from an image that names its
// kernels and the GPU it was compiled for (support/cuda/simulated_nvrtc.h makes such images). A
// launch copies the parameters. It runs the callable on the stream's thread, in the stream's order,
// while the ranges that the kernel says it uses are declared to the memory. A range that is not
// accessible, or host memory that is not registered, fails the context when the kernel's turn
// comes. A module belongs to the device that was current when it was loaded, and its kernels run on
// that device alone.
//
// The methods of the driver have its parameters. Grids have one dimension. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "support/cuda/host_registrations.h"
#include "support/cuda/simulated_devices.h"
#include "support/cuda/simulated_driver_config.h"

namespace tencache {

class StreamTable;

struct SimulatedLaunch {
  unsigned blocks = 0;
  unsigned threads = 0;                   // of a block
  std::vector<std::vector<char>> values;  // the parameters' bytes
};

struct SimulatedKernel {
  struct Ranges {
    std::vector<DeviceRange> device;
    std::vector<DeviceRange> host;    // addresses of registered host memory
    std::vector<DeviceRange> either;  // of either kind
  };
  std::vector<size_t> parameter_bytes;  // the size of each parameter
  std::function<Ranges(const SimulatedLaunch& launch)> ranges;
  std::function<void(const SimulatedLaunch& launch)> run;
};

/// An image for cuModuleLoadData.
std::string simulated_image(int compute_capability, const std::vector<std::string>& kernels);

class SimulatedModules {
 public:
  SimulatedModules(const SimulatedDriverConfig& config, SimulatedDevices& devices,
                   const HostRegistrations& host, StreamTable& streams)
      : config_(config), devices_(devices), host_(host), streams_(streams) {}

  void add_kernel(std::string_view name, SimulatedKernel kernel) TENCACHE_EXCLUDES(mutex_);

  CUresult load(CUmodule* module, const void* image) TENCACHE_EXCLUDES(mutex_);
  CUresult unload(CUmodule module) TENCACHE_EXCLUDES(mutex_);
  CUresult find_function(CUfunction* function, CUmodule module, const char* name)
      TENCACHE_EXCLUDES(mutex_);
  CUresult launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  CUstream stream, void** parameters, void** extra) TENCACHE_EXCLUDES(mutex_);

  CUresult function_name(const char** name, CUfunction function) TENCACHE_EXCLUDES(mutex_);
  /// The offset of that parameter in the parameters' buffer, and its size; `bytes` may be null.
  CUresult parameter(CUfunction function, size_t index, size_t* offset, size_t* bytes)
      TENCACHE_EXCLUDES(mutex_);

  /// One line for each module.
  std::string leaks() const TENCACHE_EXCLUDES(mutex_);

  /// The capability of the current device: ten times major, plus minor. REQUIRES: there is one.
  int current_capability();

 private:
  struct Module {
    int device;  // of the context it was loaded in
    std::vector<std::string> kernels;
  };
  struct Function {
    CUmodule module;
    int device;
    std::string name;
    SimulatedKernel kernel;
  };

  uint64_t duration_ns(const SimulatedKernel::Ranges& ranges) const;

  const SimulatedDriverConfig config_;
  SimulatedDevices& devices_;
  const HostRegistrations& host_;
  StreamTable& streams_;

  mutable Mutex mutex_;
  std::map<std::string, SimulatedKernel, std::less<>> kernels_ TENCACHE_GUARDED_BY(mutex_);
  std::map<CUmodule, Module> modules_ TENCACHE_GUARDED_BY(mutex_);
  std::map<CUfunction, Function> functions_ TENCACHE_GUARDED_BY(mutex_);
  // The last name of a module or function; no name is ever reused.
  uint64_t last_name_ TENCACHE_GUARDED_BY(mutex_) = 0x2000;
};

}  // namespace tencache
