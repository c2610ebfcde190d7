// SPDX-License-Identifier: Apache-2.0
//
// The one driver of the process, and how its functions are served. cuInit makes it; like the real
// one it lives for ever. A process that only loads CUDA's libraries has none, because a driver's
// streams have threads and such a process may fork later. A child of a process that has called
// cuInit has none, and cuInit fails there, as with the real driver, whose contexts are those of the
// parent.
//
// libcuda.so.1 serves a function as Served<kKind, kFunction>::call. It asks whether the call may
// happen, and passes it to a method of a part of the simulated driver, or to a function that takes
// the driver first. Threads: any.
#pragma once

#include <type_traits>

#include "support/cuda/simulated_driver_parts.h"

namespace tencache {

/// Null before cuInit and in a forked child.
SimulatedDriver* started_driver();
/// Serves cuInit. Returns CUDA_ERROR_NOT_INITIALIZED in a forked child.
CUresult start_driver(unsigned flags);

/// Reports on stderr that the driver's function of that name has no stand-in.
CUresult refuse(const char* name);

template <typename Part>
Part& part_of(SimulatedDriver& driver) {
  SimulatedDriver::Parts& parts = driver.parts();
  if constexpr (std::is_same_v<Part, SimulatedDevices>) return parts.devices;
  if constexpr (std::is_same_v<Part, SimulatedMemory>) return parts.memory;
  if constexpr (std::is_same_v<Part, StreamTable>) return parts.streams;
}

template <CallKind kKind, auto kFunction>
struct Served;

template <CallKind kKind, typename... Arguments,
          CUresult (*kFunction)(SimulatedDriver&, Arguments...)>
struct Served<kKind, kFunction> {
  static CUresult call(Arguments... arguments) {
    SimulatedDriver* const driver = started_driver();
    if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
    driver->parts().expect_streams(__PRETTY_FUNCTION__, arguments...);  // it names kFunction
    const CUresult allowed = driver->parts().check(kKind);
    return allowed == CUDA_SUCCESS ? kFunction(*driver, arguments...) : allowed;
  }
};

template <CallKind kKind, typename Part, typename... Arguments,
          CUresult (Part::*kMethod)(Arguments...)>
struct Served<kKind, kMethod> {
  static CUresult call_method(SimulatedDriver& driver, Arguments... arguments) {
    return (part_of<Part>(driver).*kMethod)(arguments...);
  }
  static CUresult call(Arguments... arguments) {
    return Served<kKind, &call_method>::call(arguments...);
  }
};

}  // namespace tencache
