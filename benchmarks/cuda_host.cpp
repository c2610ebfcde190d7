// SPDX-License-Identifier: Apache-2.0
//
// What does the cuda backend cost the thread that calls it? The thread allocates a block that the
// same stream freed before, and frees it again; passes the gate with an op that names resident
// extents; and passes the launch guard with a kernel whose arguments are addresses that its op has
// announced. None of this calls the driver, so a simulated one suffices. The engine is armed and
// evicts nothing.
//
// The names are <what>/<number>: allocate/<bytes>, stock/<bytes> (posix_memalign and free, for
// comparison), gate/<extents>, launch/<addresses>; benchmarks/cuda_host.py runs this program and
// makes the table.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "abi/accesses.h"
#include "abi/engines.h"
#include "abi/launch_gate.h"
#include "base/units.h"
#include "engine/cuda_device.h"
#include "engine/engine.h"
#include "guard/hooks.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"

namespace {

using namespace tencache;  // NOLINT: a program, not a header

constexpr uint64_t kExtentBytes = 2 * kMiB;
constexpr int64_t kExtentsMax = 64;

template <class T>
T value_or_exit(Result<T> result) {
  if (result.is_ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

struct Machine {
  SimulatedDriver driver{{.capacity_bytes = kGiB}};
  CurrentContext context{driver.api()};
  std::unique_ptr<Engine> engine;
  CudaDevice* device = nullptr;  // the engine's
  CUstream stream = nullptr;
  std::vector<Access> accesses;

  Machine() {
    CudaDeviceConfig config;
    config.budget_bytes = 768 * kMiB;
    config.arena_bytes = 64 * kGiB;
    config.probe_bytes = 0;
    config.host.emplace();
    config.host->budget_bytes = kGiB;
    auto opened = value_or_exit(CudaDevice::open(driver.api(), config));
    device = opened.get();
    EngineConfig engine_config;
    engine_config.arm_at = 0.0001;
    engine = value_or_exit(Engine::create(engine_config, std::move(opened)));
    driver.api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
    for (int64_t index = 0; index < kExtentsMax; ++index) {
      accesses.push_back({engine->allocate(kExtentBytes, stream).value(), AccessMode::kRead});
    }
  }
  ~Machine() {
    for (const Access& access : accesses) engine->free(const_cast<void*>(access.address));
    engine.reset();
    driver.api().cuStreamDestroy(stream);
  }
};

Machine& machine() {
  static Machine made;
  return made;
}

void allocate(benchmark::State& state) {
  Engine& engine = *machine().engine;
  const auto bytes = static_cast<uint64_t>(state.range(0));
  for ([[maybe_unused]] auto iteration : state) {
    const Result<void*> address = engine.allocate(bytes, machine().stream);
    if (!address.is_ok()) {
      state.SkipWithError("no memory");
      break;
    }
    benchmark::DoNotOptimize(address.value());
    engine.free(address.value());
  }
}

void stock(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  for ([[maybe_unused]] auto iteration : state) {
    void* address = nullptr;
    if (posix_memalign(&address, 64, bytes) != 0) {
      state.SkipWithError("no memory");
      break;
    }
    benchmark::DoNotOptimize(address);
    std::free(address);
  }
}

void gate(benchmark::State& state) {
  Engine& engine = *machine().engine;
  const std::span<const Access> named(machine().accesses.data(),
                                      static_cast<size_t>(state.range(0)));
  for ([[maybe_unused]] auto iteration : state) {
    engine.open_op(1, named, machine().stream);
    engine.gate().close();
  }
}

void launch(benchmark::State& state) {
  Engine& engine = *machine().engine;
  Engines gpus;
  if (!gpus.add({.ordinal = 0, .engine = &engine}).is_ok()) state.SkipWithError("no engine");
  LaunchGate launches(gpus);
  const auto count = static_cast<size_t>(state.range(0));
  const std::span<const Access> named(machine().accesses.data(), count);
  std::vector<const void*> arguments;
  for (const Access& access : named) arguments.push_back(access.address);
  const DeviceArena& arena = machine().device->heap().arena();
  engine.open_op(1, named, machine().stream);
  for ([[maybe_unused]] auto iteration : state) {
    guard::Addresses found({arena.base(), arena.bytes()});
    found.add_words(arguments.data(), count * sizeof(void*), 0, TENCACHE_READ | TENCACHE_WRITE);
    if (launches.open("launch", machine().stream, as_accesses(found.data(), found.count())) != 0) {
      state.SkipWithError("it was announced");
      break;
    }
  }
  engine.gate().close();
  gpus.remove(&engine);
}

constexpr int64_t kSizes[] = {1 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20, 256 << 20};

BENCHMARK(stock)->ArgsProduct({{std::begin(kSizes), std::end(kSizes)}});
BENCHMARK(allocate)->ArgsProduct({{std::begin(kSizes), std::end(kSizes)}});
BENCHMARK(gate)->Arg(0)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Arg(16)->Arg(32)->Arg(64);
BENCHMARK(launch)->Arg(1)->Arg(4)->Arg(16)->Arg(64);

}  // namespace
