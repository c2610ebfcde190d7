// SPDX-License-Identifier: Apache-2.0
//
// The core on a real GPU: these tests show what the suites over the simulated driver cannot. The
// kernel that hashes device memory is compiled for this GPU and must agree with the host. Tensors
// of several times the budget leave and come back while kernels read and write them on two streams,
// and must match a model on the host. The tests are skipped, with the reason, if there is no
// driver, GPU or NVRTC.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/cuda_device.h"
#include "engine/engine.h"
#include "platform/cuda/call_scope.h"
#include "platform/cuda/device_hash.h"
#include "platform/cuda/device_hasher.h"
#include "platform/cuda/driver_api.h"
#include "platform/cuda/nvrtc_api.h"
#include "platform/cuda/stream_mark.h"
#include "support/cuda/hash_block.h"
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
  CudaDeviceConfig config;
  config.budget_bytes = 256 * kMiB;
  config.probe_bytes = 0;
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(driver_, config);
  ASSERT_TRUE(device.is_ok()) << device.status().message();
  Result<std::unique_ptr<Engine>> created = Engine::create({}, std::move(device).value());
  ASSERT_TRUE(created.is_ok()) << created.status().message();
  std::unique_ptr<Engine> engine = std::move(created).value();
  CUstream stream = make_stream();
  constexpr uint64_t kBytes = 64 * kMiB;
  const Result<void*> memory = engine->allocate(kBytes, stream);
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
  engine->free(memory.value());
  engine.reset();  // it may ask about the streams it has seen
  expect_success(driver_.cuStreamDestroy(stream), "a stream");
}

// The words of a tensor: word i holds base + factor * i. Sums of such tensors have the same form.
struct Words {
  unsigned base = 0;
  unsigned factor = 0;
};

class GpuEngineTest : public GpuCoreTest {
 protected:
  static constexpr uint64_t kBytes = 24 * kMiB;  // per tensor
  static constexpr uint64_t kCount = kBytes / sizeof(unsigned);
  static constexpr uint64_t kBudgetBytes = 10 * kBytes;
  static constexpr unsigned kTensors = 48;

  void SetUp() override {
    GpuCoreTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    CudaDeviceConfig config;
    config.budget_bytes = kBudgetBytes;
    config.nvrtc = nvrtc_;
    config.host.emplace();
    config.host->budget_bytes = 4 * kGiB;
    config.probe_bytes = 64 * kMiB;
    Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(driver_, config);
    ASSERT_TRUE(device.is_ok()) << device.status().message();
    Result<std::unique_ptr<Engine>> created = Engine::create({}, std::move(device).value());
    ASSERT_TRUE(created.is_ok()) << created.status().message();
    engine_ = std::move(created).value();
    const Result<CompiledKernel> kernel =
        compile_kernel(nvrtc_, {kAddKernelName, kAddKernelText, compute_capability()});
    ASSERT_TRUE(kernel.is_ok()) << kernel.status().message();
    expect_success(driver_.cuModuleLoadData(&module_, kernel.value().image.data()), "a module");
    expect_success(driver_.cuModuleGetFunction(&add_, module_, kAddKernelName), "a kernel");
    streams_ = {make_stream(), make_stream()};
    op_ = engine_->recorder().register_op("test::add");
  }
  void TearDown() override {
    if (engine_ == nullptr) return;
    for (const CUdeviceptr tensor : tensors_) engine_->free(reinterpret_cast<void*>(tensor));
    engine_.reset();  // it may ask about the streams it has seen
    for (CUstream stream : streams_) expect_success(driver_.cuStreamDestroy(stream), "a stream");
    expect_success(driver_.cuModuleUnload(module_), "a module");
  }

  // All tensors are made on the first stream. After that, the parity of a tensor's index chooses
  // the stream.
  CUstream stream_of(unsigned index) const { return streams_[index % 2]; }
  Access access(unsigned index, AccessMode mode) const {
    return {reinterpret_cast<void*>(tensors_[index]), mode};
  }

  void make(unsigned index) {
    const Result<void*> memory = engine_->allocate(kBytes, streams_[0]);
    ASSERT_TRUE(memory.is_ok()) << memory.status().message();
    tensors_.push_back(reinterpret_cast<CUdeviceptr>(memory.value()));
    const Access write = access(index, AccessMode::kWrite);
    engine_->open_op(op_, {&write, 1}, streams_[0]);
    expect_success(driver_.cuMemsetD8Async(tensors_[index], static_cast<unsigned char>(index),
                                           kBytes, streams_[0]),
                   "a set");
    engine_->gate().close();
    model_.push_back({index * 0x01010101u, 0});
  }

  void add(unsigned target, unsigned source, unsigned more) {
    CUstream stream = stream_of(target);
    const std::array<Access, 2> accesses = {access(target, AccessMode::kReadWrite),
                                            access(source, AccessMode::kRead)};
    engine_->open_op(op_, accesses, stream);
    unsigned long long count = kCount;
    std::array<void*, 4> parameters = {&tensors_[target], &tensors_[source], &more, &count};
    expect_success(
        driver_.cuLaunchKernel(add_, 512, 1, 1, 256, 1, 1, 0, stream, parameters.data(), nullptr),
        "a kernel");
    engine_->gate().close();
    model_[target].base += model_[source].base + more;
    model_[target].factor += model_[source].factor + 1;
  }

  uint64_t differing_words(unsigned index) {
    std::vector<unsigned> words(kCount);
    const Access read = access(index, AccessMode::kRead);
    engine_->open_op(op_, {&read, 1}, stream_of(index));
    expect_success(
        driver_.cuMemcpyDtoHAsync(words.data(), tensors_[index], kBytes, stream_of(index)),
        "a copy");
    engine_->gate().close();
    expect_success(driver_.cuStreamSynchronize(stream_of(index)), "the stream");
    uint64_t differing = 0;
    for (uint64_t word = 0; word < kCount; ++word) {
      const unsigned expected =
          model_[index].base + model_[index].factor * static_cast<unsigned>(word);
      differing += words[word] != expected ? 1 : 0;
    }
    return differing;
  }

  std::unique_ptr<Engine> engine_;
  CUmodule module_ = nullptr;
  CUfunction add_ = nullptr;
  std::array<CUstream, 2> streams_ = {};
  uint32_t op_ = 0;
  std::vector<CUdeviceptr> tensors_;
  std::vector<Words> model_;
};

TEST_F(GpuEngineTest, TensorsOfManyTimesTheBudgetHoldTheirBytes) {
  constexpr unsigned kRounds = 6;
  for (unsigned index = 0; index < kTensors; ++index) make(index);
  expect_success(driver_.cuStreamSynchronize(streams_[0]), "a wait");
  for (unsigned round = 0; round < kRounds; ++round) {
    // Both tensors have the same parity, and so the same stream.
    for (unsigned index = 0; index + 2 < kTensors; ++index) {
      add(index + 2, index, round * 100 + index);
    }
  }
  for (unsigned index = 0; index < kTensors; ++index) {
    EXPECT_EQ(differing_words(index), 0u) << "tensor " << index;
  }
  EXPECT_GT(engine_->stats().evicted_bytes, kTensors * kBytes);
  EXPECT_EQ(engine_->stats().over_budget_events, 0u);
  EXPECT_LE(engine_->stats().peak_device_bytes, kBudgetBytes);
}

}  // namespace
}  // namespace tencache
