// SPDX-License-Identifier: Apache-2.0
//
// A random program over the simulated driver against a model: streams that come and go, ops, frees,
// evictions and fetches in any order, while another thread evicts and fetches at will. Some runs
// give a new stream the handle of an old one. Some have far too little host memory and a disk below
// it. Every kernel checks the bytes it reads; one that touches unmapped memory would fail the
// context, and a call that names a destroyed stream would end the process. The model orders its own
// streams as a correct program does; everything else is the allocator's affair.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/cuda/simulated_cufile.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/function_uses.h"
#include "support/listed_requests.h"
#include "support/random.h"
#include "support/test_directory.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

constexpr size_t kTensorsMax = 16;
constexpr size_t kStreams = 3;
constexpr int kSteps = kHasSanitizer ? 80 : 250;

struct Tensor {
  char* address = nullptr;
  uint64_t bytes = 0;
  uint64_t seed = 0;
  std::set<CUstream> users;  // since its last write, the writer included
};

class RandomProgram {
 public:
  RandomProgram(TestCudaEngine& engine, uint64_t generator) : engine_(engine), random_(generator) {
    for (size_t index = 0; index < kStreams; ++index) streams_.push_back(engine_.make_stream());
  }

  /// Allocates more than `held_bytes` at first, so that some tensors have to leave, and uses each,
  /// so that they come back, however few the steps are.
  void run(uint64_t held_bytes, int steps) {
    for (uint64_t bytes = 0; bytes <= held_bytes; bytes += tensors_.back().bytes) allocate();
    for (size_t index = 0; index < tensors_.size(); ++index) use(any_stream(), {index}, false);
    for (int step = 0; step < steps; ++step) {
      const uint64_t draw = random_.between(0, 99);
      if (tensors_.empty() || (draw < 12 && tensors_.size() < kTensorsMax)) {
        allocate();
      } else if (draw < 20) {
        free_one();
      } else if (draw < 50) {
        op(true);
      } else if (draw < 90) {
        op(false);
      } else if (draw < 93) {
        evict();
      } else if (draw < 96) {
        prefetch();
      } else if (draw < 98) {
        replace_stream();
      } else if (draw == 98) {
        record_stream();
      } else {
        engine_.wait_until_idle();
      }
    }
    while (!tensors_.empty()) free_one();
  }

 private:
  CUstream any_stream() { return streams_[random_.between(0, kStreams - 1)]; }
  size_t any_tensor() { return random_.between(0, tensors_.size() - 1); }

  void allocate() {
    Tensor tensor;
    tensor.bytes = random_.chance(0.2)   ? random_.between(8, 2 * kMiB - 8) / 8 * 8
                   : random_.chance(0.7) ? 2 * kMiB
                                         : random_.between(3, 6) * kMiB;
    const CUstream stream = any_stream();
    tensor.address = engine_.allocate(tensor.bytes, stream);
    tensors_.push_back(tensor);
    use(stream, {tensors_.size() - 1}, true);
  }

  void free_one() {
    const size_t index = any_tensor();
    engine_.free(tensors_[index].address);
    tensors_[index] = tensors_.back();
    tensors_.pop_back();
  }

  void op(bool writes) {
    std::set<size_t> named;
    for (uint64_t count = random_.between(1, 3); count > 0; --count) named.insert(any_tensor());
    use(any_stream(), named, writes);
  }

  // Uses the named tensors in one op. With `writes`, the op writes the first one.
  void use(CUstream stream, const std::set<size_t>& named, bool writes) {
    std::vector<KernelUse> uses;
    for (const size_t index : named) {
      Tensor& tensor = tensors_[index];
      for (const CUstream user : tensor.users) {
        if (user != stream) engine_.order(user, stream);
      }
      if (writes) {
        tensor.seed = ++seed_;
        tensor.users.clear();
      }
      tensor.users.insert(stream);
      // The gate tells the allocator which streams use an extent, but not which use a small block.
      if (engine_.extent(tensor.address) == nullptr) {
        engine_.device().record_stream(tensor.address, stream);
      }
      uses.push_back({tensor.address, tensor.bytes, tensor.seed, writes});
      writes = false;
    }
    const auto duration = random_.chance(0.1) ? random_.between(1, 400) : 0;
    engine_.op(stream, uses, std::chrono::microseconds(duration));
  }

  void evict() {
    std::vector<Extent*> extents;
    for (const Tensor& tensor : tensors_) {
      Extent* extent = engine_.extent(tensor.address);
      if (extent != nullptr && random_.chance(0.4)) extents.push_back(extent);
    }
    engine_->mover()->evict(extents);
  }

  void prefetch() {
    std::vector<const void*> addresses;
    for (const Tensor& tensor : tensors_) {
      const bool is_extent = engine_.extent(tensor.address) != nullptr;
      if (is_extent && random_.chance(0.3)) addresses.push_back(tensor.address);
    }
    engine_.prefetch(addresses);
  }

  // The tensors that the old stream used count as the heir's, which is ordered after it.
  void replace_stream() {
    const size_t old = random_.between(0, kStreams - 1);
    const CUstream gone = streams_[old];
    const CUstream heir = streams_[(old + 1) % kStreams];
    engine_.order(gone, heir);
    for (Tensor& tensor : tensors_) {
      if (tensor.users.erase(gone) > 0) tensor.users.insert(heir);
    }
    engine_.destroy_stream(gone);
    streams_[old] = engine_.make_stream();
  }

  void record_stream() {
    const Tensor& tensor = tensors_[any_tensor()];
    engine_.device().record_stream(tensor.address + tensor.bytes / 2, any_stream());
  }

  TestCudaEngine& engine_;
  Random random_;
  std::vector<CUstream> streams_;
  std::vector<Tensor> tensors_;
  uint64_t seed_ = 0;
};

/// Evicts and fetches any extents until told to stop. It does not evict where host memory is
/// scarce: blocks that it holds for a moment would make an allocation of the program fail.
void meddle(TestCudaEngine& engine, const std::atomic<bool>& is_done, uint64_t generator) {
  const bool may_evict = engine.device().disk() == nullptr;
  Random random(generator);
  std::unique_ptr<FunctionUses> followed;
  while (!is_done.load()) {
    std::vector<Extent*> some;
    std::vector<MoveRequest> requests;
    for (const ListedExtent& listed : engine->heap().extents()) {
      if (!random.chance(0.3)) continue;
      some.push_back(listed.extent);
      requests.push_back({listed.extent, listed.extent->id.load(), listed.bytes, ~uint64_t{0}});
    }
    if (random.chance(0.2)) {  // like a plan that is followed, it decides what is on disk
      std::unordered_map<const Extent*, uint64_t> uses;
      for (const Extent* extent : some) uses[extent] = random.between(1, 1'000);
      auto next = std::make_unique<FunctionUses>([uses = std::move(uses)] { return uses; });
      engine->mover()->set_next_uses(next.get());
      followed = std::move(next);
    }
    Mover& mover = *engine->mover();
    if (random.chance(0.5) && may_evict) {
      if (random.chance(0.5)) {
        mover.evict(some);
      } else {
        ListedEvictions source(requests);
        mover.evict_requested(source);
      }
    } else if (!mover.ledger().is_demanded()) {
      // No op waits for room now. If one did, the fetch would take the room from it.
      ListedRequests listed(requests);
      mover.prefetch(listed);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 8'000)));
  }
  engine->mover()->set_next_uses(nullptr);
}

class CudaEngineFuzzTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(CudaEngineFuzzTest, EveryKernelReadsWhatWasWritten) {
  const uint64_t generator = GetParam();
  const TestDirectory directory;
  // With a disk below, host memory holds a fraction of the bytes that leave.
  const bool has_disk = generator >= 8;
  // With a link of limited speed, the faster of copy engines and kernel is found by measuring.
  const bool has_slow_link = generator % 4 == 3;
  const bool has_nvrtc = generator % 5 != 4;
  const bool reads_directly = has_disk && has_nvrtc && generator % 4 >= 2;
  SimulatedCuFile cufile;
  SimulatedDriverConfig driver = {.reuses_stream_handles = generator % 2 == 1};
  if (has_slow_link) driver.to_device_bytes_per_s = driver.to_host_bytes_per_s = 8 * kGiB;
  TestCudaEngine engine(
      [&](CudaEngineConfig& config) {
        if (has_disk) {
          config.host->budget_bytes = (generator % 2 == 0 ? 8 : 14) * kMiB;
          config.host_headroom = generator % 3 == 0 ? 0 : 0.25;
          config.disk.emplace();
          config.disk->directory = directory.path();
          config.disk->quota_bytes = 256 * kMiB;
          if (reads_directly) config.cufile = cufile.api();
        }
        if (has_slow_link) config.probe_bytes = 2 * kMiB;
        config.budget_bytes = (generator % 2 == 0 ? 16 : 28) * kMiB;
        // Some runs have no compiler for the hash. With chaos, the end of about one op in ten
        // evicts every extent that may leave.
        if (!has_nvrtc) config.nvrtc.reset();
        if (generator % 3 == 0) config.chaos = ChaosConfig{generator, 0.1};
      },
      driver, has_slow_link);
  std::atomic<bool> is_done{false};
  std::jthread meddler([&] { meddle(engine, is_done, 1'000 + generator); });
  RandomProgram program(engine, generator);
  program.run(engine->budget().limit() + (has_disk ? engine.device().host()->budget_bytes() : 0),
              kSteps);
  is_done = true;
  meddler.join();
  EXPECT_EQ(engine.check_books(), "");
  EXPECT_EQ(engine.differences(), 0u);
  EXPECT_GT(engine.stats().evicted_bytes, 0u);
  EXPECT_GT(engine.stats().early_fetches + engine.stats().late_fetches, 0u);
  if (has_disk) {
    EXPECT_GT(engine.stats().disk_written_bytes, 0u);
    EXPECT_GT(engine.stats().disk_read_bytes, 0u);
    EXPECT_EQ(cufile.calls("read") > 0, reads_directly);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaEngineFuzzTest, ::testing::Range(uint64_t{0}, uint64_t{16}));

}  // namespace
}  // namespace tencache
