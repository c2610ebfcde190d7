// SPDX-License-Identifier: Apache-2.0
//
// The runtime on the cuda backend: the configuration of a GPU's engine, the hooks of the launch
// guard, and what users are told when a GPU is opened.
#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "abi/accesses.h"
#include "abi/runtime.h"
#include "abi/tencache_guard.h"
#include "base/log.h"
#include "base/units.h"
#include "engine/cuda_device.h"
#include "platform/cuda/stream_numbers.h"
#include "platform/machine.h"

namespace tencache {
namespace {

tencache_arena watched_memory() {
  Runtime& runtime = Runtime::instance();
  if (!runtime.engines().is_armed()) return {0, 0};
  // The base is read before the size (tencache_get_arena()).
  const uintptr_t base = __atomic_load_n(&runtime.arena()->base, __ATOMIC_SEQ_CST);
  return {base, __atomic_load_n(&runtime.arena()->bytes, __ATOMIC_SEQ_CST)};
}

uint32_t begin_launch(const char* name, void* stream, const tencache_access* accesses,
                      uint32_t count) {
  return Runtime::instance().launches().open(name, stream, as_accesses(accesses, count));
}

void end_launch(uint32_t begun) { Runtime::instance().launches().close(begun); }

void note_unreadable_launch() { Runtime::instance().launches().on_unreadable(); }

void note_stream_end(void* stream) { StreamNumbers::end_everywhere(static_cast<CUstream>(stream)); }

constexpr tencache_guard_hooks kGuardHooks = {&watched_memory, &begin_launch, &end_launch,
                                              &note_unreadable_launch, &note_stream_end};

}  // namespace

Result<CudaDeviceConfig> Runtime::gpu_config(int ordinal) {
  MutexLock lock(mutex_);
  if (!is_started() || options_.backend != BackendChoice::kCuda) {
    return Status(StatusCode::kFailedPrecondition,
                  "The memory of GPUs is not kept in this process, whose backend is " +
                      tencache::option_text(options_, "backend") +
                      "; set the option backend to cuda before tencache is enabled.");
  }
  CudaDeviceConfig config;
  config.ordinal = ordinal;
  config.budget_bytes = options_.device_memory_bytes.value_or(0);
  config.heap.extent_min_bytes = options_.extent_min_bytes;
  config.heap.strict = options_.strict;
  if (options_.strict) return config;
  const DefaultBudget budget = default_host_budget(probe_memory());
  config.host.emplace();
  config.host->budget_bytes = options_.host_memory_bytes.value_or(budget.bytes);
  if (config.host->budget_bytes == 0) {
    return Status(StatusCode::kUnavailable,
                  "There is no host memory for tensors that leave a GPU: what is left, " +
                      budget.reason +
                      ". Free some, give a budget with --host-memory, or use --strict.");
  }
  const Result<DiskProbe> found = find_disk();
  if (found.is_ok()) {
    config.disk = disk_config(found.value());
  } else if (!options_.spill_dir.empty()) {
    return found.status();
  }  // else there is no disk below host memory
  return config;
}

EngineConfig Runtime::gpu_engine_config(int ordinal) {
  MutexLock lock(mutex_);
  return engine_config(ordinal);
}

Status Runtime::add_gpu(const EngineEntry& gpu, const std::string& name,
                        const tencache_arena& arena) {
  {
    MutexLock lock(mutex_);
    // The arena is covered before any op can name its memory.
    cover(arena);
    lower_chunk_bytes(gpu.engine->budget().limit());
    TENCACHE_RETURN_IF_ERROR(engines_.add(gpu));
    announce_gpu(gpu, name);
    watch_launches();
  }
  // If ops begin to be watched in the middle of an op, that op has pinned nothing, and what it uses
  // could leave while its kernels run. The guard would notice; without the guard, ops are watched
  // before there are tensors.
  const bool may_leave = gpu.engine->mover() != nullptr;
  if (may_leave && !sees_launches_.load(std::memory_order_relaxed)) gpu.engine->evictor().arm();
  return Status::ok();
}

// Gives our hooks to the launch guard, which is in the process from the start or not at all.
void Runtime::watch_launches() {
  if (!options_.launch_guard || engines_.count() > 1) return;
  const auto install = reinterpret_cast<tencache_guard_install_function>(
      dlsym(RTLD_DEFAULT, "tencache_guard_install"));
  if (install != nullptr) {
    install(&kGuardHooks);
    sees_launches_.store(true, std::memory_order_relaxed);
    return;
  }
  TENCACHE_LOG_INFO(
      "this process was not started by `tencache run`, so two things are not seen in it. A kernel "
      "that no op announces fails with a CUDA error if it uses a tensor which is in host memory. "
      "Streams that the program makes itself must not be destroyed: the driver would end the "
      "process when it is asked about them");
}

void Runtime::announce_gpu(const EngineEntry& gpu, const std::string& name) const {
  std::string below = ", strict: out of memory at the budget, nothing leaves";
  if (const HostTier* host = gpu.engine->device().host()) {
    below = ", cold tensors go to host memory (at most " + format_bytes(host->budget_bytes()) + ")";
  }
  if (const DiskTier* disk = gpu.engine->device().disk()) {
    below += " and from there to " + disk->shown_directory() + " (at most " +
             format_bytes(disk->quota_bytes()) + ")";
  }
  const std::string origin = options_.device_memory_bytes ? " (" + as_asked() + ")" : "";
  TENCACHE_LOG_INFO("%s on the cuda backend: GPU %d (%s), device budget %s%s%s", kVersion,
                    gpu.ordinal, name.c_str(), format_bytes(gpu.engine->budget().limit()).c_str(),
                    origin.c_str(), below.c_str());
}

}  // namespace tencache
