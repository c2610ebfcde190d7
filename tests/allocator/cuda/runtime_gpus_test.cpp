// SPDX-License-Identifier: Apache-2.0
//
// The runtime on the cuda backend, over the simulated driver: the gate and the figures of
// abi/tencache.h for one GPU and for two, GPUs that are opened while ops are open, streams that the
// host program announces, and CUDA graphs. A runtime lives as long as its process, so each body
// runs in a child.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/cuda/open_gpu.h"
#include "abi/runtime.h"
#include "abi/tencache.h"
#include "abi/tencache_guard.h"
#include "base/units.h"
#include "support/child_process.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/eventually.h"
#include "support/test_directory.h"

// The suite stands for the preloaded guard, whose symbol the core looks for in the process.
static const tencache_guard_hooks* g_hooks = nullptr;
void tencache_guard_install(const tencache_guard_hooks* hooks) { g_hooks = hooks; }

namespace tencache {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kExtent = 2 * kMiB;

constexpr int kGpusMax = Engines::kEnginesMax;
std::array<CUstream, kGpusMax> g_streams = {};
std::atomic<int> g_armed = 0;

class RuntimeGpusTest : public ::testing::Test {
 protected:
  void in_child(const std::function<void()>& body) {
    EXPECT_EQ(run_in_child([&] {
                body();
                finish();
              }),
              0);
  }
  void set(const char* name, const char* text) {
    ASSERT_EQ(tencache_set_option(name, text, &error_), TENCACHE_OK) << error_.message;
  }
  void start(const SimulatedDriverConfig& driver = {.device_count = 2},
             const char* host_memory = "128MiB") {
    driver_.emplace(driver);
    context_.emplace(driver_->api());
    for (const auto& [name, text] : std::map<const char*, const char*>{{"backend", "cuda"},
                                                                       {"device_memory", "32MiB"},
                                                                       {"host_memory", host_memory},
                                                                       {"quiet", "on"}}) {
      set(name, text);
    }
    tencache_set_arm_callback([] { ++g_armed; });
    tencache_set_stream_callback(
        [](int ordinal) -> void* { return g_streams.at(static_cast<size_t>(ordinal)); });
    ASSERT_EQ(tencache_start(&error_), TENCACHE_OK) << error_.message;
    EXPECT_EQ(tencache_is_started(), 1);
  }
  tencache_gpu* open(int ordinal) {
    CUstream& stream = g_streams.at(static_cast<size_t>(ordinal));
    context_.emplace(driver_->api(), ordinal);  // a stream belongs to the GPU that is current
    EXPECT_EQ(driver_->api().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
              CUDA_SUCCESS);
    context_.emplace(driver_->api());
    const Result<tencache_gpu*> gpu = open_gpu_of_runtime(driver_->api(), ordinal, 1.0);
    EXPECT_TRUE(gpu.is_ok()) << gpu.status().message();
    if (!gpu.is_ok()) return nullptr;
    gpus_[ordinal] = gpu.value();
    return gpu.value();
  }
  char* allocate(int ordinal, uint64_t bytes = kExtent) {
    void* address = tencache_gpu_allocate(gpus_.at(ordinal), bytes,
                                          g_streams.at(static_cast<size_t>(ordinal)), &error_);
    EXPECT_NE(address, nullptr) << error_.message;
    allocated_.emplace_back(gpus_.at(ordinal), address);
    return static_cast<char*>(address);
  }
  static void open_op(const std::vector<const void*>& addresses, uint32_t mode = TENCACHE_WRITE) {
    std::vector<tencache_access> accesses;
    for (const void* address : addresses) accesses.push_back({address, mode});
    tencache_gate_open(tencache_register_op("test::op"), accesses.data(),
                       static_cast<uint32_t>(accesses.size()));
  }
  static void use(const std::vector<const void*>& addresses) {
    open_op(addresses);
    tencache_gate_close();
  }
  uint64_t evict_all() {
    driver_->wait_until_idle();
    return tencache_evict_all();
  }
  static Json stats() {
    std::string text(1 << 16, '\0');
    EXPECT_LE(tencache_stats_json(text.data(), text.size()), text.size());
    return Json::parse(text.c_str());
  }
  // Whether samples are still taken: the history gets longer.
  static bool is_watched() {
    const auto length = [] {
      return Json::parse(Runtime::instance().watch().history_json()).at("at_s").size();
    };
    const size_t before = length();
    return eventually([&] { return length() > before; });
  }
  void finish() {
    for (const auto& [gpu, address] : allocated_) tencache_gpu_free(gpu, address);
    if (driver_) driver_->wait_until_idle();
    for (const auto& [ordinal, gpu] : gpus_) tencache_gpu_close(gpu);
    if (!driver_) return;
    for (const CUstream stream : g_streams) {
      if (stream != nullptr) driver_->api().cuStreamDestroy(stream);
    }
    context_.reset();
    EXPECT_EQ(driver_->leaks(), "");
    driver_.reset();
  }

  std::optional<SimulatedDriver> driver_;
  std::optional<CurrentContext> context_;
  std::map<int, tencache_gpu*> gpus_;
  std::vector<std::pair<tencache_gpu*, void*>> allocated_;
  tencache_error error_ = {};
};

TEST_F(RuntimeGpusTest, WithoutAGpuEverythingAnswers) {
  in_child([this] {
    start();
    EXPECT_STREQ(tencache_backend(), "cuda");
    EXPECT_EQ(tencache_is_armed(), 0);
    EXPECT_EQ(tencache_chunk_bytes(), ~uint64_t{0});
    EXPECT_EQ(tencache_get_arena()->bytes, 0u);
    EXPECT_EQ(tencache_extent_bytes(this), 0u);
    EXPECT_EQ(tencache_is_cold(this), -1);
    EXPECT_EQ(tencache_evict_all(), 0u);
    EXPECT_EQ(tencache_hold_accesses(nullptr, 0, 1), nullptr);
    tencache_unhold(nullptr);
    tencache_keep_resident(nullptr, 0);
    tencache_mark_step();
    use({this});
    tencache_free(nullptr);
    EXPECT_EQ(tencache_allocate(kMiB, &error_), nullptr);
    EXPECT_EQ(error_.code, TENCACHE_FAILED_PRECONDITION);
    EXPECT_NE(tencache_write_trace("trace", &error_), TENCACHE_OK);
    EXPECT_EQ(stats()["backend"], "cuda");
    EXPECT_EQ(stats()["gpus"].size(), 0u);
    EXPECT_EQ(stats()["budget"]["device"], 0);
  });
}

TEST_F(RuntimeGpusTest, APreloadedGuardAsksTheGateOfLaunches) {
  in_child([this] {
    start();
    EXPECT_EQ(g_hooks, nullptr) << "no GPU is in use";
    open(0);
    ASSERT_NE(g_hooks, nullptr);
    EXPECT_EQ(g_hooks->watched().bytes, 0u) << "nothing leaves yet";
    std::vector<char*> extents;
    for (int index = 0; index < 12; ++index) extents.push_back(allocate(0));
    const tencache_arena watched = g_hooks->watched();
    EXPECT_EQ(watched.base, tencache_get_arena()->base);
    EXPECT_EQ(watched.bytes, tencache_get_arena()->bytes);
    use({extents[0]});
    EXPECT_EQ(evict_all(), 1u);
    const tencache_access accesses[] = {{extents[0] + 8, 3}, {extents[1], 3}};
    const uint32_t begun = g_hooks->begin("launch::scale", g_streams[0], accesses, 2);
    EXPECT_NE(begun, 0u);
    EXPECT_EQ(tencache_is_cold(extents[0]), 0);
    EXPECT_EQ(evict_all(), 0u) << "it is pinned";
    g_hooks->end(begun);
    EXPECT_EQ(evict_all(), 1u);
    g_hooks->on_unreadable();
    const Json launches = stats()["launches"];
    EXPECT_EQ(launches["seen"], true);
    EXPECT_EQ(launches["unannounced"], 1);
    EXPECT_EQ(launches["unreadable"], 1);
  });
}

// The simulated driver ends the process when it is asked about a destroyed stream.
TEST_F(RuntimeGpusTest, AStreamMayBeDestroyedUnderAGuard) {
  in_child([this] {
    start();
    open(0);
    const auto replace_stream = [this] {
      driver_->hold(g_streams[0]);  // it has work left
      g_hooks->on_stream_end(g_streams[0]);
      ASSERT_EQ(driver_->api().cuStreamDestroy(g_streams[0]), CUDA_SUCCESS);
      ASSERT_EQ(driver_->api().cuStreamCreateWithPriority(&g_streams[0], CU_STREAM_NON_BLOCKING, 0),
                CUDA_SUCCESS);
    };
    g_hooks->on_stream_end(nullptr);
    void* small = tencache_gpu_allocate(gpus_.at(0), kMiB, g_streams[0], &error_);
    void* large = tencache_gpu_allocate(gpus_.at(0), kExtent, g_streams[0], &error_);
    std::vector<char*> extents;
    for (int index = 0; index < 8; ++index) extents.push_back(allocate(0));
    use({extents[0], extents[1]});
    ASSERT_EQ(tencache_gpu_record_stream(gpus_.at(0), extents[2], g_streams[0], &error_), 0);
    replace_stream();
    tencache_gpu_free(gpus_.at(0), small);
    tencache_gpu_free(gpus_.at(0), large);
    use({extents[1], extents[2]});
    EXPECT_EQ(evict_all(), 3u);
    replace_stream();
    driver_->let_go();
    EXPECT_GT(tencache_gpu_empty_cache(gpus_.at(0)), 0u);
    use({extents[0], extents[1], extents[2]});
    EXPECT_EQ(evict_all(), 3u);
  });
}

TEST_F(RuntimeGpusTest, AGuardThatIsNotWantedIsLeftAlone) {
  in_child([this] {
    set("launch_guard", "off");
    start();
    open(0);
    EXPECT_EQ(g_hooks, nullptr);
    EXPECT_EQ(stats()["launches"]["seen"], false);
  });
}

TEST_F(RuntimeGpusTest, AGpuIsOpenedOnTheCudaBackendAlone) {
  in_child([this] {
    driver_.emplace();
    context_.emplace(driver_->api());
    const Result<tencache_gpu*> early = open_gpu_of_runtime(driver_->api(), 0, 1.0);
    EXPECT_EQ(early.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(early.status().message().find("backend is auto"), std::string::npos);
    set("backend", "cuda");
    ASSERT_EQ(tencache_start(&error_), TENCACHE_OK);
    const Result<tencache_gpu*> absent = open_gpu_of_runtime(driver_->api(), 7, 1.0);
    EXPECT_NE(absent.status().message().find("There is no GPU 7"), std::string::npos);
    EXPECT_EQ(stats()["gpus"].size(), 0u);
  });
}

TEST_F(RuntimeGpusTest, AGpuThatFailsToOpenLeavesTheOthersWatched) {
  in_child([this] {
    set("strict", "on");
    start({.device_count = kGpusMax + 1});
    EXPECT_FALSE(open_gpu_of_runtime(driver_->api(), 0, 1.5).is_ok());
    EXPECT_TRUE(is_watched()) << "after a wrong share";
    for (int ordinal = 0; ordinal < kGpusMax; ++ordinal) open(ordinal);
    EXPECT_FALSE(open_gpu_of_runtime(driver_->api(), kGpusMax, 1.0).is_ok());
    EXPECT_TRUE(is_watched()) << "after one GPU too many";
  });
}

TEST_F(RuntimeGpusTest, TheGateIsThatOfEveryGpu) {
  in_child([this] {
    start();
    open(0);
    EXPECT_EQ(tencache_chunk_bytes(), 32 * kMiB / 20);
    char* first = allocate(0);
    const tencache_arena before = *tencache_get_arena();
    EXPECT_LT(reinterpret_cast<uintptr_t>(first) - before.base, before.bytes);
    open(1);
    char* second = allocate(1);
    const tencache_arena arena = *tencache_get_arena();
    for (char* address : {first, second}) {
      EXPECT_LT(reinterpret_cast<uintptr_t>(address) - arena.base, arena.bytes);
      EXPECT_EQ(tencache_extent_bytes(address + 100), kExtent);
    }
    use({first, second});
    EXPECT_EQ(evict_all(), 2u);
    EXPECT_EQ(tencache_is_cold(first) + tencache_is_cold(second), 2);
    EXPECT_EQ(stats()["now"]["cold"], 2 * kExtent);
    EXPECT_EQ(stats()["now"]["host"], 2 * kExtent);
    open_op({first, second + 100});
    EXPECT_EQ(tencache_is_cold(first) + tencache_is_cold(second), 0);
    EXPECT_EQ(evict_all(), 0u) << "both are pinned";
    tencache_gate_close();
    const tencache_access accesses[] = {{first, 1}, {first + 8, 1}, {second, 1}};
    EXPECT_EQ(tencache_distinct_bytes(accesses, 3), 2 * kExtent);
    tencache_hold* hold = tencache_hold_accesses(accesses, 3, 0);
    ASSERT_NE(hold, nullptr);
    EXPECT_EQ(evict_all(), 0u);
    tencache_unhold(hold);
    tencache_keep_resident(&accesses[2], 1);
    EXPECT_EQ(evict_all(), 1u);
    EXPECT_EQ(tencache_is_cold(second), 0);
    tencache_mark_step();
    const Json now = stats();
    EXPECT_EQ(now["budget"]["device"], 64 * kMiB);
    EXPECT_EQ(now["budget"]["host"], 256 * kMiB);
    EXPECT_EQ(now["bytes"]["evicted"], 3 * kExtent);
    EXPECT_EQ(now["bytes"]["fetched"], 2 * kExtent);
    ASSERT_EQ(now["gpus"].size(), 2u);
    EXPECT_EQ(now["gpus"][1]["ordinal"], 1);
    EXPECT_EQ(now["gpus"][1]["bytes"]["evicted"], kExtent);
    for (const Json& told : {now, now["gpus"][0], now["gpus"][1]}) {
      EXPECT_EQ(told["steps"], 1) << "a step is one of the process";
      EXPECT_EQ(told["ops"], 2);
    }
  });
}

TEST_F(RuntimeGpusTest, EachGpuArms) {
  in_child([this] {
    start();
    open(0);
    open(1);
    for (int index = 0; index < 10; ++index) allocate(1);
    EXPECT_EQ(tencache_is_armed(), 0);
    for (int index = 0; index < 4; ++index) allocate(1);
    EXPECT_EQ(g_armed, 1);
    EXPECT_EQ(tencache_is_armed(), 1);
    for (int index = 0; index < 14; ++index) allocate(0);
    EXPECT_EQ(g_armed, 2);
    // An extent allocated inside an op is pinned on its own GPU.
    open_op({});
    char* inner = allocate(1);
    use({inner});
    evict_all();
    EXPECT_EQ(tencache_is_cold(inner), 0);
    tencache_gate_close();
    evict_all();
    EXPECT_EQ(tencache_is_cold(inner), 1);
  });
}

// An engine that is opened while ops are open must not take their ends for those of its own.
TEST_F(RuntimeGpusTest, AGpuMayBeOpenedInsideAnOp) {
  in_child([this] {
    start();
    open(0);
    char* first = allocate(0);
    open_op({first});
    open_op({});
    open(1);
    char* second = allocate(1);
    open_op({second});
    EXPECT_EQ(evict_all(), 0u);
    tencache_gate_close();
    tencache_gate_close();  // not for the new one
    EXPECT_EQ(evict_all(), 1u) << "no op is open on the new GPU";
    EXPECT_EQ(tencache_is_cold(second), 1);
    open_op({second});
    open_op({});
    EXPECT_EQ(evict_all(), 0u);
    tencache_gate_close();
    tencache_gate_close();
    tencache_gate_close();  // the first
    EXPECT_EQ(evict_all(), 2u);
    open_op({first});
    open_op({second});
    EXPECT_EQ(evict_all(), 0u);
    tencache_gate_close();
    tencache_gate_close();
    EXPECT_EQ(evict_all(), 2u);
    std::thread([&] { use({first, second}); }).join();
    EXPECT_EQ(evict_all(), 2u);
  });
}

TEST_F(RuntimeGpusTest, AnOpHasOneNumberEverywhere) {
  in_child([this] {
    start();
    const uint32_t early = tencache_register_op("early");
    EXPECT_EQ(tencache_register_op("early"), early);
    open(0);
    const uint32_t middle = tencache_register_op("middle");
    open(1);
    const uint32_t late = tencache_register_op("late");
    for (const auto& [ordinal, gpu] : gpus_) {
      Recorder& recorder = gpu->engine->recorder();
      EXPECT_EQ(recorder.register_op("late"), late);
      EXPECT_EQ(recorder.register_op("middle"), middle);
      EXPECT_EQ(recorder.register_op("early"), early);
    }
  });
}

// The kernel finds its input although the copy takes long, because its own stream waits.
TEST_F(RuntimeGpusTest, FetchesHoldBackTheStreamThatTheProgramTells) {
  in_child([this] {
    start({.device_count = 2, .copy_latency_ns = 20'000'000});
    open(0);
    open(1);
    std::vector<char*> addresses = {allocate(0), allocate(1)};
    for (char* address : addresses) {
      open_op({address});
      memset(address, 7, kExtent);
      tencache_gate_close();
    }
    ASSERT_EQ(evict_all(), 2u);
    std::atomic<int> right_count = 0;
    for (size_t index = 0; index < addresses.size(); ++index) {
      char* address = addresses.at(index);
      context_.emplace(driver_->api(), static_cast<CUdevice>(index));  // as kernels need
      open_op({address});
      const auto kernel = [&right_count, address] {
        right_count += address[0] == 7 && address[kExtent - 1] == 7 ? 1 : 0;
      };
      ASSERT_EQ(driver_->launch(g_streams.at(index),
                                {{reinterpret_cast<CUdeviceptr>(address), kExtent}}, kernel),
                CUDA_SUCCESS);
      tencache_gate_close();
    }
    driver_->wait_until_idle();
    EXPECT_EQ(right_count, 2);
  });
}

// A graph is replayed where no gate sees it.
TEST_F(RuntimeGpusTest, InputsOfAGraphStay) {
  in_child([this] {
    start();
    open(0);
    char* input = allocate(0);
    char* other = allocate(0);
    use({input, other});
    memset(input, 7, kExtent);
    ASSERT_EQ(evict_all(), 2u);
    driver_->set_capturing(g_streams[0], true);
    use({input});
    use({input});
    driver_->set_capturing(g_streams[0], false);
    EXPECT_EQ(tencache_is_cold(input), 0);
    EXPECT_EQ(input[kExtent - 1], 7) << "the host has waited: the stream could not";
    use({other});
    EXPECT_EQ(evict_all(), 1u);
    EXPECT_EQ(tencache_is_cold(input), 0);
    EXPECT_EQ(stats()["graph_extents"], 1);
    // The default stream cannot capture and is not asked.
    const uint64_t question_count = driver_->calls("cuStreamIsCapturing");
    const CUstream stream = std::exchange(g_streams[0], nullptr);
    use({input});
    EXPECT_EQ(driver_->calls("cuStreamIsCapturing"), question_count);
    g_streams[0] = stream;
  });
}

TEST_F(RuntimeGpusTest, WhatAGraphCapturesIsNotHeldAndTheOtherGpusIs) {
  in_child([this] {
    start();
    open(0);
    open(1);
    const std::array<tencache_access, 2> accesses = {{{allocate(0), 1}, {allocate(1), 1}}};
    use({accesses[0].address, accesses[1].address});
    driver_->set_capturing(g_streams[0], true);
    EXPECT_EQ(tencache_hold_accesses(accesses.data(), 1, 0), nullptr);
    tencache_hold* hold = tencache_hold_accesses(accesses.data(), 2, 0);
    driver_->set_capturing(g_streams[0], false);
    ASSERT_NE(hold, nullptr);
    EXPECT_EQ(evict_all(), 1u);
    EXPECT_EQ(tencache_is_cold(accesses[1].address), 0);
    tencache_unhold(hold);
    EXPECT_EQ(evict_all(), 1u);
  });
}

TEST_F(RuntimeGpusTest, AModeOfCaptureIsToldOnlyWhereOneWasSet) {
  in_child([this] {
    EXPECT_EQ(tencache_exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED), -1) << "no GPU yet";
    start();
    open(0);
    driver_->fail("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(tencache_exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED), -1);
    EXPECT_EQ(tencache_exchange_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED),
              CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(tencache_exchange_capture_mode(CU_STREAM_CAPTURE_MODE_GLOBAL),
              CU_STREAM_CAPTURE_MODE_RELAXED);
  });
}

TEST_F(RuntimeGpusTest, OptionsReachTheGpu) {
  in_child([this] {
    set("arm_at", "0.75");
    set("extent_min", "4MiB");
    set("chunk_share", "0.5");
    start();
    open(0);
    EXPECT_EQ(tencache_chunk_bytes(), 16 * kMiB);
    EXPECT_EQ(tencache_extent_bytes(allocate(0)), 0u) << "too small";
    const uint64_t small_bytes = stats()["now"]["device"];
    allocate(0, 24 * kMiB - small_bytes);
    EXPECT_EQ(tencache_is_armed(), 0);
    allocate(0, 4 * kMiB);
    EXPECT_EQ(tencache_is_armed(), 1);
  });
}

TEST_F(RuntimeGpusTest, ChaosReachesEveryGpu) {
  in_child([this] {
    set("chaos", "1");
    start();
    open(0);
    open(1);
    char* first = allocate(0);
    char* second = allocate(1);
    EXPECT_EQ(tencache_is_armed(), 1);
    for (int round = 0; round < 2; ++round) {
      use({first, second});
      driver_->wait_until_idle();
      use({});
    }
    EXPECT_EQ(tencache_is_cold(first) + tencache_is_cold(second), 2);
    EXPECT_GE(stats()["chaos_evictions"], 2);
  });
}

// If nothing told of a failed context, the summary would blame memory.
TEST_F(RuntimeGpusTest, AFailedContextIsTold) {
  in_child([this] {
    start();
    open(0);
    use({allocate(0)});
    EXPECT_EQ(stats()["gpus"][0]["failure"], nullptr);
    driver_->fail_context(CUDA_ERROR_ILLEGAL_ADDRESS);
    const std::string failure = stats()["gpus"][0]["failure"];
    EXPECT_NE(failure.find("ILLEGAL_ADDRESS"), std::string::npos) << failure;
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);  // nothing can be given back
  });
}

TEST_F(RuntimeGpusTest, WhatHostMemoryDoesNotHoldGoesToDisk) {
  const TestDirectory directory;
  in_child([&] {
    set("spill_dir", directory.path().c_str());
    set("disk_space", "64MiB");
    start({.device_count = 1}, "8MiB");
    open(0);
    std::vector<char*> tensors;
    for (int index = 0; index < 10; ++index) {
      char* tensor = tensors.emplace_back(allocate(0));
      open_op({tensor});
      memset(tensor, index, kExtent);
      tencache_gate_close();
    }
    EXPECT_EQ(evict_all(), tensors.size());
    EXPECT_EQ(stats()["budget"]["disk"], 64 * kMiB);
    EXPECT_GE(stats()["now"]["disk"], 6 * kExtent);
    EXPECT_GE(stats()["bytes"]["disk_written"], 6 * kExtent);
    EXPECT_LE(stats()["peak"]["host"], 8 * kMiB);
    for (int index = 0; index < 10; ++index) {
      const char* tensor = tensors[static_cast<size_t>(index)];
      open_op({tensor}, TENCACHE_READ);
      driver_->wait_until_idle();
      EXPECT_EQ(tensor[0], index);
      EXPECT_EQ(tensor[kExtent - 1], index);
      tencache_gate_close();
    }
    EXPECT_GE(stats()["bytes"]["disk_read"], 6 * kExtent);
  });
}

TEST_F(RuntimeGpusTest, StrictKeepsEverythingOnTheGpu) {
  in_child([this] {
    set("strict", "on");
    start();
    open(0);
    allocate(0, 30 * kMiB);
    EXPECT_EQ(tencache_gpu_allocate(gpus_[0], 4 * kMiB, g_streams[0], &error_), nullptr);
    EXPECT_EQ(error_.code, TENCACHE_OUT_OF_MEMORY);
    EXPECT_EQ(stats()["budget"]["host"], 0);
  });
}

// The child of a program with GPUs has none, and its ops pass.
TEST_F(RuntimeGpusTest, AForkedChildPassesByAllGpus) {
  in_child([this] {
    start();
    open(0);
    open(1);
    char* first = allocate(0);
    use({first});
    open_op({});
    const int outcome = run_in_child([&] {
      tencache_gate_close();
      use({first});
      EXPECT_GT(tencache_register_op("in the child"), 0u);
      EXPECT_EQ(tencache_is_armed(), 0);
      EXPECT_EQ(tencache_evict_all(), 0u);
      EXPECT_EQ(tencache_hold_accesses(nullptr, 0, 1), nullptr);
      EXPECT_EQ(stats()["backend"], "cuda");
    });
    EXPECT_EQ(outcome, 0);
    tencache_gate_close();
    EXPECT_EQ(evict_all(), 1u);
    EXPECT_EQ(stats()["forks"], 1);
  });
}

}  // namespace
}  // namespace tencache
