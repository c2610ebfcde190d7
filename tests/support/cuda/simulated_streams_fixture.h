// SPDX-License-Identifier: Apache-2.0
//
// SimulatedStreamsFixture: a simulated driver with a current context, and helpers that make streams
// and events and give them back at the end. Unless the context has failed, nothing may be left
// then. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"

namespace tencache {

class SimulatedStreamsFixture : public ::testing::Test {
 protected:
  ~SimulatedStreamsFixture() override {
    for (const CUevent event : events_) api().cuEventDestroy(event);
    for (const CUstream stream : streams_) api().cuStreamDestroy(stream);
    context_.reset();
    if (driver_.has_value() && !has_failed_) {
      EXPECT_EQ(driver_->leaks(), "");
    }
  }

  void start(const SimulatedDriverConfig& config = {}) {
    driver_.emplace(config);
    context_.emplace(api());
  }
  const DriverApi& api() { return driver_->api(); }

  CUstream stream() {
    CUstream made = nullptr;
    EXPECT_EQ(api().cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return streams_.emplace_back(made);
  }
  CUevent event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent made = nullptr;
    EXPECT_EQ(api().cuEventCreate(&made, flags), CUDA_SUCCESS);
    return events_.emplace_back(made);
  }
  CUevent record(CUstream stream) {
    const CUevent made = event();
    EXPECT_EQ(api().cuEventRecord(made, stream), CUDA_SUCCESS);
    return made;
  }
  void launch(CUstream stream, std::function<void()> kernel) {
    launch(stream, std::chrono::milliseconds(0), std::move(kernel));
  }
  void launch(CUstream stream, std::chrono::nanoseconds duration, std::function<void()> kernel) {
    EXPECT_EQ(driver_->launch(stream, {}, std::move(kernel), duration), CUDA_SUCCESS);
  }
  void synchronize(CUstream stream) { EXPECT_EQ(api().cuStreamSynchronize(stream), CUDA_SUCCESS); }
  double elapsed_ms(CUevent begin, CUevent end) {
    float elapsed = 0;
    EXPECT_EQ(api().cuEventElapsedTime(&elapsed, begin, end), CUDA_SUCCESS);
    return elapsed;
  }
  // Expects that the context has failed with an illegal address, and that every call says so.
  void expect_illegal_address(CUstream stream) {
    has_failed_ = true;
    CUdeviceptr address = 0;
    driver_->wait_until_idle();
    EXPECT_EQ(api().cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(api().cuStreamQuery(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(api().cuMemAddressReserve(&address, 2 * kMiB, 0, 0, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(driver_->launch(stream, {}, [] {}), CUDA_ERROR_ILLEGAL_ADDRESS);
  }

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
  bool has_failed_ = false;
};

}  // namespace tencache
