// SPDX-License-Identifier: Apache-2.0
//
// Programs whose sizes change, over the simulated driver, where everything fits: a tensor that
// grows in a loop, caches that grow by a token, threads that serve requests of random shapes, and
// steps of random lengths. The GPU's memory that they take stays within 1.2 times what they have at
// most, and once they are warm the driver creates at most one handle in a hundred allocations. A
// random program proves by its bytes that no frame is taken from under queued work.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sanitizers.h"
#include "base/stats.h"
#include "memory/live_peak.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/test_cuda_engine.h"
#include "support/random.h"

namespace tencache {
namespace {

constexpr uint64_t kBudgetBytes = 8 * kGiB;

std::atomic<uint64_t> now{0};  // what the heap takes for the time
uint64_t read_now() { return now.load(); }

class ChangingSizesTest : public ::testing::Test {
 protected:
  ChangingSizesTest()
      : engine_(
            [](CudaEngineConfig& config) {
              config.budget_bytes = kBudgetBytes;
              config.arena_bytes = 32 * kGiB;
              config.heap.clock = &read_now;
            },
            {.capacity_bytes = kBudgetBytes}) {}
  ~ChangingSizesTest() override { EXPECT_EQ(engine_.check_books(), ""); }

  char* allocate(uint64_t bytes, CUstream stream) {
    allocations_.fetch_add(1, std::memory_order_relaxed);
    raise_to(asked_peak_bytes_, asked_bytes_.fetch_add(bytes) + bytes);
    return engine_.allocate(bytes, stream);
  }
  void free(char* address) {
    const uint64_t bytes = engine_.extent(address)->requested_bytes;
    engine_.free(address);
    asked_bytes_ -= bytes;
    if (device_keeps_up_) engine_.wait_until_idle();
  }
  void end_warm_up() {
    allocations_ = 0;
    creations_ = engine_.driver().calls("cuMemCreate");
  }
  void expect_little_waste() {
    const uint64_t created = engine_.driver().calls("cuMemCreate") - creations_;
    EXPECT_LE(created, allocations_.load() / 100) << "in " << allocations_.load();
    const uint64_t reserved = engine_.device().view().frames().all.bytes.peak;
    EXPECT_LE(reserved * 10, asked_peak_bytes_.load() * 12);
    EXPECT_EQ(engine_.stats().over_budget_events, 0u);
    EXPECT_EQ(engine_.stats().evicted_bytes, 0u);
    RecordProperty("created", std::to_string(created));
    RecordProperty("allocations", std::to_string(allocations_.load()));
    RecordProperty("reserved_percent", std::to_string(reserved * 100 / asked_peak_bytes_.load()));
  }

  TestCudaEngine engine_;
  std::atomic<uint64_t> allocations_{0};
  // What the program has, and what threads are asking for or freeing at the moment.
  std::atomic<uint64_t> asked_bytes_{0};
  Counter asked_peak_bytes_{0};
  uint64_t creations_ = 0;
  // True if free() waits until the device is idle. How far the device is behind the program depends
  // on the machine, and so does the memory that the device still uses.
  bool device_keeps_up_ = true;
};

// A cached extent keeps its handles for the next request of its size, as long as there is room for
// new ones.
TEST_F(ChangingSizesTest, AnotherSizeLeavesWhatIsCachedWhereThereIsRoom) {
  const CUstream stream = engine_.make_stream();
  std::vector<char*> weights;
  for (int index = 0; index < 32; ++index) weights.push_back(allocate(64 * kMiB, stream));
  const auto use_each_size = [&] {
    for (const uint64_t count : {48, 66, 90}) free(allocate(count * kMiB, stream));
  };
  use_each_size();
  const uint64_t mapped = engine_.driver().calls("cuMemMap");
  use_each_size();
  EXPECT_EQ(engine_.driver().calls("cuMemMap"), mapped);
  for (char* weight : weights) free(weight);
}

// A program runs x = cat([x, row]) until x is large, and begins with one row again.
TEST_F(ChangingSizesTest, ATensorThatGrowsInALoop) {
  constexpr uint64_t kRowBytes = 2560 * kKiB;
  const CUstream stream = engine_.make_stream();
  for (int pass = 0; pass < 6; ++pass) {
    if (pass == 2) end_warm_up();
    char* grown = allocate(kRowBytes, stream);
    for (uint64_t rows = 2; rows <= 150; ++rows) {
      char* longer = allocate(rows * kRowBytes, stream);
      free(grown);
      grown = longer;
    }
    free(grown);
  }
  expect_little_waste();
}

// The keys and values of 12 layers each get a token longer with every step. There are two prompts.
TEST_F(ChangingSizesTest, CachesThatGrowByAToken) {
  constexpr uint64_t kLayers = 12;
  constexpr uint64_t kTokenBytes = 32 * kKiB;
  const CUstream stream = engine_.make_stream();
  std::array<char*, 2 * kLayers> caches = {};
  for (uint64_t prompt = 0; prompt < 2; ++prompt) {
    for (char*& cache : caches) cache = allocate(128 * kTokenBytes, stream);
    for (uint64_t tokens = 129; tokens <= 512; ++tokens) {
      if (prompt == 0 && tokens == 192) end_warm_up();
      for (char*& cache : caches) {
        char* longer = allocate(tokens * kTokenBytes, stream);
        free(std::exchange(cache, longer));
      }
    }
    for (char* cache : caches) free(cache);
  }
  expect_little_waste();
}

// A request passes through layers, each of which makes its output and frees its input.
TEST_F(ChangingSizesTest, ThreadsThatServeRandomShapes) {
  constexpr int kThreads = 4;
  constexpr std::array<uint64_t, 6> kTokenBytes = {32 * kKiB,  96 * kKiB, 128 * kKiB,
                                                   128 * kKiB, 32 * kKiB, 64 * kKiB};
  const auto serve = [&](CUstream stream, Random random, int requests) {
    const CurrentContext context(engine_.api());
    for (int request = 0; request < requests; ++request) {
      const uint64_t tokens = random.between(64, 1024);
      char* input = allocate(tokens * 64 * kKiB, stream);
      for (const uint64_t token_bytes : kTokenBytes) {
        char* output = allocate(tokens * token_bytes, stream);
        free(std::exchange(input, output));
      }
      free(input);
    }
  };
  Random random;
  std::vector<CUstream> streams;
  for (int index = 0; index < kThreads; ++index) streams.push_back(engine_.make_stream());
  for (const int requests : {200, 400}) {
    if (requests == 400) end_warm_up();
    std::vector<std::jthread> threads;
    for (const CUstream stream : streams) {
      threads.emplace_back(serve, stream, Random(random.between(0, ~uint64_t{0} - 1)), requests);
    }
  }
  expect_little_waste();
}

// Forward passes keep what backward passes free in the opposite order; each step has its own
// length.
TEST_F(ChangingSizesTest, StepsOfRandomLengths) {
  constexpr uint64_t kLayers = 8;
  constexpr std::array<uint64_t, 5> kTokenBytes = {32 * kKiB, 96 * kKiB, 32 * kKiB, 128 * kKiB,
                                                   128 * kKiB};
  const CUstream stream = engine_.make_stream();
  Random random;
  for (int step = 0; step < 240; ++step) {
    if (step == 80) end_warm_up();
    const uint64_t length = random.between(96, 256);
    std::vector<std::pair<char*, uint64_t>> kept;
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      for (const uint64_t token_bytes : kTokenBytes) {
        kept.emplace_back(allocate(length * token_bytes, stream), length * token_bytes);
      }
      free(allocate(length * length * 256, stream));
    }
    char* gradient = allocate(length * 128 * kKiB, stream);
    for (; !kept.empty(); kept.pop_back()) {
      char* next = allocate(kept.back().second, stream);
      free(kept.back().first);
      free(std::exchange(gradient, next));
    }
    free(gradient);
  }
  expect_little_waste();
}

// Where sizes repeat, and all of them are there at once, cached extents serve each of them.
TEST_F(ChangingSizesTest, SizesThatRepeatAreBuiltOnce) {
  const CUstream stream = engine_.make_stream();
  for (int step = 0; step < 20; ++step) {
    if (step == 2) end_warm_up();
    std::vector<char*> kept;
    for (uint64_t index = 1; index <= 20; ++index) {
      kept.push_back(allocate(index * 3 * kMiB, stream));
    }
    for (char* tensor : kept) free(tensor);
  }
  EXPECT_EQ(engine_.driver().calls("cuMemCreate"), creations_);
  const uint64_t mapped = engine_.driver().calls("cuMemMap");
  for (uint64_t index = 1; index <= 20; ++index) {
    free(allocate(index * 3 * kMiB, stream));
  }
  EXPECT_EQ(engine_.driver().calls("cuMemMap"), mapped) << "each size is cached";
}

// The peak of a phase is forgotten after a while, and with it what was kept for the next one.
TEST_F(ChangingSizesTest, APhaseThatIsOverGivesItsMemoryBack) {
  const CUstream stream = engine_.make_stream();
  const auto reserved_bytes = [this] { return engine_.device().view().frames().all.bytes.current; };
  now = LivePeak::kWindowNs;
  std::vector<char*> tensors;
  for (int count = 0; count < 10; ++count) tensors.push_back(allocate(30 * kMiB, stream));
  for (char* tensor : tensors) free(tensor);
  EXPECT_EQ(reserved_bytes(), 300 * kMiB);
  for (int window = 0; window < 2; ++window) {
    for (uint64_t count = 0; count <= LivePeak::kWindowFrees; ++count) {
      free(allocate(30 * kMiB, stream));
    }
    EXPECT_EQ(reserved_bytes(), 300 * kMiB) << "in the " << window << ". window";
    now += LivePeak::kWindowNs;
  }
  for (int count = 0; count < 256; ++count) {
    free(allocate(30 * kMiB, stream));
    engine_.wait_until_idle();  // what the device may still use stays for now
  }
  EXPECT_LE(reserved_bytes(), 34 * kMiB);
  EXPECT_EQ(engine_->heap().cached_bytes(), 30 * kMiB);
}

// A frame takes from the cache what has handles for it, and leaves the rest as it is.
TEST_F(ChangingSizesTest, OnlyExtentsWithHandlesThatFitLeaveTheCache) {
  const CUstream stream = engine_.make_stream();
  const CUstream other = engine_.make_stream();
  std::vector<char*> large;
  for (int count = 0; count < 20; ++count) large.push_back(allocate(128 * kMiB, stream));
  char* small = allocate(6 * kMiB, other);
  free(large.back());
  large.pop_back();
  free(allocate(3 * kMiB, stream));  // a frame was wanted, so frees get marks from now on
  free(small);
  for (char* tensor : large) free(tensor);
  engine_.wait_until_idle();
  const uint64_t unmapped = engine_.driver().calls("cuMemUnmap");
  const uint64_t cached = engine_->heap().cached_bytes();
  char* first = allocate(10 * kMiB, stream);
  // The extents of 6 and 4 MiB go, if the device is known to be done with them, and no large one
  // does.
  EXPECT_LE(engine_.driver().calls("cuMemUnmap"), unmapped + 2);
  EXPECT_GE(engine_->heap().cached_bytes(), cached - 10 * kMiB);
  char* second = allocate(12 * kMiB, stream);
  EXPECT_LE(engine_.driver().calls("cuMemUnmap"), unmapped + 2) << "no handle fits";
  free(first);
  free(second);
}

// Memory that waits for a second stream serves nobody meanwhile, and takes nothing from the cache.
TEST_F(ChangingSizesTest, MemoryThatWaitsForAnotherStreamLeavesTheCacheAlone) {
  const CUstream stream = engine_.make_stream();
  const CUstream other = engine_.make_stream();
  char* small = allocate(4 * kMiB, stream);
  free(allocate(30 * kMiB, stream));
  free(allocate(6 * kMiB, stream));  // a frame was wanted, so frees get marks from now on
  std::vector<char*> tensors;
  for (int count = 0; count < 5; ++count) tensors.push_back(allocate(30 * kMiB, stream));
  device_keeps_up_ = false;
  engine_.driver().hold(other);
  for (char* tensor : tensors) {
    engine_.write(other, tensor, 30 * kMiB, 1);
    free(tensor);
  }
  for (char*& tensor : tensors) tensor = allocate(30 * kMiB, stream);
  for (char* tensor : tensors) free(tensor);
  const uint64_t unmapped = engine_.driver().calls("cuMemUnmap");
  for (int count = 0; count < 128; ++count) free(allocate(30 * kMiB, stream));
  EXPECT_EQ(engine_.driver().calls("cuMemUnmap"), unmapped);
  free(small);
  engine_.driver().let_go();
}

// Memory that waits for a second stream does not count against a new frame. If it did, the thread
// would wait for the device, which is held.
TEST_F(ChangingSizesTest, MemoryThatWaitsForAnotherStreamDelaysNobody) {
  const CUstream stream = engine_.make_stream();
  const CUstream other = engine_.make_stream();
  device_keeps_up_ = false;
  engine_.driver().hold(stream);
  engine_.driver().hold(other);
  char* shared = allocate(32 * kMiB, stream);
  char* own = allocate(32 * kMiB, stream);
  engine_.write(other, shared, 32 * kMiB, 1);
  engine_.write(stream, own, 32 * kMiB, 2);
  free(shared);
  free(own);
  free(allocate(36 * kMiB, stream));
  EXPECT_EQ(engine_.waiting_count(), 1u);
  engine_.driver().let_go();
}

// What a second stream is done with is as good as any other freed memory, for small blocks, too.
TEST_F(ChangingSizesTest, MemoryThatHasWaitedServesSmallBlocks) {
  const CUstream stream = engine_.make_stream();
  const CUstream other = engine_.make_stream();
  char* tensor = allocate(30 * kMiB, stream);
  engine_.write(other, tensor, 30 * kMiB, 1);
  free(tensor);
  engine_.wait_until_idle();
  const uint64_t created = engine_.driver().calls("cuMemCreate");
  char* small = engine_.allocate(64 * kKiB, stream);
  EXPECT_EQ(engine_.driver().calls("cuMemCreate"), created);
  engine_.free(small);
}

// Freed memory is cut and joined where it is, while the device still works on it.
TEST_F(ChangingSizesTest, AStretchOfFreedMemoryServesItsStreamAtOnce) {
  const CUstream stream = engine_.make_stream();
  engine_.driver().hold(stream);
  char* whole = engine_.allocate(28 * kMiB, stream);  // handles of 16, 8 and 4 MiB
  engine_.write(stream, whole, 28 * kMiB, 1);
  engine_.free(whole);
  const uint64_t maps = engine_.driver().calls("cuMemMap");
  char* middle = engine_.allocate(8 * kMiB, stream);
  EXPECT_EQ(middle, whole + 16 * kMiB);
  engine_.write(stream, middle, 8 * kMiB, 2);
  char* first = engine_.allocate(15 * kMiB, stream);  // 16 MiB as the GPU maps it
  EXPECT_EQ(first, whole);
  char* last = engine_.allocate(4 * kMiB, stream);
  EXPECT_EQ(last, whole + 24 * kMiB);
  EXPECT_EQ(engine_.device().view().frames().all.frames.current, 3u);
  engine_.check(stream, middle, 8 * kMiB, 2);
  for (char* part : {last, first, middle}) engine_.free(part);
  EXPECT_EQ(engine_.allocate(24 * kMiB, stream), whole);
  char* again = engine_.allocate(4 * kMiB, stream);
  EXPECT_EQ(again, last);
  engine_.free(again);
  engine_.free(whole);
  EXPECT_EQ(engine_.allocate(28 * kMiB, stream), whole);
  EXPECT_EQ(engine_.device().view().frames().all.frames.current, 1u);
  EXPECT_EQ(engine_.driver().calls("cuMemMap"), maps);
  EXPECT_EQ(engine_.driver().calls("cuMemUnmap"), 0u);
  engine_.free(whole);
}

TEST_F(ChangingSizesTest, MemoryOfOthersIsNotCut) {
  const CUstream stream = engine_.make_stream();
  const CUstream other = engine_.make_stream();
  std::array<char*, 3> parts = {};
  for (size_t index = 0; index < 3; ++index) {
    parts[index] = engine_.allocate(4 * kMiB, index == 1 ? other : stream);
  }
  ASSERT_EQ(parts[2], parts[0] + 8 * kMiB);
  for (char* part : parts) engine_.free(part);
  engine_.extent(parts[2])->pin();  // as by a launch with a stale address
  const uint64_t maps = engine_.driver().calls("cuMemMap");
  char* large = engine_.allocate(8 * kMiB, stream);
  EXPECT_GT(engine_.driver().calls("cuMemMap"), maps);
  EXPECT_EQ(engine_.state(parts[2]), ExtentState::kCached);
  engine_.extent(parts[2])->unpin();
  engine_.free(large);
}

struct Tensor {
  char* address = nullptr;
  uint64_t bytes = 0;
  uint64_t seed = 0;
};

// Kernels write and check tensors while the program is ahead of them. A tensor's seed tells its
// bytes.
TEST_F(ChangingSizesTest, NoFrameIsTakenFromUnderQueuedWork) {
  Random random;
  constexpr uint64_t kLiveBytes = 96 * kMiB;
  std::array<CUstream, 2> streams = {engine_.make_stream(), engine_.make_stream()};
  std::array<std::vector<Tensor>, 2> tensors;
  uint64_t live_bytes = 0;
  for (int step = 0; step < (kHasSanitizer ? 150 : 600); ++step) {
    const size_t which = random.between(0, 1);
    std::vector<Tensor>& own = tensors[which];
    Tensor made{nullptr, random.between(2 * kMiB, 24 * kMiB) / 8 * 8, static_cast<uint64_t>(step)};
    while (live_bytes + made.bytes > kLiveBytes) {
      const size_t from = tensors[0].empty() ? 1 : random.between(0, tensors[1].empty() ? 0 : 1);
      const size_t index = random.between(0, tensors[from].size() - 1);
      Tensor& gone = tensors[from][index];
      engine_.check(streams[from], gone.address, gone.bytes, gone.seed);
      engine_.free(gone.address);
      live_bytes -= gone.bytes;
      gone = tensors[from].back();
      tensors[from].pop_back();
    }
    made.address = engine_.allocate(made.bytes, streams[which]);
    live_bytes += made.bytes;
    const auto duration = std::chrono::microseconds(random.chance(0.2) ? 300 : 0);
    engine_.write(streams[which], made.address, made.bytes, made.seed, duration);
    own.push_back(made);
  }
  for (size_t which = 0; which < 2; ++which) {
    for (const Tensor& tensor : tensors[which]) {
      engine_.check(streams[which], tensor.address, tensor.bytes, tensor.seed);
      engine_.free(tensor.address);
    }
  }
  // Live bytes count as the GPU maps them, in units of 2 MiB.
  const uint64_t reserved = engine_.device().view().frames().all.bytes.peak;
  EXPECT_LE(reserved * 16, engine_.stats().peak_live_bytes * 17);
}

}  // namespace
}  // namespace tencache
