// SPDX-License-Identifier: Apache-2.0
//
// Directories and files of the runtime on the cuda backend, over the simulated driver: which
// directory spills, although GPUs are opened long after the start. A runtime lives as long as its
// process, so each body runs in a child.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "abi/cuda/open_gpu.h"
#include "abi/tencache.h"
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

}  // namespace
}  // namespace tencache
