// SPDX-License-Identifier: Apache-2.0
//
// The C ABI and the runtime behind it, as the shim and ctypes use them. A process has one runtime
// for its life, so each test runs in a forked child with a fresh one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "abi/tencache.h"
#include "base/units.h"
#include "support/child_process.h"
#include "support/flat_period.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

using Json = nlohmann::json;

int g_armed = 0;
int g_polled = 0;

class AbiTest : public ::testing::Test {
 protected:
  void in_child(const std::function<void()>& body) {
    EXPECT_EQ(run_in_child([&] {
                unsetenv("TENCACHE");
                body();
              }),
              0);
  }
  void set(const char* name, const char* text) {
    ASSERT_EQ(tencache_set_option(name, text, &error_), TENCACHE_OK) << error_.message;
  }
  static std::string option(const char* name) {
    std::string text(256, '\0');
    EXPECT_LE(tencache_option_text(name, text.data(), text.size()), text.size());
    return text.c_str();
  }
  void start() {
    set("spill_dir", directory_.path().c_str());
    set("device_memory", "32MiB");
    set("disk_space", "256MiB");
    set("extent_min", "64KiB");
    set("quiet", "on");
    ASSERT_EQ(tencache_start(&error_), TENCACHE_OK) << error_.message;
  }
  char* allocate(size_t bytes) {
    void* address = tencache_allocate(bytes, &error_);
    EXPECT_NE(address, nullptr) << error_.message;
    return static_cast<char*>(address);
  }
  static void use(const void* address, uint32_t mode) {
    const tencache_access access = {address, mode};
    tencache_gate_open(tencache_register_op("test::use"), &access, 1);
    tencache_gate_close();
  }
  template <typename Write>
  static Json json_of(Write write) {
    std::string text;
    // Threads go on meanwhile: the text may have grown since its length was asked for.
    for (size_t bytes = write(nullptr, 0); bytes > text.size();) {
      text.assign(bytes, '\0');
      bytes = write(text.data(), text.size());
    }
    return Json::parse(text.c_str());
  }

  TestDirectory directory_;
  tencache_error error_ = {};
};

TEST_F(AbiTest, BeforeStartThereIsNoArena) {
  in_child([] {
    EXPECT_EQ(tencache_is_started(), 0);
    EXPECT_STREQ(tencache_backend(), "");
    EXPECT_EQ(tencache_is_armed(), 0);
    EXPECT_EQ(tencache_get_arena()->bytes, 0u);
    EXPECT_EQ(tencache_chunk_bytes(), ~uint64_t{0});
    EXPECT_STREQ(tencache_version(), "0.1.0");
    EXPECT_EQ(json_of(&tencache_stats_json), Json::object());
    EXPECT_FALSE(Json::parse(tencache_option_table()).empty());
    EXPECT_TRUE(json_of(&tencache_doctor_json).contains("memory"));
  });
}

TEST_F(AbiTest, AnOptionThatIsNoUtf8IsShownAllTheSame) {
  in_child([this] {
    set("stats", "run\xff.json");
    EXPECT_EQ(json_of(&tencache_doctor_json)["options"]["stats"], "run\uFFFD.json");
  });
}

TEST_F(AbiTest, WithoutLibtorchNothingIsEnabled) {
  in_child([this] {
    EXPECT_EQ(tencache_enable(&error_), TENCACHE_FAILED_PRECONDITION);
    EXPECT_NE(strstr(error_.message, "no libtorch in this process"), nullptr) << error_.message;
    EXPECT_EQ(tencache_is_started(), 0);
  });
}

TEST_F(AbiTest, APeriodToFollowIsGivenBeforeStart) {
  in_child([this] {
    Trace trace;
    trace.op_names = {"test::use"};
    trace.ops = {{0, 1000, {{0, false}}}};
    trace.tensors = {{kMiB, kNoTick, kNoTick}};
    const FlatPeriod flat(trace);
    const auto learn = [&] { return tencache_learn_from(flat.get(), flat.op_names(), &error_); };
    ASSERT_EQ(learn(), TENCACHE_OK) << error_.message;
    // After a start that failed a program reads its options anew, and then gives the period again.
    ASSERT_EQ(tencache_read_environment(&error_), TENCACHE_OK);
    ASSERT_EQ(learn(), TENCACHE_OK) << error_.message;
    start();
    const Json plan = json_of(&tencache_stats_json)["plan"];
    EXPECT_EQ(plan["stored"]["ticks"], 1);
    EXPECT_EQ(plan["stored"]["ticks_followed"], 0);
    EXPECT_EQ(learn(), TENCACHE_FAILED_PRECONDITION);
  });
}

TEST_F(AbiTest, MemoryGateAndFiguresWorkTogether) {
  in_child([this] {
    const tencache_arena* arena = tencache_get_arena();
    start();
    EXPECT_EQ(tencache_is_started(), 1);
    EXPECT_STREQ(tencache_backend(), "cpu");
    EXPECT_GT(arena->bytes, 0u) << "the pointer from before start shows the arena";
    EXPECT_EQ(tencache_chunk_bytes(), 32 * kMiB / 20);
    char* address = allocate(kMiB);
    EXPECT_LT(reinterpret_cast<uintptr_t>(address) - arena->base, arena->bytes);
    EXPECT_EQ(tencache_extent_bytes(address + 100), kMiB);
    EXPECT_EQ(tencache_extent_bytes(&address), 0u);
    memset(address, 5, kMiB);
    use(address, TENCACHE_WRITE);
    EXPECT_EQ(tencache_evict_all(), 1u);
    EXPECT_EQ(tencache_is_cold(address), 1);
    use(address, TENCACHE_READ);
    EXPECT_EQ(tencache_is_cold(address), 0);
    EXPECT_EQ(tencache_is_cold(&address), -1);
    EXPECT_EQ(address[kMiB - 1], 5);
    tencache_mark_step();
    const tencache_access twice[] = {{address, TENCACHE_READ}, {address + 8, TENCACHE_READ}};
    EXPECT_EQ(tencache_distinct_bytes(twice, 2), kMiB);
    tencache_expect(twice, 2);
    tencache_expect(nullptr, 0);
    EXPECT_EQ(tencache_begin_in_place(twice, 2, &error_), TENCACHE_OK);
    tencache_end_in_place();
    const Json stats = json_of(&tencache_stats_json);
    EXPECT_EQ(stats["schema"], 1);
    EXPECT_EQ(stats["budget"]["device"], 32 * kMiB);
    EXPECT_EQ(stats["bytes"]["evicted"], kMiB);
    EXPECT_EQ(stats["bytes"]["fetched"], kMiB);
    EXPECT_EQ(stats["fetches"]["late"], 1);
    EXPECT_EQ(stats["ops"], 2);
    EXPECT_EQ(stats["steps"], 1);
    tencache_free(address);
    tencache_free(nullptr);
  });
}

TEST_F(AbiTest, UnannouncedAccessesToColdExtentsAreSeenAtOnce) {
  in_child([this] {
    start();
    char* address = allocate(kMiB);
    use(address, TENCACHE_WRITE);
    ASSERT_EQ(tencache_evict_all(), 1u);
    EXPECT_EQ(json_of(&tencache_stats_json)["unannounced"]["writes"], 0);
    address[0] = 1;
    const Json stats = json_of(&tencache_stats_json);
    EXPECT_EQ(stats["unannounced"]["writes"], 1);
    EXPECT_EQ(stats["now"]["cold_extents"], 1);
    EXPECT_EQ(stats["now"]["cold"], kMiB);
  });
}

TEST_F(AbiTest, HoldsAndKeptExtentsAreNotEvicted) {
  in_child([this] {
    start();
    char* held = allocate(kMiB);
    char* kept = allocate(kMiB);
    use(held, TENCACHE_WRITE);
    use(kept, TENCACHE_WRITE);
    const tencache_access held_access = {held, TENCACHE_READ};
    const tencache_access kept_access = {kept, TENCACHE_READ};
    tencache_hold* hold = tencache_hold_accesses(&held_access, 1, 0);
    ASSERT_NE(hold, nullptr);
    tencache_keep_resident(&kept_access, 1);
    EXPECT_EQ(tencache_evict_all(), 0u);
    tencache_unhold(hold);
    EXPECT_EQ(tencache_evict_all(), 1u);
    EXPECT_EQ(tencache_is_cold(kept), 0);
    EXPECT_EQ(tencache_hold_accesses(nullptr, 0, 1), nullptr);
    tencache_unhold(nullptr);
  });
}

TEST_F(AbiTest, AThreadKnowsHowManyOpsItHasOpen) {
  in_child([this] {
    EXPECT_EQ(tencache_gate_depth(), 0u);
    start();
    const uint32_t op = tencache_register_op("test::use");
    tencache_gate_open(op, nullptr, 0);
    tencache_gate_open(op, nullptr, 0);
    EXPECT_EQ(tencache_gate_depth(), 2u);
    std::thread([] { EXPECT_EQ(tencache_gate_depth(), 0u); }).join();
    tencache_gate_close();
    EXPECT_EQ(tencache_gate_depth(), 1u);
    tencache_gate_close();
  });
}

TEST_F(AbiTest, AReadingFillsAndEmptiesItsHandle) {
  in_child([this] {
    start();
    const void* const address = allocate(kMiB);
    tencache_reading* reading = nullptr;
    tencache_begin_reading(&address, 1, &reading);
    EXPECT_NE(reading, nullptr);
    tencache_end_reading(&reading);
    EXPECT_EQ(reading, nullptr);
    tencache_end_reading(&reading);
  });
}

TEST_F(AbiTest, CallbacksAreCalled) {
  in_child([this] {
    tencache_set_arm_callback([] { ++g_armed; });
    tencache_set_poll_callback([] { __atomic_fetch_add(&g_polled, 1, __ATOMIC_RELAXED); });
    start();
    allocate(16 * kMiB);
    EXPECT_EQ(g_armed, 0);
    EXPECT_EQ(tencache_is_armed(), 0);
    allocate(8 * kMiB);
    EXPECT_EQ(g_armed, 1);
    EXPECT_EQ(tencache_is_armed(), 1);
    allocate(16 * kMiB);
    EXPECT_EQ(g_armed, 1);
    EXPECT_GT(__atomic_load_n(&g_polled, __ATOMIC_RELAXED), 0);
  });
}

TEST_F(AbiTest, StrictModeTellsItsError) {
  in_child([this] {
    set("strict", "on");
    start();
    allocate(30 * kMiB);
    EXPECT_EQ(tencache_allocate(4 * kMiB, &error_), nullptr);
    EXPECT_EQ(error_.code, TENCACHE_OUT_OF_MEMORY);
    EXPECT_NE(strstr(error_.message, " out of memory."), nullptr) << error_.message;
    EXPECT_EQ(tencache_allocate(4 * kMiB, nullptr), nullptr);
    EXPECT_EQ(tencache_evict_all(), 0u);
  });
}

TEST_F(AbiTest, RequestThatNoMachineHoldsIsRefused) {
  in_child([this] {
    start();
    EXPECT_EQ(tencache_allocate(size_t{1} << 60, &error_), nullptr);
    EXPECT_EQ(error_.code, TENCACHE_OUT_OF_MEMORY);
    EXPECT_NE(strstr(error_.message, "this machine holds at most"), nullptr) << error_.message;
    EXPECT_EQ(json_of(&tencache_stats_json)["over_budget"]["events"], 0);
  });
}

TEST_F(AbiTest, OptionsAreFixedByStart) {
  in_child([this] {
    EXPECT_EQ(tencache_check_option("device_memory", "lots", &error_), TENCACHE_INVALID_ARGUMENT);
    EXPECT_NE(strstr(error_.message, "lots"), nullptr) << error_.message;
    EXPECT_EQ(tencache_set_option("device_memry", "1GiB", &error_), TENCACHE_INVALID_ARGUMENT);
    start();
    EXPECT_EQ(tencache_start(&error_), TENCACHE_OK) << "a second start does nothing";
    EXPECT_EQ(tencache_set_option("device_memory", "33554432", &error_), TENCACHE_OK);
    EXPECT_EQ(tencache_set_option("device_memory", "64MiB", &error_), TENCACHE_FAILED_PRECONDITION);
    EXPECT_NE(strstr(error_.message, "device_memory"), nullptr) << error_.message;
    EXPECT_EQ(tencache_set_option("backend", "AUTO", &error_), TENCACHE_OK);
    EXPECT_EQ(tencache_set_option("backend", "cuda", &error_), TENCACHE_FAILED_PRECONDITION);
    EXPECT_EQ(option("device_memory"), "32MiB");
  });
}

TEST_F(AbiTest, EnvironmentIsRead) {
  in_child([this] {
    setenv("TENCACHE_DEVICE_MEMORY", "48MiB", 1);
    ASSERT_EQ(tencache_read_environment(&error_), TENCACHE_OK) << error_.message;
    set("spill_dir", directory_.path().c_str());
    set("quiet", "on");
    ASSERT_EQ(tencache_start(&error_), TENCACHE_OK) << error_.message;
    EXPECT_EQ(json_of(&tencache_stats_json)["budget"]["device"], 48 * kMiB);
  });
  in_child([this] {
    set("quiet", "on");
    setenv("TENCACHE_STRICT", "Yes", 1);
    ASSERT_EQ(tencache_read_environment(&error_), TENCACHE_OK) << error_.message;
    EXPECT_EQ(option("strict"), "on");
    EXPECT_EQ(option("quiet"), "off") << "what neither is set nor has a variable has its default";
    EXPECT_EQ(option("nothing"), "");
    setenv("TENCACHE_STRICT", "no", 1);
    setenv("TENCACHE_DEVICE_MEMORY", "much", 1);
    EXPECT_EQ(tencache_read_environment(&error_), TENCACHE_INVALID_ARGUMENT);
    EXPECT_EQ(option("strict"), "on") << "where one variable cannot be used, nothing is set";
  });
  in_child([this] {
    setenv("TENCACHE_DEVICE_MEMORY", "much", 1);
    EXPECT_EQ(tencache_read_environment(&error_), TENCACHE_INVALID_ARGUMENT);
    EXPECT_NE(strstr(error_.message, "much"), nullptr) << error_.message;
  });
}

TEST_F(AbiTest, SpillDirectoryThatIsMissingIsNamed) {
  in_child([this] {
    set("spill_dir", "/nonexistent/spill");
    EXPECT_NE(tencache_start(&error_), TENCACHE_OK);
    EXPECT_NE(strstr(error_.message, "/nonexistent/spill"), nullptr) << error_.message;
    EXPECT_EQ(tencache_is_started(), 0);
    start();  // try again with a good one
    EXPECT_EQ(tencache_is_started(), 1);
  });
}

TEST_F(AbiTest, ARelativeSpillDirectoryIsThatOfTheStart) {
  in_child([this] {
    ASSERT_EQ(chdir(directory_.path().c_str()), 0);
    set("spill_dir", ".");
    ASSERT_EQ(tencache_start(&error_), TENCACHE_OK) << error_.message;
    EXPECT_EQ(option("spill_dir").front(), '/');
    set("spill_dir", ".");  // the same one
    ASSERT_EQ(chdir("/"), 0);
    EXPECT_NE(tencache_set_option("spill_dir", ".", &error_), TENCACHE_OK) << "another one";
  });
}

TEST_F(AbiTest, TextsAreCutToTheBufferAndTerminated) {
  in_child([this] {
    start();
    char small[8];
    memset(small, 'x', sizeof small);
    EXPECT_GT(tencache_stats_json(small, sizeof small), sizeof small);
    EXPECT_EQ(strlen(small), sizeof small - 1);
    EXPECT_GT(tencache_stats_json(nullptr, 0), 0u);
  });
}

TEST_F(AbiTest, TraceIsWritten) {
  in_child([this] {
    const std::string path = directory_.path() + "/trace.jsonl";
    EXPECT_EQ(tencache_write_trace(path.c_str(), &error_), TENCACHE_FAILED_PRECONDITION);
    start();
    use(allocate(kMiB), TENCACHE_READ);
    ASSERT_EQ(tencache_write_trace(path.c_str(), &error_), TENCACHE_OK) << error_.message;
    std::ifstream file(path);
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    EXPECT_EQ(Json::parse(line)["events"], 3);
    const std::string run_id = Json::parse(line).value("run_id", "");
    EXPECT_EQ(run_id.size(), 16u);
    EXPECT_EQ(run_id.find_first_not_of("0123456789abcdef"), std::string::npos) << run_id;
    EXPECT_EQ(json_of(&tencache_stats_json).value("run_id", ""), run_id);
  });
}

TEST_F(AbiTest, TraceHasMovesAndNames) {
  in_child([this] {
    const std::string path = directory_.path() + "/trace.jsonl";
    start();
    char* const address = allocate(kMiB);
    use(address, TENCACHE_WRITE);
    tencache_name_extent(address + 100, "layers.0.weight");
    tencache_name_extent(&path, "no extent");
    ASSERT_EQ(tencache_evict_all(), 1u);
    ASSERT_EQ(tencache_write_trace(path.c_str(), &error_), TENCACHE_OK) << error_.message;
    std::ifstream file(path);
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    const Json names = Json::parse(line)["names"];
    ASSERT_EQ(names.size(), 1u);
    EXPECT_EQ(names.begin().value(), "layers.0.weight");
    Json last;
    while (std::getline(file, line)) last = Json::parse(line);
    EXPECT_EQ(last["kind"], "evict");
    EXPECT_EQ(last["to"], "disk");
    EXPECT_EQ(std::to_string(last["extent"].get<uint64_t>()), names.begin().key());
  });
}

TEST_F(AbiTest, HistoryHasOneLengthAndNoneBeforeStart) {
  in_child([this] {
    EXPECT_EQ(json_of(&tencache_history_json), Json::object());
    start();
    char* const address = allocate(kMiB);
    use(address, TENCACHE_WRITE);
    ASSERT_EQ(tencache_evict_all(), 1u);
    const Json history = json_of(&tencache_history_json);
    const size_t count = history["at_s"].size();
    ASSERT_GE(count, 2u);
    for (const Json& column : history) EXPECT_EQ(column.size(), count);
    EXPECT_EQ(history["evicted"].front(), 0);
    EXPECT_EQ(history["evicted"].back(), kMiB);
    EXPECT_EQ(history["disk"].back(), kMiB);
    const pid_t child = fork();
    if (child == 0) _exit(json_of(&tencache_history_json) == Json::object() ? 0 : 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

TEST_F(AbiTest, ForkedChildIsPassive) {
  in_child([this] {
    start();
    char* address = allocate(kMiB);
    memset(address, 9, kMiB);
    use(address, TENCACHE_WRITE);
    ASSERT_EQ(tencache_evict_all(), 1u);
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      const tencache_access access = {address, TENCACHE_WRITE};
      tencache_gate_open(tencache_register_op("new in the child"), &access, 1);
      bool is_right = address[123] == 9;
      tencache_gate_close();
      void* fresh = tencache_allocate(4 * kMiB, nullptr);
      is_right = is_right && fresh != nullptr && tencache_extent_bytes(fresh) == 0;
      tencache_free(fresh);
      tencache_free(address);
      is_right = is_right && tencache_evict_all() == 0 && tencache_is_armed() == 0;
      is_right = is_right && tencache_chunk_bytes() == 32 * kMiB / 20;
      is_right = is_right && json_of(&tencache_stats_json)["budget"]["disk"] == 0;
      is_right = is_right && tencache_write_trace("/dev/null", nullptr) != TENCACHE_OK;
      _exit(is_right ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    use(address, TENCACHE_READ);
    EXPECT_EQ(address[123], 9);
    EXPECT_EQ(json_of(&tencache_stats_json)["forks"], 1);
  });
}

}  // namespace
}  // namespace tencache
