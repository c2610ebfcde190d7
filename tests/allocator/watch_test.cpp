// SPDX-License-Identifier: Apache-2.0
//
// The history's fixed room, and the page that other processes read. The thread of a watch lives as
// long as its process, so each test runs in a child.
#include "abi/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "support/child_process.h"
#include "support/test_engine.h"

namespace tencache {
namespace {

using Json = nlohmann::json;

/// Opens the page as another process does. Returns an invalid descriptor if there is none.
UniqueFd open_page() {
  const std::string wanted = std::string("/memfd:") + kLivePageName;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!error && target.starts_with(wanted)) {
      return UniqueFd(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    }
  }
  return {};
}

LivePage read_page() {
  LivePage page;
  const UniqueFd file = open_page();
  for (;;) {  // until it was not being written meanwhile
    EXPECT_EQ(pread(file.get(), &page, sizeof page, 0), ssize_t{sizeof page});
    LivePage again;
    EXPECT_EQ(pread(file.get(), &again, sizeof again, 0), ssize_t{sizeof again});
    if (page.sequence % 2 == 0 && page.sequence == again.sequence) return page;
  }
}

/// An engine that spills, and a watch over it. Like the runtime, they are never destroyed.
struct Watched {
  TestEngine engine;
  Engines engines;
  Watch watch{engines};

  Watched() { EXPECT_TRUE(engines.add({EngineEntry::kHost, &*engine}).is_ok()); }
};

TEST(WatchTest, HistoryTakesAFixedRoom) {
  EXPECT_EQ(run_in_child([] {
              auto* const watched = new Watched();
              watched->watch.start(now_ns(), -1);
              char* const tensor = watched->engine.allocate(kMiB);
              watched->engine.use({tensor}, AccessMode::kWrite);
              ASSERT_TRUE(watched->engine.evict(tensor));
              size_t most = 0;
              for (int round = 0; round < 5; ++round) {
                for (size_t number = 0; number < kHistorySamplesMax; ++number)
                  watched->watch.sample();
                const Json history = Json::parse(watched->watch.history_json());
                const std::vector<double> at_s = history["at_s"];
                EXPECT_TRUE(std::ranges::is_sorted(at_s));
                EXPECT_EQ(history["evicted"].back(), kMiB);
                EXPECT_EQ(history["evicted"].front(), 0);
                EXPECT_EQ(history["fetched"].size(), at_s.size());
                most = std::max(most, at_s.size());
              }
              EXPECT_LE(most, kHistorySamplesMax);
              EXPECT_GT(most, kHistorySamplesMax / 2);
            }),
            0);
}

TEST(WatchTest, ThePageHoldsTheCounters) {
  EXPECT_EQ(run_in_child([] {
              auto* const watched = new Watched();
              watched->watch.start(now_ns(), 2);
              char* const tensor = watched->engine.allocate(kMiB);
              watched->engine.use({tensor}, AccessMode::kWrite);
              ASSERT_TRUE(watched->engine.evict(tensor));
              watched->watch.sample();
              const LivePage page = read_page();
              EXPECT_EQ(page.magic, kLivePageMagic);
              EXPECT_EQ(memcmp(&page.magic, "tencache", 8), 0);
              EXPECT_EQ(page.version, kLivePageVersion);
              EXPECT_EQ(page.rank_plus_1, 3u);
              EXPECT_GE(page.sampled_ns, page.started_ns);
              std::ifstream file("/proc/self/stat");
              std::string stat{std::istreambuf_iterator<char>(file), {}};
              EXPECT_NE(stat.find(" " + std::to_string(page.start_ticks) + " "), std::string::npos);
              ASSERT_EQ(page.engine_count, 1u);
              const LiveEngine& engine = page.engines[0];
              EXPECT_EQ(static_cast<int64_t>(engine.ordinal), EngineEntry::kHost);
              EXPECT_EQ(engine.device_budget, TestEngine::kBudgetBytes);
              EXPECT_EQ(engine.device_used, watched->engine->budget().used());
              EXPECT_EQ(engine.disk_used, kMiB);
              EXPECT_EQ(engine.evicted, kMiB);
              EXPECT_EQ(engine.disk_written, kMiB);
              EXPECT_EQ(engine.ops, 1u);
            }),
            0);
}

TEST(WatchTest, ThePageCannotBeCutAndAChildDoesNotHaveIt) {
  EXPECT_EQ(run_in_child([] {
              auto* const watched = new Watched();
              watched->watch.start(now_ns(), -1);
              const UniqueFd file = open_page();
              ASSERT_TRUE(file.is_valid());
              const std::string path = "/proc/self/fd/" + std::to_string(file.get());
              EXPECT_NE(truncate(path.c_str(), 0), 0);
              EXPECT_EQ(errno, EPERM);
              const uint64_t before = read_page().sequence;
              EXPECT_EQ(run_in_child([watched] {
                          // The watch of a child is passive: it neither writes the page nor has a
                          // history.
                          EXPECT_EQ(watched->watch.history_json(), "{}");
                        }),
                        0);
              EXPECT_GE(read_page().sequence, before);
            }),
            0);
}

TEST(WatchTest, ARefusedPageCostsTheProgramNothing) {
  const int status = run_in_child([] {
    auto* const watched = new Watched();
    if (!deny_syscall(SYS_memfd_create, EPERM)) _exit(kSkipped);
    watched->watch.start(now_ns(), -1);
    EXPECT_FALSE(open_page().is_valid());
    watched->watch.sample();
    EXPECT_FALSE(Json::parse(watched->watch.history_json())["at_s"].empty());
  });
  if (status == kSkipped) GTEST_SKIP() << "the machine does not allow filters of system calls";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tencache
