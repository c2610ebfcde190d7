// SPDX-License-Identifier: Apache-2.0
//
// The parts of SimulatedDriver, and the checks that its functions make before they act. They serve
// simulated_driver.cpp and code that puts more of the driver's functions around the parts
// (tests/emulated_gpu/driver); suites use the methods of SimulatedDriver. Each part guards itself.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "support/cuda/call_script.h"
#include "support/cuda/host_registrations.h"
#include "support/cuda/simulated_devices.h"
#include "support/cuda/simulated_driver.h"
#include "support/cuda/simulated_memory.h"
#include "support/cuda/simulated_modules.h"
#include "support/cuda/simulated_stream.h"
#include "support/cuda/stream_table.h"

namespace tencache {

// The conditions that a function checks before it does anything, besides the one that no host
// function or kernel calls it.
enum class CallKind : uint8_t {
  kQuery,    // none; it answers after a failure too
  kMemory,   // the context has not failed
  kContext,  // the same, and the calling thread has a current context
  kUnsafe,   // the same, and no capture forbids what CUDA calls potentially unsafe
};

struct SimulatedDriver::Parts {
  explicit Parts(const SimulatedDriverConfig& config)
      : devices(config),
        memory(config, devices, failure),
        host(config, devices),
        modules(config, devices, host, streams),
        streams(config, devices, memory, host, failure) {}

  /// Ends the process where one of the arguments is a stream that does not exist.
  template <typename... Arguments>
  void expect_streams([[maybe_unused]] std::string_view function, Arguments... arguments) const {
    (expect_stream(function, arguments), ...);
  }

  /// Whether a call of that kind may happen now.
  CUresult check(CallKind kind) {
    if (SimulatedStream::is_on_stream()) return CUDA_ERROR_NOT_PERMITTED;
    if (kind == CallKind::kQuery) return CUDA_SUCCESS;
    if (failure.is_set()) return failure.result();
    if (kind == CallKind::kMemory) return CUDA_SUCCESS;
    if (!devices.has_current()) return CUDA_ERROR_INVALID_CONTEXT;
    return kind == CallKind::kUnsafe ? streams.captures().check_unsafe() : CUDA_SUCCESS;
  }

  /// Checks the same for a function of the table, whose calls are counted and may fail by plan.
  CUresult enter(size_t function, CallKind kind) {
    const CUresult planned = script.enter(function);
    if (planned != CUDA_SUCCESS && !SimulatedStream::is_on_stream()) return planned;
    return check(kind);
  }

  CallScript script;
  StickyFailure failure;
  SimulatedDevices devices;
  SimulatedMemory memory;
  HostRegistrations host;
  SimulatedModules modules;
  StreamTable streams;  // last: its threads use the others

 private:
  template <typename Argument>
  void expect_stream([[maybe_unused]] std::string_view function, Argument argument) const {
    if constexpr (std::is_same_v<Argument, CUstream>) streams.expect_stream(argument, function);
  }
};

}  // namespace tencache
