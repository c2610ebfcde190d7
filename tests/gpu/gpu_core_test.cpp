// SPDX-License-Identifier: Apache-2.0
//
// The core on a real GPU: what the suites over the simulated driver cannot show. The kernel that
// hashes device memory is compiled for this GPU and must agree with the host; tensors of several
// times the budget leave and come back while kernels read and write them on two streams, and hold
// what a model on the host says. Skipped, with the reason, where there is no driver, GPU or NVRTC.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/call_scope.h"
#include "backend/cuda/device_hash.h"
#include "backend/cuda/device_hasher.h"
#include "backend/cuda/driver_api.h"
#include "backend/cuda/nvrtc_api.h"
#include "backend/cuda/stream_mark.h"
#include "base/units.h"
#include "engine/cuda/cuda_engine.h"
#include "support/random.h"

namespace tencache {
namespace {

constexpr char kAddKernelName[] = "tencache_test_add";
constexpr char kAddKernelText[] = R"(
extern "C" __global__ void tencache_test_add(unsigned* target, const unsigned* source,
                                             unsigned more, unsigned long long count) {
  unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
  for (; i < count; i += gridDim.x * (unsigned long long)blockDim.x) {
    target[i] += source[i] + more + (unsigned)i;
  }
}
)";

class GpuCoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<DriverApi> driver = load_driver();
    if (!driver.is_ok()) GTEST_SKIP() << driver.status().message();
    driver_ = driver.value();
    const Result<NvrtcApi> nvrtc = load_nvrtc(TENCACHE_NVRTC);
    if (!nvrtc.is_ok()) GTEST_SKIP() << nvrtc.status().message();
    nvrtc_ = nvrtc.value();
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(driver_, 0);
    if (!gpu.is_ok()) GTEST_SKIP() << gpu.status().message();
    gpu_ = std::move(gpu).value();
    scope_.emplace(driver_, gpu_->context());
    ASSERT_TRUE(scope_->status().is_ok()) << scope_->status().message();
  }

  void expect_success(CUresult result, const char* what) {
    const Status status = cuda_status(driver_, result, what);
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  int compute_capability() {
    int major = 0;
    int minor = 0;
    expect_success(driver_.cuDeviceGetAttribute(
                       &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu_->device()),
                   "capability");
    expect_success(driver_.cuDeviceGetAttribute(
                       &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu_->device()),
                   "capability");
    return major * 10 + minor;
  }
  CUstream make_stream() {
    CUstream stream = nullptr;
    expect_success(driver_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
                   "a stream");
    return stream;
  }

  DriverApi driver_;
  NvrtcApi nvrtc_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<CallScope> scope_;
};

DeviceHash hash_on_host(const DeviceHashSeeds& seeds, const std::vector<char>& data,
                        uint64_t bytes) {
  HashSums sums = {};
  HashJob job = make_hash_job(seeds);
  job.data = reinterpret_cast<const unsigned char*>(data.data());
  job.bytes = bytes;
  job.sums = &sums;
  run_hash_block(job, 0, 1);
  return finish_hash(seeds, bytes, {&sums, 1});
}

TEST_F(GpuCoreTest, TheDeviceHashesAsTheHostDoes) {
  const Result<DeviceHashSeeds> seeds = draw_hash_seeds();
  ASSERT_TRUE(seeds.is_ok());
  Result<std::unique_ptr<DeviceHasher>> hasher = DeviceHasher::create(*gpu_, nvrtc_, seeds.value());
  ASSERT_TRUE(hasher.is_ok()) << hasher.status().message();
  StreamMarks marks(*gpu_);
  CudaEngineConfig config;
  config.budget_bytes = 256 * kMiB;
  config.probe_bytes = 0;
  Result<std::unique_ptr<CudaEngine>> engine = CudaEngine::create(driver_, config);
  ASSERT_TRUE(engine.is_ok()) << engine.status().message();
  CUstream stream = make_stream();
  constexpr uint64_t kBytes = 64 * kMiB;
  const Result<void*> memory = engine.value()->allocate(kBytes, stream);
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  const auto address = reinterpret_cast<CUdeviceptr>(memory.value());
  std::vector<char> data(kBytes);
  Random().fill(data.data(), kBytes);
  expect_success(driver_.cuMemcpyHtoDAsync(address, data.data(), kBytes, stream), "a copy");
  for (const uint64_t bytes : {kBytes, kBytes - 4, 2 * kMiB + 60, uint64_t{512}, uint64_t{4}}) {
    const Result<PendingHash> pending = hasher.value()->hash(stream, address, bytes);
    ASSERT_TRUE(pending.is_ok()) << pending.status().message();
    const Result<StreamMark> mark = marks.make(stream);
    ASSERT_TRUE(mark.is_ok() && mark.value().wait().is_ok());
    EXPECT_EQ(pending.value().value(), hash_on_host(seeds.value(), data, bytes)) << bytes;
  }
  engine.value()->free(memory.value());
  expect_success(driver_.cuStreamDestroy(stream), "a stream");
}

// What a tensor holds is base + factor * i at word i: adding one to another stays of that kind.
struct Words {
  unsigned base = 0;
  unsigned factor = 0;
};

TEST_F(GpuCoreTest, TensorsOfManyTimesTheBudgetHoldTheirBytes) {
  constexpr uint64_t kBytes = 24 * kMiB;
  constexpr uint64_t kCount = kBytes / sizeof(unsigned);
  constexpr unsigned kTensors = 48;
  constexpr unsigned kRounds = 6;
  CudaEngineConfig config;
  config.budget_bytes = 10 * kBytes;
  config.nvrtc = nvrtc_;
  config.host.emplace();
  config.host->budget_bytes = 4 * kGiB;
  config.probe_bytes = 64 * kMiB;
  Result<std::unique_ptr<CudaEngine>> created = CudaEngine::create(driver_, config);
  ASSERT_TRUE(created.is_ok()) << created.status().message();
  CudaEngine& engine = *created.value();
  const Result<CompiledKernel> kernel =
      compile_kernel(nvrtc_, {kAddKernelName, kAddKernelText, compute_capability()});
  ASSERT_TRUE(kernel.is_ok()) << kernel.status().message();
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  expect_success(driver_.cuModuleLoadData(&module, kernel.value().image.data()), "a module");
  expect_success(driver_.cuModuleGetFunction(&add, module, kAddKernelName), "a kernel");

  const std::array<CUstream, 2> streams = {make_stream(), make_stream()};
  const uint32_t op = engine.recorder().register_op("test::add");
  std::vector<CUdeviceptr> tensors;
  std::vector<Words> model(kTensors);
  for (unsigned index = 0; index < kTensors; ++index) {
    const Result<void*> memory = engine.allocate(kBytes, streams[0]);
    ASSERT_TRUE(memory.is_ok()) << memory.status().message();
    tensors.push_back(reinterpret_cast<CUdeviceptr>(memory.value()));
    const Access access = {memory.value(), AccessMode::kWrite};
    engine.open_op(op, {&access, 1}, streams[0]);
    expect_success(driver_.cuMemsetD8Async(tensors[index], static_cast<unsigned char>(index),
                                           kBytes, streams[0]),
                   "a set");
    engine.gate().close();
    model[index].base = index * 0x01010101u;
  }
  // The second stream begins when all are set; then each tensor has one stream.
  expect_success(driver_.cuStreamSynchronize(streams[0]), "a wait");
  for (unsigned round = 0; round < kRounds; ++round) {
    for (unsigned index = 0; index + 2 < kTensors; ++index) {
      const unsigned source = index;
      const unsigned target = index + 2;  // of the same parity
      CUstream stream = streams[index % 2];
      const std::array<Access, 2> accesses = {
          Access{reinterpret_cast<void*>(tensors[target]), AccessMode::kReadWrite},
          Access{reinterpret_cast<void*>(tensors[source]), AccessMode::kRead}};
      engine.open_op(op, accesses, stream);
      unsigned more = round * 100 + index;
      unsigned long long count = kCount;
      std::array<void*, 4> parameters = {&tensors[target], &tensors[source], &more, &count};
      expect_success(
          driver_.cuLaunchKernel(add, 512, 1, 1, 256, 1, 1, 0, stream, parameters.data(), nullptr),
          "a kernel");
      engine.gate().close();
      model[target].base += model[source].base + more;
      model[target].factor += model[source].factor + 1;
    }
  }
  std::vector<unsigned> words(kCount);
  for (unsigned index = 0; index < kTensors; ++index) {
    CUstream stream = streams[index % 2];
    const Access access = {reinterpret_cast<void*>(tensors[index]), AccessMode::kRead};
    engine.open_op(op, {&access, 1}, stream);
    expect_success(driver_.cuMemcpyDtoHAsync(words.data(), tensors[index], kBytes, stream),
                   "a copy");
    engine.gate().close();
    expect_success(driver_.cuStreamSynchronize(stream), "the stream");
    uint64_t differing = 0;
    for (uint64_t word = 0; word < kCount; ++word) {
      const unsigned expected =
          model[index].base + model[index].factor * static_cast<unsigned>(word);
      differing += words[word] != expected ? 1 : 0;
    }
    EXPECT_EQ(differing, 0u) << "tensor " << index;
  }
  EXPECT_GT(engine.stats().evicted_bytes, kTensors * kBytes);
  EXPECT_EQ(engine.stats().over_budget_events, 0u);
  EXPECT_LE(engine.stats().peak_device_bytes, config.budget_bytes);
  for (const CUdeviceptr tensor : tensors) engine.free(reinterpret_cast<void*>(tensor));
  for (CUstream stream : streams) expect_success(driver_.cuStreamDestroy(stream), "a stream");
  expect_success(driver_.cuModuleUnload(module), "a module");
}

}  // namespace
}  // namespace tencache
