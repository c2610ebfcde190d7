// SPDX-License-Identifier: Apache-2.0
//
// How long do the driver's mappings take while the link is busy? An H200 gives access to a mapping
// in 25 us, but takes a millisecond while a copy to the host is under way. This program asks what
// that depends on: the direction of the copies, whether engines or a kernel copy, the size of each
// copy, the priority of the stream, how many handles one call gives access to, and whether copies
// pause meanwhile (platform/cuda/copy_pause.h). It needs a GPU, prints one line of JSON for each
// answer, and takes some seconds. benchmarks/gpu/run.py runs it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/units.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/copy_kernel.h"
#include "platform/cuda/copy_pause.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/driver_api.h"
#include "platform/cuda/gpu.h"
#include "platform/cuda/nvrtc_api.h"
#include "platform/host_memory.h"

namespace {

using namespace tencache;  // NOLINT: a program, not a header

constexpr uint64_t kCopiedBytes = 256 * kMiB;
constexpr uint64_t kBusyBytes = 4 * kGiB;  // 75 ms of a link of PCIe 5
constexpr int kRepetitions = 20;
constexpr int kNormalPriority = 0;
constexpr int kHighestPriority = -1000;  // the driver takes the highest that it has

enum class Direction { kNone, kToHost, kToDevice, kBoth };
constexpr const char* kDirections[] = {"none", "to_host", "to_device", "both"};

struct Load {
  Direction direction = Direction::kNone;
  uint64_t copy_bytes = kCopiedBytes;  // of each copy
  int priority = kNormalPriority;      // of the copies' streams
  const CopyKernel* kernel = nullptr;  // copies to the host; null: a copy engine does
  CopyPause* pause = nullptr;          // of copies to the host while access is given
};

struct Mapping {
  uint64_t handle_bytes = 2 * kMiB;
  unsigned handles = 1;  // given access by one call
  uint64_t bytes() const { return handle_bytes * handles; }
};

void expect(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}

template <class T>
T value_or_exit(Result<T> result) {
  if (result.is_ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double in_tenths(double value) { return std::round(value * 10) / 10; }

/// Addresses on the GPU with handles mapped behind one another, and what each call took.
class MappedRange {
 public:
  MappedRange(const Gpu& gpu, const Mapping& mapping) : gpu_(gpu), mapping_(mapping) {
    const CUmemAllocationProp properties = frame_properties(gpu.device(), gpu.facts());
    expect(driver().cuMemAddressReserve(&address_, mapping.bytes(), 0, 0, 0) == CUDA_SUCCESS,
           "cuMemAddressReserve");
    for (unsigned index = 0; index < mapping.handles; ++index) {
      CUmemGenericAllocationHandle handle = 0;
      expect(driver().cuMemCreate(&handle, mapping.handle_bytes, &properties, 0) == CUDA_SUCCESS,
             "cuMemCreate");
      handles_.push_back(handle);
    }
  }
  ~MappedRange() {
    for (const CUmemGenericAllocationHandle handle : handles_) driver().cuMemRelease(handle);
    driver().cuMemAddressFree(address_, mapping_.bytes());
  }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  void map(CopyPause* pause) {
    CUdeviceptr address = address_;
    for (const CUmemGenericAllocationHandle handle : handles_) {
      expect(driver().cuMemMap(address, mapping_.handle_bytes, 0, handle, 0) == CUDA_SUCCESS,
             "cuMemMap");
      address += mapping_.handle_bytes;
    }
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu_.device()};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const double begin_us = now_us();
    const CopyPause::Scope paused(pause);
    expect(driver().cuMemSetAccess(address_, mapping_.bytes(), &access, 1) == CUDA_SUCCESS,
           "cuMemSetAccess");
    access_us_.push_back(now_us() - begin_us);
  }
  void unmap() {
    const double begin_us = now_us();
    expect(driver().cuMemUnmap(address_, mapping_.bytes()) == CUDA_SUCCESS, "cuMemUnmap");
    unmap_us_.push_back(now_us() - begin_us);
  }

  CUdeviceptr address() const { return address_; }
  const std::vector<double>& access_us() const { return access_us_; }
  const std::vector<double>& unmap_us() const { return unmap_us_; }

 private:
  const DriverApi& driver() const { return gpu_.driver(); }

  const Gpu& gpu_;
  const Mapping mapping_;
  CUdeviceptr address_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
  std::vector<double> access_us_;
  std::vector<double> unmap_us_;
};

/// Copies that keep the link busy in one direction or both.
class Copies {
 public:
  Copies(const Gpu& gpu, const Load& load, CUdeviceptr device, char* host)
      : gpu_(gpu), load_(load), device_(device), host_(host), marks_(gpu) {
    pausing_ = value_or_exit(CopyStream::create(gpu, marks_, load.pause));
    for (CUstream* stream : {&out_, &in_}) {
      expect(driver().cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, load.priority) ==
                 CUDA_SUCCESS,
             "cuStreamCreateWithPriority");
    }
  }
  ~Copies() {
    wait();
    for (const CUstream stream : {out_, in_}) driver().cuStreamDestroy(stream);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void queue() {
    for (uint64_t copied = 0; copied < kBusyBytes; copied += load_.copy_bytes) {
      const uint64_t offset = copied % kCopiedBytes;
      if (load_.direction == Direction::kToHost || load_.direction == Direction::kBoth) {
        copy_out(host_ + offset, device_ + offset);
      }
      if (load_.direction == Direction::kToDevice || load_.direction == Direction::kBoth) {
        expect(driver().cuMemcpyHtoDAsync(device_ + kCopiedBytes + offset,
                                          host_ + kCopiedBytes + offset, load_.copy_bytes,
                                          in_) == CUDA_SUCCESS,
               "cuMemcpyHtoDAsync");
      }
    }
  }
  bool are_busy() const {
    if (load_.direction == Direction::kNone) return true;
    const CUstream out = load_.pause != nullptr ? pausing_->handle() : out_;
    const bool is_out_busy = driver().cuStreamQuery(out) == CUDA_ERROR_NOT_READY;
    const bool is_in_busy = driver().cuStreamQuery(in_) == CUDA_ERROR_NOT_READY;
    return load_.direction == Direction::kBoth ? is_out_busy && is_in_busy
                                               : is_out_busy || is_in_busy;
  }
  void wait() {
    for (const CUstream stream : {out_, in_, pausing_->handle()}) {
      driver().cuStreamSynchronize(stream);
    }
  }

 private:
  const DriverApi& driver() const { return gpu_.driver(); }
  void copy_out(char* host, CUdeviceptr device) {
    if (load_.pause != nullptr) {
      expect(pausing_->to_host(host, device, load_.copy_bytes).is_ok(), "a copy to the host");
      return;
    }
    const bool is_queued =
        load_.kernel != nullptr
            ? load_.kernel->to_host(out_, host, device, load_.copy_bytes).is_ok()
            : driver().cuMemcpyDtoHAsync(host, device, load_.copy_bytes, out_) == CUDA_SUCCESS;
    expect(is_queued, "a copy to the host");
  }

  const Gpu& gpu_;
  const Load load_;
  const CUdeviceptr device_;
  char* const host_;
  StreamMarks marks_;
  std::unique_ptr<CopyStream> pausing_;
  CUstream out_ = nullptr;
  CUstream in_ = nullptr;
};

/// Measures what one mapping takes under one load. Only calls that returned while the link was busy
/// count.
void measure(const Gpu& gpu, const Load& load, const Mapping& mapping, CUdeviceptr device,
             char* host) {
  MappedRange range(gpu, mapping);
  Copies copies(gpu, load, device, host);
  size_t counted = 0;
  copies.queue();
  while (counted < kRepetitions && copies.are_busy()) {
    range.map(load.pause);
    range.unmap();
    counted += copies.are_busy() ? 1 : 0;
  }
  if (counted == 0) return;
  std::vector<double> access_us = range.access_us();
  std::vector<double> unmap_us = range.unmap_us();
  access_us.resize(counted);
  unmap_us.resize(counted);
  const nlohmann::json row = {
      {"copies", kDirections[static_cast<int>(load.direction)]},
      {"copy_mib", load.copy_bytes / kMiB},
      {"by_kernel", load.kernel != nullptr},
      {"pauses", load.pause != nullptr},
      {"high_priority", load.priority != kNormalPriority || load.pause != nullptr},
      {"handles", mapping.handles},
      {"handle_mib", mapping.handle_bytes / kMiB},
      {"calls", counted},
      {"access_median_us", in_tenths(median(access_us))},
      {"access_max_us", in_tenths(*std::ranges::max_element(access_us))},
      {"unmap_median_us", in_tenths(median(unmap_us))}};
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

std::vector<Load> loads(const CopyKernel* kernel, CopyPause* pause) {
  std::vector<Load> all = {{.direction = Direction::kNone},
                           {.direction = Direction::kToDevice},
                           {.direction = Direction::kBoth},
                           {.direction = Direction::kToHost, .priority = kHighestPriority}};
  for (const uint64_t copy_bytes : {256 * kMiB, 64 * kMiB, 16 * kMiB, 4 * kMiB, kMiB}) {
    all.push_back({.direction = Direction::kToHost, .copy_bytes = copy_bytes});
  }
  all.push_back({.direction = Direction::kToHost, .pause = pause});
  all.push_back({.direction = Direction::kBoth, .pause = pause});
  if (kernel != nullptr) all.push_back({.direction = Direction::kToHost, .kernel = kernel});
  return all;
}

/// Makes the kernel that copies. Returns null where NVRTC is missing; then only the copy engines
/// copy.
std::unique_ptr<CopyKernel> make_kernel(const Gpu& gpu) {
  const Result<NvrtcApi> nvrtc = load_nvrtc();
  if (!nvrtc.is_ok()) {
    std::fprintf(stderr, "%s\n", nvrtc.status().message().c_str());
    return nullptr;
  }
  return value_or_exit(CopyKernel::create(gpu, nvrtc.value()));
}

std::vector<Mapping> mappings() {
  return {{2 * kMiB, 1}, {32 * kMiB, 1}, {128 * kMiB, 1}, {2 * kMiB, 16}, {32 * kMiB, 4}};
}

}  // namespace

int main() {
  const DriverApi driver = value_or_exit(load_driver());
  const std::unique_ptr<Gpu> gpu = value_or_exit(Gpu::open(driver, 0));
  const CallScope scope(driver, gpu->context());
  expect(scope.status().is_ok(), "entering the context");
  const HostMemory host = value_or_exit(HostMemory::map({.bytes = 2 * kCopiedBytes}));
  expect(driver.cuMemHostRegister(host.data(), host.bytes(), CU_MEMHOSTREGISTER_DEVICEMAP) ==
             CUDA_SUCCESS,
         "cuMemHostRegister");
  {
    const std::unique_ptr<CopyKernel> kernel = make_kernel(*gpu);
    MappedRange copied(*gpu, {128 * kMiB, 4});
    copied.map(nullptr);
    const std::unique_ptr<CopyPause> pause = value_or_exit(CopyPause::create(*gpu));
    for (const Load& load : loads(kernel.get(), pause.get())) {
      for (const Mapping& mapping : mappings()) {
        measure(*gpu, load, mapping, copied.address(), host.data());
      }
    }
    copied.unmap();
  }
  driver.cuMemHostUnregister(host.data());
  return 0;
}
