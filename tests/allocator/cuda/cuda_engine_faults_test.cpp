// SPDX-License-Identifier: Apache-2.0
//
// Every function of the driver is refused once, at many moments of a small program that allocates,
// spills, fetches and frees. A refused call costs at most an eviction or a fetch ahead, or is tried
// again; an allocation may fail with a Status. No kernel reads wrong bytes, nothing hangs, and the
// books agree at the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 2 * kMiB;
constexpr uint64_t kTensors = 6;
constexpr uint64_t kLargeBytes = 3 * kBytes;  // of the first tensor: two handles
constexpr uint64_t kBudgetBytes = kLargeBytes + 3 * kBytes;

uint64_t bytes_of(uint64_t index) { return index == 0 ? kLargeBytes : kBytes; }

struct Fault {
  const char* function;
  CUresult result;
  bool may_leak = false;
};

const Fault kFaults[] = {
    {"cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY},
    {"cuMemMap", CUDA_ERROR_UNKNOWN},
    {"cuMemSetAccess", CUDA_ERROR_UNKNOWN},
    {"cuMemUnmap", CUDA_ERROR_UNKNOWN},
    {"cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY},
    {"cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY},
    {"cuEventRecord", CUDA_ERROR_UNKNOWN},
    {"cuEventQuery", CUDA_ERROR_UNKNOWN},
    {"cuEventSynchronize", CUDA_ERROR_UNKNOWN},
    {"cuStreamWaitEvent", CUDA_ERROR_UNKNOWN},
    {"cuStreamIsCapturing", CUDA_ERROR_UNKNOWN},
    {"cuStreamSynchronize", CUDA_ERROR_UNKNOWN},
    {"cuMemcpyDtoHAsync", CUDA_ERROR_UNKNOWN},
    {"cuMemcpyHtoDAsync", CUDA_ERROR_UNKNOWN},
    {"cuLaunchKernel", CUDA_ERROR_UNKNOWN},
    {"cuCtxGetCurrent", CUDA_ERROR_UNKNOWN, true},
    {"cuThreadExchangeStreamCaptureMode", CUDA_ERROR_UNKNOWN, true},
};

class FaultyProgram {
 public:
  explicit FaultyProgram(TestCudaEngine& engine)
      : engine_(engine), stream_(engine.make_stream()), other_(engine.make_stream()) {}

  void run() {
    for (uint64_t index = 0; index < kTensors; ++index) allocate(index);
    for (int round = 0; round < 2; ++round) {
      for (char* tensor : tensors_) engine_.evict(tensor);
      std::vector<const void*> ahead(tensors_.begin(), tensors_.end());
      ahead.resize(ahead.size() / 2);
      engine_.prefetch(ahead);
      for (uint64_t index = 0; index < tensors_.size(); ++index) {
        const uint64_t seed = seeds_[index];
        engine_.check(round == 0 ? stream_ : other_, tensors_[index], bytes_of(seed), seed);
      }
      engine_.wait_until_idle();  // the next round uses another stream, and no eviction need wait
    }
    // As far as the allocator knows, another stream may still use the tensors that are freed. The
    // next tensor takes handles of several of them.
    for (char* tensor : tensors_) engine_.free(tensor);
    const Result<void*> large = engine_->allocate(5 * kBytes, stream_);
    if (large.is_ok()) engine_.free(large.value());
    engine_->heap().drop_cached(~uint64_t{0});
  }

 private:
  void allocate(uint64_t seed) {
    const Result<void*> address = engine_->allocate(bytes_of(seed), stream_);
    if (!address.is_ok()) {
      EXPECT_FALSE(address.status().message().empty());
      return;
    }
    tensors_.push_back(static_cast<char*>(address.value()));
    seeds_.push_back(seed);
    engine_.write(stream_, tensors_.back(), bytes_of(seed), seed);
  }

  TestCudaEngine& engine_;
  CUstream stream_;
  CUstream other_;
  std::vector<char*> tensors_;
  std::vector<uint64_t> seeds_;
};

class CudaEngineFaultsTest : public ::testing::TestWithParam<Fault> {};

void refuse_one_after_another(const Fault& fault, const TestCudaEngine::Adjust& adjust) {
  for (uint64_t nth = 1;; nth += kHasSanitizer ? 2 * nth : std::max<uint64_t>(1, nth / 4)) {
    SCOPED_TRACE(std::string(fault.function) + " #" + std::to_string(nth));
    TestCudaEngine engine(adjust);
    // The call that fails may be the one that gives an object back, and then the driver keeps the
    // object.
    if (fault.may_leak) engine.allow_leaks();
    FaultyProgram program(engine);
    const uint64_t before = engine.driver().calls(fault.function);
    engine.driver().fail(fault.function, nth, fault.result);
    program.run();
    const bool is_hit = engine.driver().calls(fault.function) >= before + nth;
    EXPECT_EQ(engine.check_books(), "");
    if (::testing::Test::HasFailure() || !is_hit) break;
  }
}

TEST_P(CudaEngineFaultsTest, OneRefusedCallChangesNoBit) {
  refuse_one_after_another(GetParam(),
                           [](CudaEngineConfig& config) { config.budget_bytes = kBudgetBytes; });
}

// Host memory holds half of the bytes that leave.
TEST_P(CudaEngineFaultsTest, OneRefusedCallChangesNoBitWithADiskBelow) {
  const TestDirectory directory;
  refuse_one_after_another(GetParam(), [&](CudaEngineConfig& config) {
    config.budget_bytes = kBudgetBytes;
    config.host->budget_bytes = kLargeBytes + kBytes;
    config.host_headroom = 0;
    config.disk.emplace();
    config.disk->directory = directory.path();
    config.disk->quota_bytes = 64 * kMiB;
  });
}

INSTANTIATE_TEST_SUITE_P(Functions, CudaEngineFaultsTest, ::testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.function); });

// The context breaks under the allocator, as by a kernel's fault. That gives errors, and no hang.
TEST(CudaEngineBrokenContextTest, EndsWithErrors) {
  for (int moment = 0; moment < 4; ++moment) {
    SCOPED_TRACE(moment);
    TestCudaEngine engine([](CudaEngineConfig& config) { config.budget_bytes = kBudgetBytes; });
    engine.expect_failed_context();
    const CUstream stream = engine.make_stream();
    std::vector<char*> tensors;
    for (uint64_t index = 0; index < 3; ++index) {
      tensors.push_back(engine.allocate(kBytes, stream));
      engine.write(stream, tensors.back(), kBytes, index);
    }
    if (moment >= 1) engine.evict(tensors[0]);
    if (moment >= 2) engine.prefetch({tensors[0]});
    if (moment >= 3) engine.check(stream, tensors[0], kBytes, 0);
    engine.wait_until_idle();
    engine.driver().fail_context(CUDA_ERROR_ILLEGAL_ADDRESS);
    for (char* tensor : tensors) {
      engine.op(stream, {{tensor, kBytes, 0, true}});
      engine.evict(tensor);
    }
    const Result<void*> refused = engine->allocate(3 * kBytes, stream);
    EXPECT_FALSE(refused.is_ok());
    for (char* tensor : tensors) engine.free(tensor);
  }
}

}  // namespace
}  // namespace tencache
