// SPDX-License-Identifier: Apache-2.0
//
// Directories and files of the runtime on the cuda backend, over the simulated driver. The
// start fixes the spill directory, long before a GPU is opened. Of the GPUs' periods, the largest
// is recorded. A runtime lives as long as its process, so each body runs in a child.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/cuda/open_gpu.h"
#include "abi/runtime.h"
#include "abi/tencache.h"
#include "base/units.h"
#include "engine/plan/learned_plan.h"
#include "support/child_process.h"
#include "support/cuda/device_buffer.h"
#include "support/cuda/simulated_driver.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

class RuntimeGpusFilesTest : public ::testing::Test {
 protected:
  RuntimeGpusFilesTest() { mkdir((directory_.path() + "/spill").c_str(), 0700); }
  void set(const char* name, const std::string& text) {
    ASSERT_EQ(tencache_set_option(name, text.c_str(), &error_), TENCACHE_OK) << error_.message;
  }
  void set_all() {
    set("backend", "cuda");
    set("device_memory", "32MiB");
    set("host_memory", "128MiB");
    set("quiet", "on");
  }
  void start() { ASSERT_EQ(tencache_start(&error_), TENCACHE_OK) << error_.message; }
  static std::string option(const char* name) {
    std::string text(1024, '\0');
    text.resize(tencache_option_text(name, text.data(), text.size()) - 1);
    return text;
  }

  TestDirectory directory_;
  tencache_error error_ = {};
};

TEST_F(RuntimeGpusFilesTest, ARelativeDirectoryIsThatOfTheStart) {
  const int result = run_in_child([this] {
    const SimulatedDriver driver;
    const CurrentContext context(driver.api());
    const std::filesystem::path own = std::filesystem::canonical(directory_.path());
    ASSERT_EQ(chdir(own.c_str()), 0);
    set_all();
    set("spill_dir", "spill");
    start();
    EXPECT_EQ(option("spill_dir"), (own / "spill").string());
    set("spill_dir", "spill");  // the same one
    ASSERT_EQ(chdir("/"), 0);
    const Result<tencache_gpu*> gpu = open_gpu_of_runtime(driver.api(), 0, 1.0);
    ASSERT_TRUE(gpu.is_ok()) << gpu.status().message();
    tencache_gpu_close(gpu.value());
    EXPECT_NE(tencache_set_option("spill_dir", "spill", &error_), TENCACHE_OK) << "another one";
  });
  EXPECT_EQ(result, 0);
}

TEST_F(RuntimeGpusFilesTest, ADirectoryThatCannotBeUsedIsAnErrorBeforeAnyGpuIsUsed) {
  const int result = run_in_child([this] {
    set_all();
    set("spill_dir", "/nowhere/at/all");
    EXPECT_NE(tencache_start(&error_), TENCACHE_OK);
    EXPECT_NE(std::string(error_.message).find("/nowhere/at/all"), std::string::npos)
        << error_.message;
    EXPECT_EQ(tencache_is_started(), 0);
    set("strict", "on");
    start();  // and spills nowhere
  });
  EXPECT_EQ(result, 0);
}

LearnedPlan learned(uint64_t number, uint64_t peak_bytes) {
  auto period = std::make_shared<Period>();
  period->trace.op_names = {"op"};
  for (int tick = 0; tick < 3; ++tick) {
    period->trace.ops.push_back({0, 1'000'000, {{0, false}}});
    period->digests.push_back(7);
  }
  period->trace.tensors.push_back({peak_bytes, kNoTick, kNoTick});
  period->extent_ids.push_back(1);
  LearnedPlan plan;
  plan.number = number;
  plan.period = std::move(period);
  return plan;
}

// Each engine numbers its kinds from 1, so plans of two GPUs may have the same number.
TEST_F(RuntimeGpusFilesTest, ThePeriodThatNeedsTheMostMemoryIsRecordedWhicheverGpuHasIt) {
  const int result = run_in_child([this] {
    const std::string path = directory_.path() + "/run.period";
    const auto recorded_bytes = [&path] {
      std::string line;
      std::ifstream file(path);
      EXPECT_TRUE(std::getline(file, line));
      return nlohmann::json::parse(line)["peak_bytes"].get<uint64_t>();
    };
    set_all();
    set("record", path);
    start();
    Runtime& runtime = Runtime::instance();
    const auto on_first = runtime.gpu_engine_config(0).hooks.on_learned_plan;
    const auto on_second = runtime.gpu_engine_config(1).hooks.on_learned_plan;
    on_first(learned(1, 10 * kMiB));
    EXPECT_EQ(recorded_bytes(), 10 * kMiB);
    on_second(learned(1, 8 * kMiB));
    EXPECT_EQ(recorded_bytes(), 10 * kMiB);
    on_second(learned(2, 12 * kMiB));
    EXPECT_EQ(recorded_bytes(), 12 * kMiB);
    on_first(learned(2, 11 * kMiB));
    EXPECT_EQ(recorded_bytes(), 12 * kMiB);
    EXPECT_EQ(runtime.recorded(), Recorded::kWritten);
  });
  EXPECT_EQ(result, 0);
}

// Whichever thread comes last, the file has the best choice once all have returned.
TEST_F(RuntimeGpusFilesTest, LearnersOfSeveralGpusRecordAtTheSameTime) {
  const int result = run_in_child([this] {
    constexpr uint64_t kRounds = 20;
    constexpr int kGpus = 4;
    const std::string path = directory_.path() + "/run.period";
    set_all();
    set("record", path);
    start();
    std::vector<std::thread> learners;
    learners.reserve(kGpus);
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      learners.emplace_back([gpu] {
        const auto on_plan = Runtime::instance().gpu_engine_config(gpu).hooks.on_learned_plan;
        for (uint64_t round = 1; round <= kRounds; ++round) {
          on_plan(learned(round, (round * kGpus + static_cast<uint64_t>(gpu)) * kMiB));
        }
      });
    }
    for (std::thread& learner : learners) learner.join();
    std::string line;
    std::ifstream file(path);
    ASSERT_TRUE(std::getline(file, line));
    EXPECT_EQ(nlohmann::json::parse(line)["peak_bytes"], (kRounds * kGpus + kGpus - 1) * kMiB);
  });
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace tencache
