// SPDX-License-Identifier: Apache-2.0
//
// Random programs for the simulated driver: copies in all directions, memsets and kernels over a
// few buffers, on several streams that only events order. The model does each step at once on plain
// memory; at the end every byte must be the same. A step waits for the last use of each buffer it
// names, so any lost or reordered work shows.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/random.h"

namespace tencache {
namespace {

constexpr uint64_t kBytes = 64 * kKiB;
constexpr size_t kStreamCount = 4;
constexpr size_t kBufferCount = 5;  // of the device, and as many of the host
constexpr int kStepCount = 600;

// One buffer, its model, and the moment of its last use.
struct Tracked {
  std::unique_ptr<DeviceBuffer> device;
  std::unique_ptr<PinnedBuffer> host;
  std::vector<char> model = std::vector<char>(kBytes);
  CUevent last_use = nullptr;

  char* data() const { return device != nullptr ? device->data() : host->data(); }
};

class RandomProgram {
 public:
  RandomProgram(SimulatedDriver& driver, Random& random)
      : driver_(driver), api_(driver.api()), random_(random), buffers_(2 * kBufferCount) {
    for (size_t index = 0; index < buffers_.size(); ++index) {
      Tracked& buffer = buffers_[index];
      if (index < kBufferCount) {
        buffer.device = std::make_unique<DeviceBuffer>(api_, 2 * kMiB);
      } else {
        buffer.host = std::make_unique<PinnedBuffer>(api_, kBytes);
      }
      random_.fill(buffer.model.data(), kBytes);
      memcpy(buffer.data(), buffer.model.data(), kBytes);
      EXPECT_EQ(api_.cuEventCreate(&buffer.last_use, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    }
    for (CUstream& stream : streams_) {
      EXPECT_EQ(api_.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    }
  }
  ~RandomProgram() {
    for (CUstream& stream : streams_) EXPECT_EQ(api_.cuStreamDestroy(stream), CUDA_SUCCESS);
    for (Tracked& buffer : buffers_) {
      EXPECT_EQ(api_.cuEventDestroy(buffer.last_use), CUDA_SUCCESS);
    }
  }
  RandomProgram(const RandomProgram&) = delete;
  RandomProgram& operator=(const RandomProgram&) = delete;

  void step() {
    CUstream& stream = streams_[random_.between(0, kStreamCount - 1)];
    if (random_.chance(0.02)) return replace(stream);
    if (random_.chance(0.03)) {
      EXPECT_EQ(api_.cuStreamSynchronize(stream), CUDA_SUCCESS);
      return;
    }
    Tracked& target = buffers_[random_.between(0, buffers_.size() - 1)];
    Tracked& source = buffers_[random_.between(0, buffers_.size() - 1)];
    const bool is_copy = random_.chance(0.7) && &source != &target &&
                         (source.device != nullptr || target.device != nullptr);
    wait_for(target, stream);
    if (is_copy) {
      wait_for(source, stream);
      copy(target, source, stream);
      EXPECT_EQ(api_.cuEventRecord(source.last_use, stream), CUDA_SUCCESS);
    } else if (target.device != nullptr) {
      random_.chance(0.5) ? set(target, stream) : add(target, stream);
    }
    EXPECT_EQ(api_.cuEventRecord(target.last_use, stream), CUDA_SUCCESS);
  }

  void expect_equal_to_model() {
    for (size_t index = 0; index < buffers_.size(); ++index) {
      EXPECT_EQ(api_.cuEventSynchronize(buffers_[index].last_use), CUDA_SUCCESS);
      EXPECT_EQ(memcmp(buffers_[index].data(), buffers_[index].model.data(), kBytes), 0)
          << "buffer " << index;
    }
  }

 private:
  struct Part {
    uint64_t begin;
    uint64_t bytes;
  };
  Part random_part() {
    const uint64_t begin = random_.between(0, kBytes - 1);
    return {begin, random_.between(1, kBytes - begin)};
  }

  // A new stream replaces one that may still have work to do.
  void replace(CUstream& stream) {
    EXPECT_EQ(api_.cuStreamDestroy(stream), CUDA_SUCCESS);
    EXPECT_EQ(api_.cuStreamCreateWithPriority(&stream, 0, 0), CUDA_SUCCESS);
  }
  void wait_for(const Tracked& buffer, CUstream stream) {
    EXPECT_EQ(api_.cuStreamWaitEvent(stream, buffer.last_use, 0), CUDA_SUCCESS);
  }
  void copy(Tracked& target, const Tracked& source, CUstream stream) {
    const auto [begin, bytes] = random_part();
    const auto to = reinterpret_cast<CUdeviceptr>(target.data() + begin);
    const auto from = reinterpret_cast<CUdeviceptr>(source.data() + begin);
    const CUresult result = source.host != nullptr
                                ? api_.cuMemcpyHtoDAsync(to, source.data() + begin, bytes, stream)
                            : target.host != nullptr
                                ? api_.cuMemcpyDtoHAsync(target.data() + begin, from, bytes, stream)
                                : api_.cuMemcpyDtoDAsync(to, from, bytes, stream);
    EXPECT_EQ(result, CUDA_SUCCESS);
    memcpy(target.model.data() + begin, source.model.data() + begin, bytes);
  }
  void set(Tracked& target, CUstream stream) {
    const auto [begin, bytes] = random_part();
    const auto value = static_cast<unsigned char>(random_.between(0, 255));
    EXPECT_EQ(api_.cuMemsetD8Async(target.device->address() + begin, value, bytes, stream),
              CUDA_SUCCESS);
    memset(target.model.data() + begin, value, bytes);
  }
  void add(Tracked& target, CUstream stream) {
    const auto [begin, bytes] = random_part();
    const auto kernel = [](char* memory, uint64_t count) {
      for (uint64_t index = 0; index < count; ++index) {
        memory[index] = static_cast<char>(memory[index] + 1);
      }
    };
    EXPECT_EQ(
        driver_.launch(
            stream, {{target.device->address() + begin, bytes}},
            [kernel, memory = target.data() + begin, count = bytes] { kernel(memory, count); },
            std::chrono::microseconds(random_.between(0, 200))),
        CUDA_SUCCESS);
    kernel(target.model.data() + begin, bytes);
  }

  SimulatedDriver& driver_;
  const DriverApi& api_;
  Random& random_;
  std::vector<Tracked> buffers_;
  CUstream streams_[kStreamCount] = {};
};

TEST(SimulatedDriverFuzzTest, ProgramsOrderedByEventsGiveWhatTheModelGives) {
  Random random;
  for (int round = 0; round < 4; ++round) {
    // The first round has no rates, the others have some; in the third one, copies to the host are
    // slower.
    SimulatedDriver driver({.to_device_bytes_per_s = round == 0 ? 0 : 2 * kGiB,
                            .to_host_bytes_per_s = round == 2 ? 256 * kMiB : kGiB * (round > 0),
                            .copy_latency_ns = random.between(0, 20'000)});
    {
      const CurrentContext context(driver.api());
      RandomProgram program(driver, random);
      for (int step = 0; step < kStepCount; ++step) program.step();
      program.expect_equal_to_model();
      EXPECT_EQ(driver.api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    }
    driver.wait_until_idle();
    EXPECT_EQ(driver.leaks(), "");
  }
}

}  // namespace
}  // namespace tencache
