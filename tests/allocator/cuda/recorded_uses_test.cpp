// SPDX-License-Identifier: Apache-2.0
//
// A tensor of which the program has announced that a stream uses it (record_stream), while that
// stream is far ahead of the GPU: whoever wants the tensor waits for no more than its bytes.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/cuda/test_cuda_engine.h"
#include "support/eventually.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 4 * kMiB;

class RecordedUsesTest : public ::testing::Test {
 protected:
  RecordedUsesTest() {
    tensor_ = engine_.allocate(kBytes, stream_);
    busy_ = engine_.allocate(kBytes, stream_);
    engine_.write(stream_, tensor_, kBytes, 1);
    engine_.device().record_stream(tensor_, stream_);
    engine_.wait_until_idle();
  }
  /// Gives the stream work that does not end before let_go(), while the tensor is copied.
  void hold_during_copy() {
    ASSERT_TRUE(eventually([&] { return copies() > copies_before_; }));
    engine_.driver().hold(stream_);
    EXPECT_EQ(engine_.driver().launch(stream_, {{reinterpret_cast<CUdeviceptr>(busy_), kBytes}},
                                      [] {}, {}),
              CUDA_SUCCESS);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the copy takes 60 ms
  }
  uint64_t copies() { return engine_.driver().calls("cuMemcpyDtoHAsync"); }

  TestCudaEngine engine_{
      [](CudaEngineConfig& config) {
        config.budget_bytes = 64 * kMiB;
        config.probe_bytes = 16 * kMiB;
      },
      SimulatedDriverConfig{.to_device_bytes_per_s = 64 * kMiB, .to_host_bytes_per_s = 64 * kMiB}};
  CUstream stream_ = engine_.make_stream();
  char* tensor_ = nullptr;
  char* busy_ = nullptr;
  const uint64_t copies_before_ = copies();
};

TEST_F(RecordedUsesTest, AnOpOfAnotherStreamCallsTheEvictionOff) {
  std::jthread eviction([&] { (void)engine_.evict(tensor_); });
  hold_during_copy();
  const CUstream other = engine_.make_stream();
  engine_.check(other, tensor_, kBytes, 1);
  engine_.driver().let_go();
  eviction.join();
  engine_.check(stream_, tensor_, kBytes, 1);
  EXPECT_EQ(engine_.differences(), 0u);
  for (char* address : {tensor_, busy_}) engine_.free(address);
  EXPECT_EQ(engine_.check_books(), "");
}

TEST_F(RecordedUsesTest, AFreeDoesNotWait) {
  std::jthread eviction([&] { (void)engine_.evict(tensor_); });
  hold_during_copy();
  engine_.free(tensor_);
  engine_.driver().let_go();
  eviction.join();
  engine_.free(busy_);
  EXPECT_EQ(engine_.check_books(), "");
}

}  // namespace
}  // namespace tencache
