// SPDX-License-Identifier: Apache-2.0
//
// Pages that the disk does not give, read outside of an op: the process ends by SIGBUS, as it would
// without tencache, after a line that says where the bytes were. A handler of the program still has
// its say, and other bus errors are none of ours.
#include "platform/bus_errors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/unique_fd.h"
#include "support/accessible.h"
#include "support/test_engine.h"

// These options switch off the sanitizers' own handler, which would turn the deaths that are tested
// here into reports.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options();
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
extern "C" const char* __asan_default_options() { return "handle_sigbus=0"; }
extern "C" const char* __tsan_default_options() { return "handle_sigbus=0"; }

namespace tencache {
namespace {

constexpr uint64_t kBytes = 8 * kPageBytes;

/// Ends the spill file after the first page of the extent's slot.
void cut_slot(TestEngine& engine, const char* address) {
  const std::string path = "/proc/self/fd/" + std::to_string(engine.device().disk()->fd());
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const auto end = static_cast<off_t>(engine.extent(address)->slot.offset + kPageBytes);
  if (ftruncate(file.get(), end) != 0) _exit(97);
}

/// A cold extent of which only the first page can be read. The slot is the second, so that its
/// offset in the file is not 0.
char* make_lost(TestEngine& engine) {
  char* first = engine.allocate(kBytes);
  char* address = engine.allocate(kBytes);
  fill_pattern(address, kBytes, 1);
  if (!engine.evict(first) || !engine.evict(address)) _exit(96);
  cut_slot(engine, address);
  return address;
}

void touch(const char* address) { (void)*const_cast<const volatile char*>(address); }

TEST(BusErrorsDeathTest, ReadOfALostPageSaysWhereAndKills) {
  const auto body = [] {
    TestEngine engine;
    char* address = make_lost(engine);
    touch(address);
    touch(address + 5 * kPageBytes + 7);
  };
  const std::string offset = std::to_string(kBytes + 5 * kPageBytes);
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGBUS),
              "the spill file in /.* cannot be read at file offset " + offset + ".*extent [0-9]+");
}

TEST(BusErrorsDeathTest, ForkedChildSaysSo) {
  const auto body = [] {
    TestEngine engine;
    char* address = make_lost(engine);
    if (const pid_t child = fork(); child == 0) {
      touch(address + kPageBytes);
      _exit(0);
    }
    int status = 0;
    wait(&status);
    _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 100);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(SIGBUS), "cannot be read at file offset");
}

sigjmp_buf g_way_out;
void leave(int) { siglongjmp(g_way_out, 1); }

TEST(BusErrorsDeathTest, HandlerOfTheProgramIsAskedEachTime) {
  const auto body = [] {
    signal(SIGBUS, &leave);
    TestEngine engine;
    char* address = make_lost(engine);
    static std::atomic<int> times{0};
    while (times.fetch_add(1) < 40) {
      if (sigsetjmp(g_way_out, 1) != 0) continue;
      touch(address + kPageBytes);
      _exit(1);
    }
    _exit(42);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "cannot be read at file offset");
}

TEST(BusErrorsDeathTest, OtherBusErrorsAreNotOurs) {
  const auto body = [] {
    TestEngine engine;
    char* address = engine.allocate(kBytes);
    if (!engine.evict(address)) _exit(1);
    const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
    void* const page = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, file.get(), 0);
    touch(static_cast<const char*>(page));
  };
  EXPECT_EXIT(body(), ::testing::KilledBySignal(SIGBUS), "^$");
}

TEST(BusErrorsTest, SystemCallGetsAnError) {
  TestEngine engine;
  char* address = make_lost(engine);
  EXPECT_TRUE(is_readable(address));
  EXPECT_FALSE(is_readable(address + kPageBytes));
}

}  // namespace
}  // namespace tencache
