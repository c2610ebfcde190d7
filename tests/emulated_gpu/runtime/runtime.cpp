// libcudart.so.13 of the emulated GPU: the part of CUDA's run time that PyTorch's libraries need,
// over the driver, whose functions it finds as the real one does: dlopen("libcuda.so.1"),
// dlsym("cuGetProcAddress_v2"). So a launch guard that is preloaded stands before them too.
#define __CUDA_RUNTIME_API_H_EMU
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulated_gpu.h"

#define EMU_PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

#define EMU_DRIVER(X)                                                                             \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName)           \
  X(cuDeviceTotalMem) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent)      \
  X(cuCtxSetCurrent) X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemAddressReserve) \
  X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)  \
  X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer)                        \
  X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize)        \
  X(cuStreamWaitEvent) X(cuStreamIsCapturing) X(cuLaunchHostFunc) X(cuEventCreate)                \
  X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime)  \
  X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD8Async)               \
  X(cuLaunchKernel) X(cuGetErrorName) X(cuGetErrorString) X(cuThreadExchangeStreamCaptureMode)

struct Driver {
#define EMU_MEMBER(name) decltype(&::name) name = nullptr;
  EMU_DRIVER(EMU_MEMBER)
#undef EMU_MEMBER
  decltype(&::cuGetProcAddress) get = nullptr;
  decltype(&::emulated_gpu_function) function = nullptr;
  decltype(&::emulated_gpu_is_device) is_device = nullptr;
  decltype(&::emulated_gpu_device_of) device_of = nullptr;
  decltype(&::emulated_gpu_is_registered) is_registered = nullptr;
  decltype(&::emulated_gpu_wait_idle) wait_idle = nullptr;
  decltype(&::emulated_gpu_set_capturing) set_capturing = nullptr;
  int device_count = 0;
  std::vector<CUcontext> contexts;
};

const Driver& driver() {
  static const Driver* const made = [] {
    auto* d = new Driver;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      fprintf(stderr, "emulated GPU: %s\n", dlerror());
      abort();
    }
    d->get = reinterpret_cast<decltype(d->get)>(dlsym(library, "cuGetProcAddress_v2"));
#define EMU_FIND(name)                                                                      \
  {                                                                                         \
    CUdriverProcAddressQueryResult found;                                                   \
    if (d->get(#name, reinterpret_cast<void**>(&d->name), 13000, 0, &found) != CUDA_SUCCESS) \
      fprintf(stderr, "emulated GPU: the driver has no %s\n", #name), abort();                    \
  }
    EMU_DRIVER(EMU_FIND)
#undef EMU_FIND
    d->function = reinterpret_cast<decltype(d->function)>(dlsym(library, "emulated_gpu_function"));
    d->is_device = reinterpret_cast<decltype(d->is_device)>(dlsym(library, "emulated_gpu_is_device"));
    d->device_of = reinterpret_cast<decltype(d->device_of)>(dlsym(library, "emulated_gpu_device_of"));
    d->is_registered = reinterpret_cast<decltype(d->is_registered)>(dlsym(library, "emulated_gpu_is_registered"));
    d->wait_idle = reinterpret_cast<decltype(d->wait_idle)>(dlsym(library, "emulated_gpu_wait_idle"));
    d->set_capturing = reinterpret_cast<decltype(d->set_capturing)>(dlsym(library, "emulated_gpu_set_capturing"));
    d->cuInit(0);
    d->cuDeviceGetCount(&d->device_count);
    d->contexts.resize(static_cast<size_t>(d->device_count));
    return d;
  }();
  return *made;
}

std::mutex context_mutex;
CUcontext context_of(int device) {
  auto& contexts = const_cast<std::vector<CUcontext>&>(driver().contexts);
  const std::lock_guard lock(context_mutex);
  CUcontext& context = contexts[static_cast<size_t>(device)];
  if (context == nullptr) driver().cuDevicePrimaryCtxRetain(&context, device);
  return context;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int wanted_device = 0;  // until there is a context

cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}
cudaError_t note(CUresult result) { return note(static_cast<cudaError_t>(result)); }

int current_device() {
  CUdevice device = 0;
  return driver().cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : wanted_device;
}
// As the run time does: the first call that needs a context makes the primary one current.
const Driver& ready() {
  const Driver& d = driver();
  CUcontext context = nullptr;
  if (d.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    d.cuCtxSetCurrent(context_of(wanted_device));
  }
  return d;
}

std::mutex mutex;
struct Block {
  size_t bytes;
  CUmemGenericAllocationHandle handle;
};
std::map<CUdeviceptr, Block> blocks;           // of cudaMalloc
std::map<void*, size_t> host_blocks;           // of cudaHostAlloc
std::unordered_map<CUstream, int> priorities;  // of streams

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
CUstream driver_stream(cudaStream_t stream) { return stream; }

struct Kernel {
  const void* function;
  const char* name;
};
std::vector<Kernel>& kernels() {
  static auto* const all = new std::vector<Kernel>;
  return *all;
}
std::string kernel_name(const void* function) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.function != function) continue;
    int status = 0;
    char* text = abi::__cxa_demangle(kernel.name, nullptr, nullptr, &status);
    return status == 0 ? text : kernel.name;
  }
  return "(unknown kernel)";
}
cudaError_t refuse_kernel(const void* function) {
  const std::string name = kernel_name(function);
  fprintf(stderr, "emulated GPU: there is no stand-in for the kernel %s\n", name.c_str());
  if (getenv("EMULATED_GPU_ABORT") != nullptr) abort();
  return note(cudaErrorNotSupported);
}
cudaError_t refuse(const char* what) {
  fprintf(stderr, "emulated GPU: %s is not emulated\n", what);
  if (getenv("EMULATED_GPU_ABORT") != nullptr) abort();
  return note(cudaErrorNotSupported);
}

// Graphs: what is queued in a stream that captures is kept as a callable; a launch queues all of them
// in one stream, in the order in which they came, which is one of the orders that the graph allows.
struct Graph {
  std::vector<std::function<CUresult(CUstream)>> nodes;
};
struct Capture {
  unsigned long long id = 0;
  CUstream origin = nullptr;
  Graph* graph = nullptr;
  std::set<CUevent> events;  // recorded in it
};
std::mutex capture_mutex;
std::map<CUstream, std::shared_ptr<Capture>> captures;
std::atomic<int> capture_count = 0;
unsigned long long last_capture_id = 0;

std::shared_ptr<Capture> capture_of(CUstream stream) {
  if (capture_count == 0) return nullptr;
  const std::lock_guard lock(capture_mutex);
  const auto found = captures.find(stream);
  return found != captures.end() ? found->second : nullptr;
}
std::shared_ptr<Capture> capture_with(CUevent event) {
  if (capture_count == 0) return nullptr;
  const std::lock_guard lock(capture_mutex);
  for (const auto& [stream, capture] : captures) {
    if (capture->events.contains(event)) return capture;
  }
  return nullptr;
}
// Queues it now, or keeps it where the stream captures.
template <typename Push>
CUresult queue(CUstream stream, Push push) {
  if (const auto capture = capture_of(stream)) {
    const std::lock_guard lock(capture_mutex);
    capture->graph->nodes.emplace_back(std::move(push));
    return CUDA_SUCCESS;
  }
  return push(stream);
}

struct HostCopy {
  void* target;
  const void* source;
  size_t bytes;
};
CUresult copy_now(void* target, const void* source, size_t bytes, cudaMemcpyKind kind, CUstream stream);
CUresult copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind, CUstream stream) {
  return queue(stream, [=](CUstream in) { return copy_now(target, source, bytes, kind, in); });
}
CUresult copy_now(void* target, const void* source, size_t bytes, cudaMemcpyKind kind, CUstream stream) {
  const Driver& d = ready();
  if (kind == cudaMemcpyDefault) {
    const bool to = d.is_device(target), from = d.is_device(source);
    kind = to ? (from ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
              : (from ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  }
  if (bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice: return d.cuMemcpyHtoDAsync(address(target), source, bytes, stream);
    case cudaMemcpyDeviceToHost: return d.cuMemcpyDtoHAsync(target, address(source), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return d.cuMemcpyDtoDAsync(address(target), address(source), bytes, stream);
    default: {
      auto* job = new HostCopy{target, source, bytes};
      return d.cuLaunchHostFunc(stream, [](void* data) {
        auto* todo = static_cast<HostCopy*>(data);
        memmove(todo->target, todo->source, todo->bytes);
        delete todo;
      }, job);
    }
  }
}

}  // namespace

// The extension.

static CUresult launch_now(CUstream stream, const EmulatedTask* task, const EmulatedRange* ranges, size_t count);
namespace {
struct KeptTask {
  EmulatedTask task;
  std::vector<EmulatedRange> ranges;
  ~KeptTask() { task.destroy(task.state); }
};
}  // namespace
EMU_PUBLIC CUresult emulated_gpu_launch(void* stream, const EmulatedTask* task, const EmulatedRange* ranges, size_t count) {
  const auto in = static_cast<CUstream>(stream);
  if (capture_of(in) == nullptr) return launch_now(in, task, ranges, count);
  auto kept = std::make_shared<KeptTask>(*task, std::vector<EmulatedRange>(ranges, ranges + count));
  return queue(in, [kept](CUstream into) {
    const EmulatedTask again = {
        kept->task.name,
        [](void* state) {
          const EmulatedTask& real = (*static_cast<std::shared_ptr<KeptTask>*>(state))->task;
          real.run(real.state);
        },
        [](void* state) { delete static_cast<std::shared_ptr<KeptTask>*>(state); },
        new std::shared_ptr<KeptTask>(kept)};
    return launch_now(into, &again, kept->ranges.data(), kept->ranges.size());
  });
}
static CUresult launch_now(CUstream stream, const EmulatedTask* task, const EmulatedRange* ranges, size_t count) {
  const Driver& d = ready();
  const size_t bytes = offsetof(EmulatedParameters, addresses) + (count + 1) * sizeof(uint64_t);
  std::vector<uint64_t> block((bytes + 7) / 8);
  auto* parameters = reinterpret_cast<EmulatedParameters*>(block.data());
  parameters->task = *task;
  parameters->ranges = ranges;
  parameters->count = count;
  for (size_t i = 0; i < count; ++i) parameters->addresses[i] = ranges[i].address;
  size_t size = bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  return d.cuLaunchKernel(d.function(task->name), 1, 1, 1, 1, 1, 1, 0, static_cast<CUstream>(stream),
                          nullptr, extra);
}

EMU_PUBLIC void emulated_gpu_device_failed() {
  static const auto fail = reinterpret_cast<decltype(&::emulated_gpu_fail)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "emulated_gpu_fail"));
  fail(CUDA_ERROR_LAUNCH_FAILED);
}

// Devices and errors.

EMU_PUBLIC cudaError_t cudaGetDeviceCount(int* count) { *count = driver().device_count; return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaGetDevice(int* device) { *device = current_device(); return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= driver().device_count) return note(cudaErrorInvalidDevice);
  wanted_device = device;
  return note(driver().cuCtxSetCurrent(context_of(device)));
}
EMU_PUBLIC cudaError_t cudaDriverGetVersion(int* version) { return note(driver().cuDriverGetVersion(version)); }
EMU_PUBLIC cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaGetLastError() { const cudaError_t e = last_error; last_error = cudaSuccess; return e; }
EMU_PUBLIC cudaError_t cudaPeekAtLastError() { return last_error; }
EMU_PUBLIC const char* cudaGetErrorName(cudaError_t error) {
  const char* text = nullptr;
  driver().cuGetErrorName(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}
EMU_PUBLIC const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  driver().cuGetErrorString(static_cast<CUresult>(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}
EMU_PUBLIC cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  const Driver& d = driver();
  if (device < 0 || device >= d.device_count) return note(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  d.cuDeviceGetName(p->name, sizeof p->name, device);
  p->uuid.bytes[0] = 'e';
  p->uuid.bytes[15] = static_cast<char>(device + 1);
  d.cuDeviceTotalMem(&p->totalGlobalMem, device);
  p->major = 9; p->minor = 0;
  p->multiProcessorCount = 1; p->warpSize = 32; p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048; p->regsPerBlock = 65536; p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 48 << 10; p->sharedMemPerBlockOptin = 227 << 10; p->sharedMemPerMultiprocessor = 228 << 10;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536; p->textureAlignment = 512; p->l2CacheSize = 50 << 20; p->memoryBusWidth = 5120;
  p->unifiedAddressing = 1; p->canMapHostMemory = 1; p->concurrentKernels = 1; p->asyncEngineCount = 2;
  p->streamPrioritiesSupported = 1; p->hostRegisterSupported = 1; p->canUseHostPointerForRegisteredMem = 1;
  p->pciBusID = device + 1; p->maxBlocksPerMultiProcessor = 32;
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  const cudaError_t found = cudaGetDeviceProperties(&p, device);
  if (found != cudaSuccess) return found;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrHostRegisterSupported: *value = 1; break;
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    default: return note(driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
  }
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return refuse("peer access"); }
EMU_PUBLIC cudaError_t cudaDeviceSynchronize() { if (capture_count > 0) return note(cudaErrorStreamCaptureUnsupported); return note(ready().cuCtxSynchronize()); }
EMU_PUBLIC cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                        unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  driver().get(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaProfilerStart() { return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Memory.

EMU_PUBLIC cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return note(ready().cuMemGetInfo(free, total)); }
EMU_PUBLIC cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const Driver& d = ready();
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  constexpr size_t kGranule = 2 << 20;
  bytes = (bytes + kGranule - 1) / kGranule * kGranule;
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = {CU_MEM_LOCATION_TYPE_DEVICE, current_device()};
  Block block = {bytes, 0};
  CUresult result = d.cuMemCreate(&block.handle, bytes, &p, 0);
  if (result != CUDA_SUCCESS) return note(result);
  CUdeviceptr at = 0;
  result = d.cuMemAddressReserve(&at, bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = d.cuMemMap(at, bytes, 0, block.handle, 0);
  CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (result == CUDA_SUCCESS) result = d.cuMemSetAccess(at, bytes, &access, 1);
  if (result != CUDA_SUCCESS) return note(result);
  const std::lock_guard lock(mutex);
  blocks[at] = block;
  *pointer = reinterpret_cast<void*>(at);
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaFree(void* pointer) {
  const Driver& d = ready();
  if (pointer == nullptr) return cudaSuccess;
  Block block;
  {
    const std::lock_guard lock(mutex);
    const auto found = blocks.find(address(pointer));
    if (found == blocks.end()) return note(cudaErrorInvalidValue);
    block = found->second;
    blocks.erase(found);
  }
  d.cuCtxSynchronize();  // as the real one does
  d.cuMemUnmap(address(pointer), block.bytes);
  d.cuMemRelease(block.handle);
  return note(d.cuMemAddressFree(address(pointer), block.bytes));
}
EMU_PUBLIC cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  const Driver& d = ready();
  const size_t size = (bytes + 4095) / 4096 * 4096;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return note(cudaErrorMemoryAllocation);
  const CUresult result = d.cuMemHostRegister(memory, size, CU_MEMHOSTREGISTER_PORTABLE);
  if (result != CUDA_SUCCESS) return munmap(memory, size), note(result);
  const std::lock_guard lock(mutex);
  host_blocks[memory] = size;
  *pointer = memory;
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaFreeHost(void* pointer) {
  const Driver& d = ready();
  if (pointer == nullptr) return cudaSuccess;
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex);
    const auto found = host_blocks.find(pointer);
    if (found == host_blocks.end()) return note(cudaErrorInvalidValue);
    bytes = found->second;
    host_blocks.erase(found);
  }
  d.cuCtxSynchronize();
  const CUresult result = d.cuMemHostUnregister(pointer);
  munmap(pointer, bytes);
  return note(result);
}
EMU_PUBLIC cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return note(ready().cuMemHostRegister(pointer, bytes, flags & 0xb));
}
EMU_PUBLIC cudaError_t cudaHostUnregister(void* pointer) { return note(ready().cuMemHostUnregister(pointer)); }
EMU_PUBLIC cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* pointer) {
  const Driver& d = driver();
  memset(a, 0, sizeof *a);
  if (d.is_device(pointer)) {
    a->type = cudaMemoryTypeDevice;
    a->device = d.device_of(pointer) < 0 ? 0 : d.device_of(pointer);
    a->devicePointer = const_cast<void*>(pointer);
  } else if (d.is_registered(pointer)) {
    a->type = cudaMemoryTypeHost;
    a->devicePointer = a->hostPointer = const_cast<void*>(pointer);
  } else {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                                       cudaStream_t stream) {
  return note(copy(target, source, bytes, kind, driver_stream(stream)));
}
EMU_PUBLIC cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  const CUresult result = copy(target, source, bytes, kind, nullptr);
  return note(result == CUDA_SUCCESS ? driver().cuStreamSynchronize(nullptr) : result);
}
EMU_PUBLIC cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t bytes,
                                           cudaStream_t stream) {
  return note(copy(target, source, bytes, cudaMemcpyDeviceToDevice, driver_stream(stream)));
}
EMU_PUBLIC cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                                         size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    const CUresult result = copy(static_cast<char*>(target) + row * target_pitch,
                                 static_cast<const char*>(source) + row * source_pitch, width, kind,
                                 driver_stream(stream));
    if (result != CUDA_SUCCESS) return note(result);
  }
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  return note(queue(driver_stream(stream), [=](CUstream in) {
    return ready().cuMemsetD8Async(address(target), static_cast<unsigned char>(value), bytes, in);
  }));
}
EMU_PUBLIC cudaError_t cudaMemset(void* target, int value, size_t bytes) { return cudaMemsetAsync(target, value, bytes, nullptr); }
EMU_PUBLIC cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaGetSymbolAddress(void**, const void*) { return refuse("cudaGetSymbolAddress"); }

// Streams and events.

EMU_PUBLIC cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const CUresult result = ready().cuStreamCreateWithPriority(stream, flags, priority);
  const std::lock_guard lock(mutex);
  if (result == CUDA_SUCCESS) priorities[*stream] = priority;
  return note(result);
}
EMU_PUBLIC cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EMU_PUBLIC cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
EMU_PUBLIC cudaError_t cudaStreamDestroy(cudaStream_t stream) { return note(ready().cuStreamDestroy(stream)); }
EMU_PUBLIC cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const std::lock_guard lock(mutex);
  const auto found = priorities.find(stream);
  *priority = found != priorities.end() ? found->second : 0;
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaStreamQuery(cudaStream_t stream) { if (capture_of(stream)) return note(cudaErrorStreamCaptureUnsupported); return note(ready().cuStreamQuery(driver_stream(stream))); }
EMU_PUBLIC cudaError_t cudaStreamSynchronize(cudaStream_t stream) { if (capture_of(stream)) return note(cudaErrorStreamCaptureUnsupported); return note(ready().cuStreamSynchronize(driver_stream(stream))); }
EMU_PUBLIC cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto capture = capture_with(event)) {
    const std::lock_guard lock(capture_mutex);
    if (!captures.contains(stream)) {
      captures[stream] = capture;
      driver().set_capturing(stream, 1);
    }
    return cudaSuccess;
  }
  if (capture_of(stream)) return note(cudaErrorStreamCaptureIsolation);
  return note(ready().cuStreamWaitEvent(driver_stream(stream), event, 0)); }
EMU_PUBLIC cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return note(ready().cuStreamIsCapturing(driver_stream(stream), reinterpret_cast<CUstreamCaptureStatus*>(status)));
}
EMU_PUBLIC cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                                cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                                const cudaGraphEdgeData** edges, size_t* count) {
  const auto capture = capture_of(stream);
  if (id != nullptr) *id = capture ? capture->id : 0;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}
struct HostCall { void (*function)(void*); void* data; };
EMU_PUBLIC cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return note(queue(driver_stream(stream), [=](CUstream in) { return ready().cuLaunchHostFunc(in, function, data); }));
}
struct Callback { cudaStreamCallback_t function; cudaStream_t stream; void* data; };
EMU_PUBLIC cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  return note(ready().cuLaunchHostFunc(driver_stream(stream), [](void* state) {
    auto* callback = static_cast<Callback*>(state);
    callback->function(callback->stream, cudaSuccess, callback->data);
    delete callback;
  }, new Callback{function, stream, data}));
}
EMU_PUBLIC cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) { return note(ready().cuEventCreate(event, flags & 3)); }
EMU_PUBLIC cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
EMU_PUBLIC cudaError_t cudaEventDestroy(cudaEvent_t event) { return note(ready().cuEventDestroy(event)); }
EMU_PUBLIC cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const auto capture = capture_of(stream)) {
    const std::lock_guard lock(capture_mutex);
    capture->events.insert(event);
    return cudaSuccess;
  }
  return note(ready().cuEventRecord(event, driver_stream(stream))); }
EMU_PUBLIC cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
EMU_PUBLIC cudaError_t cudaEventQuery(cudaEvent_t event) { return note(ready().cuEventQuery(event)); }
EMU_PUBLIC cudaError_t cudaEventSynchronize(cudaEvent_t event) { return note(ready().cuEventSynchronize(event)); }
EMU_PUBLIC cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) { return note(ready().cuEventElapsedTime(ms, start, end)); }
EMU_PUBLIC cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return note(ready().cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}

// Kernels: only their names.

EMU_PUBLIC void** __cudaRegisterFatBinary(void*) { static void* handle[4]; return handle; }
EMU_PUBLIC void __cudaRegisterFatBinaryEnd(void**) {}
EMU_PUBLIC void __cudaUnregisterFatBinary(void**) {}
EMU_PUBLIC void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  kernels().push_back({host, name});
}
EMU_PUBLIC void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EMU_PUBLIC char __cudaInitModule(void**) { return 0; }
struct Dim { unsigned x, y, z; };
EMU_PUBLIC unsigned __cudaPushCallConfiguration(Dim, Dim, size_t, void*) { return 0; }
EMU_PUBLIC cudaError_t __cudaPopCallConfiguration(Dim* grid, Dim* block, size_t* shared, void* stream) {
  *grid = *block = {1, 1, 1}; *shared = 0; *static_cast<void**>(stream) = nullptr; return cudaSuccess;
}
EMU_PUBLIC cudaError_t __cudaGetKernel(void** kernel, const void* function) { *kernel = const_cast<void*>(function); return cudaSuccess; }
EMU_PUBLIC cudaError_t __cudaLaunchKernel(void* kernel, Dim, Dim, void**, size_t, cudaStream_t) { return refuse_kernel(kernel); }
EMU_PUBLIC cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) { return refuse_kernel(function); }
EMU_PUBLIC cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) { return refuse_kernel(function); }
EMU_PUBLIC cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) { return refuse_kernel(function); }
EMU_PUBLIC cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) { memset(a, 0, sizeof *a); a->maxThreadsPerBlock = 1024; a->numRegs = 32; return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) { *blocks = 1; return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) { *blocks = 1; return cudaSuccess; }

// Graphs.

EMU_PUBLIC cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  ready();
  if (stream == nullptr || stream == cudaStreamLegacy) return note(cudaErrorStreamCaptureUnsupported);
  if (capture_of(stream)) return note(cudaErrorIllegalState);
  const std::lock_guard lock(capture_mutex);
  captures[stream] = std::make_shared<Capture>(++last_capture_id, stream, new Graph, std::set<CUevent>{});
  ++capture_count;
  driver().set_capturing(stream, 1);
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto capture = capture_of(stream);
  if (capture == nullptr || capture->origin != stream) return note(cudaErrorIllegalState);
  const std::lock_guard lock(capture_mutex);
  std::erase_if(captures, [&](const auto& entry) {
    if (entry.second != capture) return false;
    driver().set_capturing(entry.first, 0);
    return true;
  });
  --capture_count;
  *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& node : reinterpret_cast<Graph*>(exec)->nodes) {
    const CUresult result = queue(stream, node);
    if (result != CUDA_SUCCESS) return note(result);
  }
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return refuse("cudaGraphGetNodes");
  *count = reinterpret_cast<Graph*>(graph)->nodes.size();
  return cudaSuccess;
}
EMU_PUBLIC cudaError_t cudaGraphDestroy(cudaGraph_t graph) { delete reinterpret_cast<Graph*>(graph); return cudaSuccess; }
EMU_PUBLIC cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { delete reinterpret_cast<Graph*>(exec); return cudaSuccess; }

// What is not there.
#define EMU_REFUSED(name, ...) EMU_PUBLIC cudaError_t name(__VA_ARGS__) { return refuse(#name); }
EMU_REFUSED(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
EMU_REFUSED(cudaMallocAsync, void**, size_t, cudaStream_t)
EMU_REFUSED(cudaFreeAsync, void*, cudaStream_t)
EMU_REFUSED(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
EMU_REFUSED(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
EMU_REFUSED(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, size_t)
EMU_REFUSED(cudaMemPoolTrimTo, cudaMemPool_t, size_t)
EMU_REFUSED(cudaIpcCloseMemHandle, void*)
EMU_REFUSED(cudaIpcGetEventHandle, cudaIpcEventHandle_t*, cudaEvent_t)
EMU_REFUSED(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*)
EMU_REFUSED(cudaIpcOpenEventHandle, cudaEvent_t*, cudaIpcEventHandle_t)
EMU_REFUSED(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned)
EMU_REFUSED(cudaGraphDebugDotPrint, cudaGraph_t, const char*, unsigned)
EMU_REFUSED(cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t*)

// What torch 2.15 imports beyond that.
EMU_PUBLIC cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
#define EMU_REFUSED_ANY(name) EMU_PUBLIC cudaError_t name() { return refuse(#name); }
#undef cudaGraphInstantiate
#undef cudaGraphAddNode
#undef cudaStreamUpdateCaptureDependencies
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaDeviceGetGraphMemAttribute() __asm__("cudaDeviceGetGraphMemAttribute");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaDeviceGetGraphMemAttribute() { return refuse("cudaDeviceGetGraphMemAttribute"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaDeviceSetGraphMemAttribute() __asm__("cudaDeviceSetGraphMemAttribute");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaDeviceSetGraphMemAttribute() { return refuse("cudaDeviceSetGraphMemAttribute"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphConditionalHandleCreate() __asm__("cudaGraphConditionalHandleCreate");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphConditionalHandleCreate() { return refuse("cudaGraphConditionalHandleCreate"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphRetainUserObject() __asm__("cudaGraphRetainUserObject");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphRetainUserObject() { return refuse("cudaGraphRetainUserObject"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaKernelSetAttributeForDevice() __asm__("cudaKernelSetAttributeForDevice");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaKernelSetAttributeForDevice() { return refuse("cudaKernelSetAttributeForDevice"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetGlobal() __asm__("cudaLibraryGetGlobal");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetGlobal() { return refuse("cudaLibraryGetGlobal"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetKernel() __asm__("cudaLibraryGetKernel");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetKernel() { return refuse("cudaLibraryGetKernel"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetKernelCount() __asm__("cudaLibraryGetKernelCount");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetKernelCount() { return refuse("cudaLibraryGetKernelCount"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetManaged() __asm__("cudaLibraryGetManaged");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetManaged() { return refuse("cudaLibraryGetManaged"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetUnifiedFunction() __asm__("cudaLibraryGetUnifiedFunction");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryGetUnifiedFunction() { return refuse("cudaLibraryGetUnifiedFunction"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryLoadData() __asm__("cudaLibraryLoadData");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryLoadData() { return refuse("cudaLibraryLoadData"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryLoadFromFile() __asm__("cudaLibraryLoadFromFile");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryLoadFromFile() { return refuse("cudaLibraryLoadFromFile"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryUnload() __asm__("cudaLibraryUnload");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaLibraryUnload() { return refuse("cudaLibraryUnload"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaMallocManaged() __asm__("cudaMallocManaged");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaMallocManaged() { return refuse("cudaMallocManaged"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaStreamBeginCaptureToGraph() __asm__("cudaStreamBeginCaptureToGraph");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaStreamBeginCaptureToGraph() { return refuse("cudaStreamBeginCaptureToGraph"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaUserObjectCreate() __asm__("cudaUserObjectCreate");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaUserObjectCreate() { return refuse("cudaUserObjectCreate"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaUserObjectRelease() __asm__("cudaUserObjectRelease");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaUserObjectRelease() { return refuse("cudaUserObjectRelease"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphAddNode() __asm__("cudaGraphAddNode");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphAddNode() { return refuse("cudaGraphAddNode"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphInstantiate() __asm__("cudaGraphInstantiate");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaGraphInstantiate() { return refuse("cudaGraphInstantiate"); }
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaStreamUpdateCaptureDependencies() __asm__("cudaStreamUpdateCaptureDependencies");
EMU_PUBLIC cudaError_t emulated_gpu_refused_cudaStreamUpdateCaptureDependencies() { return refuse("cudaStreamUpdateCaptureDependencies"); }
