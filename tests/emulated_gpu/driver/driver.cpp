// SPDX-License-Identifier: Apache-2.0
//
// libcuda.so.1 of the emulated GPU: SimulatedDriver behind the exported names of CUDA's driver.
// Every function of tencache's table (TENCACHE_CUDA_FUNCTIONS) is SimulatedDriver's; the others
// that PyTorch, the stand-in for the run time and the launch guard ask for are here, and what has
// none says so with its name. Exports are trampolines through a table of slots, so that the same
// names serve dlsym() and cuGetProcAddress(). Any thread.
//
// The driver is made by cuInit and lives for ever. The table of names is made when the library is
// loaded, without a driver: its streams have threads, and a process that only loads CUDA's
// libraries may be forked later.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulated_gpu.h"
#include "support/cuda/simulated_device_copy.h"
#include "support/cuda/simulated_device_hash.h"
#include "support/cuda/simulated_driver_parts.h"

namespace {
using namespace tencache;

uint64_t number(const char* name, uint64_t fallback) {
  const char* text = getenv(name);
  if (text == nullptr || *text == 0) return fallback;
  char* end = nullptr;
  double value = strtod(text, &end);
  switch (*end) {
    case 'K':
    case 'k':
      value *= 1 << 10;
      break;
    case 'M':
    case 'm':
      value *= 1 << 20;
      break;
    case 'G':
    case 'g':
      value *= 1 << 30;
      break;
    default:
      break;
  }
  return static_cast<uint64_t>(value);
}

SimulatedDriverConfig config_from_environment() {
  SimulatedDriverConfig config;
  config.device_count = static_cast<int>(number("EMULATED_GPU_COUNT", 1));
  config.device_name = "Emulated GPU";
  config.capacity_bytes = number("EMULATED_GPU_MEMORY", 4ull << 30);
  config.to_device_bytes_per_s = number("EMULATED_GPU_LINK", 0);
  config.to_host_bytes_per_s = number("EMULATED_GPU_LINK", 0);
  config.on_device_bytes_per_s = 0;
  config.kernel_bytes_per_s = number("EMULATED_GPU_KERNEL_BYTES_PER_S", 0);
  return config;
}

void at_exit();

// By cuInit: libraries open libcuda when they are loaded (cuBLASLt), and a thread would be one too
// many for a process that is to be forked.
SimulatedDriver* make_driver() {
  auto* driver = new SimulatedDriver(config_from_environment());  // for ever, as the real one
  add_hash_kernel(*driver);
  add_copy_kernel(*driver);
  // After those of the libraries that were loaded before: so before theirs at exit.
  atexit(&at_exit);
  return driver;
}

SimulatedDriver& driver() {
  static SimulatedDriver* const made = make_driver();
  return *made;
}
SimulatedDriver::Parts& parts() { return driver().parts(); }
// Its functions find the driver themselves.
const DriverApi& api() {
  static const DriverApi filled = SimulatedDriver::functions();
  return filled;
}
CUresult init(unsigned flags) {
  driver();
  return api().cuInit(flags);
}

// Kernels of the emulation.
struct Function {
  std::string name;
};
std::mutex functions_mutex;
std::unordered_map<std::string, Function*> functions_by_name;
std::set<const void*> functions;

Function* find_function(CUfunction handle) {
  const std::lock_guard lock(functions_mutex);
  return functions.contains(handle) ? reinterpret_cast<Function*>(handle) : nullptr;
}

// As many launches may wait in a stream; then the next one waits for room, as on a real GPU.
// Without a bound a program that never waits fills the host's memory with tasks.
constexpr size_t kPendingMax = 1024;
std::mutex pending_mutex;
std::condition_variable pending_changed;
std::unordered_map<CUstream, size_t> pending;

struct TaskState {
  TaskState(const EmulatedTask& the_task, CUstream the_stream)
      : task(the_task), stream(the_stream) {
    std::unique_lock lock(pending_mutex);
    pending_changed.wait(lock, [this] { return pending[stream] < kPendingMax; });
    ++pending[stream];
  }
  ~TaskState() {
    if (task.destroy != nullptr) task.destroy(task.state);
    const std::lock_guard lock(pending_mutex);
    if (pending[stream]-- == kPendingMax) pending_changed.notify_all();
  }
  EmulatedTask task;
  CUstream stream;
  std::vector<DeviceRange> ranges;
};

void run_task(TaskState& state, CUstream stream) {
  SimulatedMemory& memory = parts().memory;
  const uint64_t access = state.ranges.empty() ? 1 : memory.begin_access(state.ranges);
  if (access == 0) {
    for (const DeviceRange& range : state.ranges) {
      const SimulatedMemory::Place place = memory.place_of(range);
      if (place.is_accessible) continue;
      fprintf(stderr,
              "emulated GPU: ILLEGAL ADDRESS: %s in stream %p %s [0x%llx, +%llu), which is %s\n",
              state.task.name, static_cast<void*>(stream), range.is_written ? "writes" : "reads",
              static_cast<unsigned long long>(range.address),
              static_cast<unsigned long long>(range.bytes),
              place.is_reserved ? "reserved but not (all) mapped" : "no device memory");
    }
    parts().failure.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    return;
  }
  state.task.run(state.task.state);
  if (!state.ranges.empty()) memory.end_access(access);
}

CUresult launch_emulated(void* block, CUstream stream) {
  auto* parameters = static_cast<EmulatedParameters*>(block);
  auto state = std::make_shared<TaskState>(parameters->task, stream);
  for (uint64_t i = 0; i < parameters->count; ++i) {
    const EmulatedRange& range = parameters->ranges[i];
    if (range.bytes != 0)
      state->ranges.push_back({range.address, range.bytes, range.is_written != 0});
  }
  return driver().launch(stream, {}, [state, stream] { run_task(*state, stream); });
}

CUresult launch_kernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, CUstream stream,
                       void** parameters, void** extra) {
  if (find_function(function) == nullptr) {
    return api().cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters,
                                extra);
  }
  if (SimulatedStream::is_on_stream()) return CUDA_ERROR_NOT_PERMITTED;
  if (parts().failure.is_set()) return parts().failure.result();
  for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) return launch_emulated(extra[1], stream);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// A cubin of NVRTC names kernels that SimulatedModules knows: their names stand in its symbols.
CUresult load_module(CUmodule* module, const void* image) {
  if (!parts().devices.has_current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (image != nullptr && memcmp(image, "\177ELF", 4) == 0) {
    const auto* bytes = static_cast<const char*>(image);
    uint64_t section_offset = 0;
    uint16_t section_bytes = 0, section_count = 0;
    memcpy(&section_offset, bytes + 0x28, 8);
    memcpy(&section_bytes, bytes + 0x3A, 2);
    memcpy(&section_count, bytes + 0x3C, 2);
    const std::string_view text(bytes, section_offset + uint64_t{section_bytes} * section_count);
    std::vector<std::string> kernels;
    for (const char* name : {kDeviceHashKernelName, kDeviceCopyKernelName}) {
      if (text.find(name) != std::string_view::npos) kernels.emplace_back(name);
    }
    return api().cuModuleLoadData(
        module, simulated_image(parts().modules.current_capability(), kernels).c_str());
  }
  return api().cuModuleLoadData(module, image);
}

CUresult function_name(const char** name, CUfunction function) {
  Function* found = find_function(function);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = found->name.c_str();
  return CUDA_SUCCESS;
}
CUresult function_parameter(CUfunction, size_t, size_t*, size_t*) {
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult driver_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult primary_state(CUdevice device, unsigned* flags, int* active) {
  if (!parts().devices.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = parts().devices.is_active(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult context_device(CUdevice* device) {
  if (!parts().devices.has_current()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = parts().devices.current_device();
  return CUDA_SUCCESS;
}

thread_local std::vector<CUcontext> context_stack;
CUresult push_context(CUcontext context) {
  CUcontext current = nullptr;
  api().cuCtxGetCurrent(&current);
  const CUresult result = api().cuCtxSetCurrent(context);
  if (result == CUDA_SUCCESS) context_stack.push_back(current);
  return result;
}
CUresult pop_context(CUcontext* context) {
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) api().cuCtxGetCurrent(context);
  const CUresult result = api().cuCtxSetCurrent(context_stack.back());
  context_stack.pop_back();
  return result;
}
CUresult synchronize_context() {
  if (SimulatedStream::is_on_stream()) return CUDA_ERROR_NOT_PERMITTED;
  parts().streams.wait_until_idle();
  return parts().failure.result();
}

CUresult set_words(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  return driver().launch(stream, {{target, count * 4, true}},
                         [=] { std::fill_n(reinterpret_cast<unsigned*>(target), count, value); });
}
CUresult write_value32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return driver().launch(stream, {{address, 4, true}},
                         [=] { *reinterpret_cast<volatile cuuint32_t*>(address) = value; });
}
CUresult copy_peer(CUdeviceptr target, CUcontext, CUdeviceptr source, CUcontext, size_t bytes,
                   CUstream stream) {
  return api().cuMemcpyDtoDAsync(target, source, bytes, stream);
}
CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const bool is_device = emulated_gpu_is_device(reinterpret_cast<void*>(address));
  const bool is_host = emulated_gpu_is_registered(reinterpret_cast<void*>(address));
  if (!is_device && !is_host) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) =
          std::max(0, emulated_gpu_device_of(reinterpret_cast<void*>(address)));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
CUresult uuid_of(CUuuid* uuid, CUdevice device) {
  memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = 'e';
  uuid->bytes[15] = static_cast<char>(device + 1);
  return CUDA_SUCCESS;
}
CUresult address_range(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  const auto found = parts().memory.mapped_at(address);
  if (!found.has_value()) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->address;
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}

// NVRTC looks for its cache here, and calls it without a check that it was found.
CUresult export_table(const void** table, const CUuuid*) {
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

// Names that must be there for the dynamic linker, but that the emulation has nothing for.
template <size_t kIndex>
CUresult unsupported();
constexpr const char* kUnsupported[] = {
#define EMU_NAME(name) #name,
#include "unsupported.inc"
#undef EMU_NAME
};
template <size_t kIndex>
CUresult unsupported() {
  fprintf(stderr, "emulated GPU: the driver's %s is not emulated\n", kUnsupported[kIndex]);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult get_proc_address(const char* name, void** entry, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status);
CUresult get_proc_address_v1(const char* name, void** entry, int version, cuuint64_t flags) {
  return get_proc_address(name, entry, version, flags, nullptr);
}

using Table = std::unordered_map<std::string, void*>;
template <size_t... kIndex>
void add_unsupported(Table& table, std::index_sequence<kIndex...>) {
  ((table[kUnsupported[kIndex]] = reinterpret_cast<void*>(&unsupported<kIndex>)), ...);
}
const Table& table() {
  static const Table* const made = [] {
    auto* names = new Table;
    add_unsupported(*names, std::make_index_sequence<std::size(kUnsupported)>());
#define EMU_STRING(name) #name
#define EMU_EXPANDED(name) EMU_STRING(name)
#define EMU_ADD(name)                                    \
  (*names)[#name] = reinterpret_cast<void*>(api().name); \
  (*names)[EMU_EXPANDED(name)] = reinterpret_cast<void*>(api().name);
    TENCACHE_CUDA_FUNCTIONS(EMU_ADD)
#undef EMU_ADD
    const auto add = [&](const char* name, auto function) {
      (*names)[name] = reinterpret_cast<void*>(function);
    };
    add("cuInit", &init);
    add("cuLaunchKernel", &launch_kernel);
    add("cuModuleLoadData", &load_module);
    add("cuFuncGetName", &function_name);
    add("cuFuncGetParamInfo", &function_parameter);
    add("cuDriverGetVersion", &driver_version);
    add("cuDevicePrimaryCtxGetState", &primary_state);
    add("cuCtxGetDevice", &context_device);
    add("cuCtxPushCurrent", &push_context);
    add("cuCtxPushCurrent_v2", &push_context);
    add("cuCtxPopCurrent", &pop_context);
    add("cuCtxPopCurrent_v2", &pop_context);
    add("cuCtxSynchronize", &synchronize_context);
    add("cuMemsetD32Async", &set_words);
    add("cuStreamWriteValue32", &write_value32);
    add("cuStreamWriteValue32_v2", &write_value32);
    add("cuMemcpyPeerAsync", &copy_peer);
    add("cuPointerGetAttribute", &pointer_attribute);
    add("cuDeviceGetUuid", &uuid_of);
    add("cuDeviceGetUuid_v2", &uuid_of);
    add("cuMemGetAddressRange", &address_range);
    add("cuMemGetAddressRange_v2", &address_range);
    add("cuGetExportTable", &export_table);
    add("cuGetProcAddress", &get_proc_address);
    add("cuGetProcAddress_v2", &get_proc_address);
    return names;
  }();
  return *made;
}

CUresult get_proc_address(const char* name, void** entry, int version, cuuint64_t,
                          CUdriverProcAddressQueryResult* status) {
  const auto found = table().find(name);
  const bool is_unsupported =
      std::any_of(std::begin(kUnsupported), std::end(kUnsupported),
                  [name](const char* other) { return strcmp(name, other) == 0; }) &&
      getenv("EMULATED_GPU_TRACE_DRIVER") != nullptr;
  if (is_unsupported) fprintf(stderr, "emulated GPU: asked for %s\n", name);
  if (found == table().end()) {
    if (getenv("EMULATED_GPU_TRACE_DRIVER") != nullptr)
      fprintf(stderr, "emulated GPU: no %s\n", name);
    if (entry != nullptr) *entry = nullptr;
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
  }
  *entry = found->second;
  if (strcmp(name, "cuGetProcAddress") == 0 && version < 12000) {
    *entry = reinterpret_cast<void*>(&get_proc_address_v1);
  }
  if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}

void at_exit() { parts().failure.fail(CUDA_ERROR_DEINITIALIZED); }

}  // namespace

// Exports: the trampoline of each name jumps to its slot.
#define EMU_NAME(name)                                                            \
  extern "C" {                                                                    \
  __attribute__((visibility("hidden"))) void* emulated_gpu_slot_##name = nullptr; \
  }                                                                               \
  asm(".text\n.globl " #name "\n.type " #name ",@function\n" #name                \
      ":\n\tendbr64\n\tjmp *emulated_gpu_slot_" #name "(%rip)\n.size " #name ", .-" #name "\n");
#include "exports.inc"
#undef EMU_NAME

__attribute__((constructor)) static void fill_slots() {
#define EMU_NAME(name)                                                              \
  emulated_gpu_slot_##name = table().contains(#name) ? table().at(#name) : nullptr; \
  if (emulated_gpu_slot_##name == nullptr) fprintf(stderr, "emulated GPU: no slot for %s\n", #name);
#include "exports.inc"
#undef EMU_NAME
}

#define EMU_PUBLIC extern "C" __attribute__((visibility("default")))

EMU_PUBLIC CUfunction emulated_gpu_function(const char* name) {
  const std::lock_guard lock(functions_mutex);
  Function*& found = functions_by_name[name];
  if (found == nullptr) {
    found = new Function{name};
    functions.insert(found);
  }
  return reinterpret_cast<CUfunction>(found);
}
EMU_PUBLIC int emulated_gpu_is_device(const void* address) {
  return parts().memory.place_of({reinterpret_cast<CUdeviceptr>(address), 1, false}).is_reserved;
}
EMU_PUBLIC int emulated_gpu_device_of(const void* address) {
  const auto found = parts().memory.mapped_at(reinterpret_cast<CUdeviceptr>(address));
  return found.has_value() ? found->device : -1;
}
EMU_PUBLIC int emulated_gpu_is_registered(const void* address) {
  return parts().host.kind(address, 1) == HostMemoryKind::kRegistered;
}
EMU_PUBLIC void emulated_gpu_fail(CUresult result) { parts().failure.fail(result); }
EMU_PUBLIC void emulated_gpu_set_capturing(CUstream stream, int is_capturing) {
  driver().set_capturing(stream, is_capturing != 0);
}
