// SPDX-License-Identifier: Apache-2.0
//
// DiskTier across real forks: slots that a child maps stay as they were at the fork, however long
// the child and its own children live, and come back once these are gone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>

#include "base/units.h"
#include "support/aligned_buffer.h"
#include "support/child_process.h"
#include "support/eventually.h"
#include "support/random.h"
#include "support/test_directory.h"
#include "tier/disk_tier.h"

namespace tencache {
namespace {

/// A child that waits for a signal to go on, then runs `last` and exits with its result.
class HeldChild {
 public:
  HeldChild(DiskTier& tier, const std::function<void()>& first, const std::function<int()>& last) {
    int go[2];
    int ready[2];
    TENCACHE_CHECK(pipe(go) == 0 && pipe(ready) == 0);
    tier.freeze_before_fork();
    pid_ = fork();
    if (pid_ == 0) {
      close(go[1]);
      first();
      char byte = 0;
      (void)!write(ready[1], &byte, 1);
      (void)!read(go[0], &byte, 1);
      _exit(last());
    }
    tier.after_fork_in_parent();
    close(go[0]);
    close(ready[1]);
    go_ = go[1];
    char byte = 0;
    (void)!read(ready[0], &byte, 1);
    close(ready[0]);
  }
  explicit HeldChild(DiskTier& tier)
      : HeldChild(
            tier, [] {}, [] { return 0; }) {}
  ~HeldChild() {
    if (pid_ > 0) finish();
  }

  /// Lets the child go on and waits for its end; returns the exit status.
  int finish() {
    // This sends a byte, and does not end the pipe, because children forked later hold the pipe
    // open.
    const char byte = 0;
    (void)!write(go_, &byte, 1);
    return wait();
  }

  /// Kills the child and waits for its end; returns the exit status.
  int kill_and_wait() {
    kill(pid_, SIGKILL);
    return wait();
  }

 private:
  int wait() {
    close(go_);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  pid_t pid_ = -1;
  int go_ = -1;
};

class DiskTierForkTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kQuota = 8 * kMiB;
  static constexpr uint64_t kBytes = 2 * kMiB;

  DiskTierForkTest() {
    DiskTierConfig config;
    config.directory = directory_.path();
    config.quota_bytes = kQuota;
    Result<std::unique_ptr<DiskTier>> tier = DiskTier::open(config);
    TENCACHE_CHECK(tier.is_ok(), "%s", tier.status().message().c_str());
    tier_ = std::move(tier).value();
  }

  Slot take(uint64_t bytes = kBytes) {
    Result<Slot> slot = tier_->allocate(bytes);
    EXPECT_TRUE(slot.is_ok()) << slot.status().message();
    return slot.is_ok() ? slot.value() : Slot{};
  }
  void store(const Slot& slot, char byte) {
    AlignedBuffer buffer(slot.bytes);
    memset(buffer.data(), byte, buffer.bytes());
    const IoSegment segment = {buffer.data(), slot.offset, slot.bytes};
    const TransferResult result = tier_->write({&segment, 1}, nullptr);
    EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  }
  /// Maps the slot as a cold extent is mapped.
  char* map(const Slot& slot) {
    void* cold = mmap(nullptr, slot.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                      tier_->fd(), static_cast<off_t>(slot.offset));
    TENCACHE_CHECK(cold != MAP_FAILED);
    return static_cast<char*>(cold);
  }
  static bool all_are(const char* memory, uint64_t bytes, char byte) {
    return memory[0] == byte && memcmp(memory, memory + 1, bytes - 1) == 0;
  }
  /// Whether all slots come back, once any call that takes or releases notices that children are
  /// gone.
  bool all_comes_back() {
    return eventually([this] {
      tier_->release(take());
      return tier_->used_bytes() == 0;
    });
  }
  /// Takes everything free in slots of kBytes, overwrites it, and returns the number of slots.
  size_t overwrite_all_free() {
    std::vector<Slot> slots;
    for (;;) {
      Result<Slot> slot = tier_->allocate(kBytes);
      if (!slot.is_ok()) break;
      store(slot.value(), 'x');
      slots.push_back(slot.value());
    }
    for (const Slot& slot : slots) tier_->release(slot);
    return slots.size();
  }

  TestDirectory directory_;
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierForkTest, AForkFreezesWhatIsInUse) {
  const Slot before = take();
  EXPECT_TRUE(tier_->is_writable(before));
  HeldChild child(*tier_);
  EXPECT_FALSE(tier_->is_writable(before));
  const Slot after = take();
  EXPECT_TRUE(tier_->is_writable(after)) << "taken after the fork: no child maps it";
  tier_->release(after);
  EXPECT_EQ(tier_->used_bytes(), kBytes);
  EXPECT_EQ(child.finish(), 0);
  tier_->release(take());  // any call that takes or releases notices that the child is gone
  EXPECT_TRUE(tier_->is_writable(before));
  tier_->release(before);
  EXPECT_EQ(tier_->used_bytes(), 0U);
}

TEST_F(DiskTierForkTest, AForkWithNothingInUseFreezesNothing) {
  HeldChild child(*tier_);
  const Slot slot = take();
  EXPECT_TRUE(tier_->is_writable(slot));
  tier_->release(slot);
  EXPECT_EQ(tier_->used_bytes(), 0U);
}

TEST_F(DiskTierForkTest, TheChildSeesItsBytesUntilItIsGone) {
  const Slot slot = take();
  store(slot, 'a');
  char* cold = map(slot);
  HeldChild child(
      *tier_, [] {}, [&] { return all_are(cold, kBytes, 'a') ? 0 : 1; });
  munmap(cold, kBytes);
  tier_->release(slot);
  EXPECT_EQ(tier_->used_bytes(), kBytes) << "released, and kept for the child";
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes - 1);
  const Status refused = tier_->allocate(kQuota).status();
  EXPECT_NE(refused.message().find("2.00 MiB of them held for forked processes"), std::string::npos)
      << refused.message();
  EXPECT_EQ(child.finish(), 0) << "the child saw other bytes than those of the fork";
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes);
}

TEST_F(DiskTierForkTest, AChildOfTheChildCounts) {
  const Slot slot = take();
  store(slot, 'b');
  char* cold = map(slot);
  int answer[2];
  ASSERT_EQ(pipe(answer), 0);
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  HeldChild child(
      *tier_,
      [&] {
        tier_->freeze_before_fork();  // in a child this freezes nothing
        if (fork() != 0) return;
        close(go[1]);
        char byte = 0;
        (void)!read(go[0], &byte, 1);
        byte = all_are(cold, kBytes, 'b') ? 'y' : 'n';
        (void)!write(answer[1], &byte, 1);
        _exit(0);
      },
      [] { return 0; });
  munmap(cold, kBytes);
  tier_->release(slot);
  EXPECT_EQ(child.finish(), 0);
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes - 1) << "the grandchild lives";
  close(go[0]);
  close(go[1]);
  char byte = 0;
  EXPECT_EQ(read(answer[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  // We cannot wait for the grandchild itself: its mappings go soon after its answer.
  EXPECT_TRUE(all_comes_back());
  close(answer[0]);
  close(answer[1]);
}

TEST_F(DiskTierForkTest, AChildThatClosesItsDescriptorsStillCounts) {
  const Slot slot = take();
  store(slot, 'c');
  char* cold = map(slot);
  // The child closes the spill file, as daemons close everything; the pipe that holds the child
  // stays open.
  HeldChild child(
      *tier_, [&] { syscall(SYS_close_range, tier_->fd(), tier_->fd(), 0); },
      [&] { return all_are(cold, kBytes, 'c') ? 0 : 1; });
  munmap(cold, kBytes);
  tier_->release(slot);
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes - 1);
  EXPECT_EQ(child.finish(), 0);
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes);
}

TEST_F(DiskTierForkTest, AChildThatExecsIsGone) {
  const Slot slot = take();
  tier_->freeze_before_fork();
  const pid_t pid = fork();
  if (pid == 0) {
    execl("/bin/sleep", "sleep", "60", nullptr);
    _exit(1);
  }
  tier_->after_fork_in_parent();
  tier_->release(slot);
  EXPECT_TRUE(all_comes_back());
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0) << "the program that was started still runs";
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(DiskTierForkTest, AKilledChildIsGone) {
  const Slot slot = take();
  HeldChild child(*tier_);
  tier_->release(slot);
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes - 1);
  EXPECT_EQ(child.kill_and_wait(), 128 + SIGKILL);
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes);
}

TEST_F(DiskTierForkTest, AForkThatFailsFreezesNothing) {
  const Slot slot = take();
  tier_->freeze_before_fork();
  tier_->after_fork_in_parent();  // the handlers do this when fork() itself failed
  tier_->release(slot);
  EXPECT_EQ(tier_->used_bytes(), 0U);
}

TEST_F(DiskTierForkTest, SeveralForksInAnyOrder) {
  const Slot first = take();
  HeldChild older(*tier_);
  const Slot second = take();
  HeldChild newer(*tier_);
  const Slot third = take();
  EXPECT_FALSE(tier_->is_writable(first));
  EXPECT_FALSE(tier_->is_writable(second));
  EXPECT_TRUE(tier_->is_writable(third));
  tier_->release(first);
  tier_->release(second);
  EXPECT_EQ(tier_->used_bytes(), 3 * kBytes);
  newer.finish();
  tier_->release(third);
  EXPECT_EQ(tier_->used_bytes(), kBytes) << "the first slot is still the older child's";
  older.finish();
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes);

  // The older child ends first; the newer one still freezes the slots that both froze.
  const Slot again = take();
  HeldChild older_again(*tier_);
  HeldChild newer_again(*tier_);
  older_again.finish();
  tier_->release(again);
  EXPECT_EQ(tier_->used_bytes(), kBytes);
  newer_again.finish();
  EXPECT_EQ(overwrite_all_free(), kQuota / kBytes);
}

TEST_F(DiskTierForkTest, AForkAfterTheReleaseDoesNotProlongIt) {
  const Slot slot = take();
  HeldChild mapper(*tier_);
  tier_->release(slot);
  HeldChild later(*tier_);
  mapper.finish();
  tier_->release(take());
  EXPECT_EQ(tier_->used_bytes(), 0U) << "the later child never mapped the slot";
  later.finish();
}

TEST_F(DiskTierForkTest, ManyForksLeaveNoDescriptors) {
  const Slot slot = take();
  const auto lowest_free_fd = [] {
    const int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
  };
  const int before = lowest_free_fd();
  for (int i = 0; i < 100; ++i) {
    HeldChild child(*tier_);
    child.finish();
  }
  EXPECT_LE(lowest_free_fd(), before + 1);
  tier_->release(slot);
  EXPECT_EQ(tier_->used_bytes(), 0U);
}

TEST_F(DiskTierForkTest, WithoutATokenSlotsStayFrozenForGood) {
  const Slot slot = take();
  const int result = run_in_child([&] {
    // The child opens a tier of its own, since it does not own the parent's.
    DiskTierConfig config;
    config.directory = directory_.path();
    config.quota_bytes = kQuota;
    Result<std::unique_ptr<DiskTier>> own = DiskTier::open(config);
    ASSERT_TRUE(own.is_ok());
    DiskTier& tier = *own.value();
    const Slot first = tier.allocate(kBytes).value();
    if (!deny_syscall(SYS_memfd_create, EPERM)) _exit(kSkipped);
    for (int i = 0; i < 3; ++i) HeldChild(tier).finish();
    EXPECT_FALSE(tier.is_writable(first));
    const Slot second = tier.allocate(kBytes).value();
    EXPECT_TRUE(tier.is_writable(second));
    tier.release(first);
    tier.release(second);
    EXPECT_EQ(tier.used_bytes(), kBytes) << "nobody can tell whether a child still maps the first";
  });
  if (result == kSkipped) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(result, 0);
  tier_->release(slot);
}

TEST_F(DiskTierForkTest, AChildMovesNothing) {
  const Slot slot = take();
  store(slot, 'd');
  const int result = run_in_child([&] {
    AlignedBuffer buffer(kBytes);
    const IoSegment segment = {buffer.data(), slot.offset, slot.bytes};
    for (const bool writes : {true, false}) {
      const TransferResult transfer =
          writes ? tier_->write({&segment, 1}, nullptr) : tier_->read({&segment, 1}, nullptr);
      EXPECT_EQ(transfer.status.code(), StatusCode::kFailedPrecondition);
      EXPECT_EQ(transfer.bytes, 0U);
    }
    tier_.reset();  // must neither hang nor touch the parent's rings and threads
  });
  EXPECT_EQ(result, 0);
  AlignedBuffer buffer(kBytes);
  const IoSegment segment = {buffer.data(), slot.offset, slot.bytes};
  ASSERT_TRUE(tier_->read({&segment, 1}, nullptr).status.is_ok());
  EXPECT_TRUE(all_are(buffer.data(), kBytes, 'd'));
}

TEST_F(DiskTierForkTest, AChildMayDropATierWithThreads) {
  DiskTierConfig config;
  config.directory = directory_.path();
  config.quota_bytes = kQuota;
  config.io_uring = Choice::kOff;
  Result<std::unique_ptr<DiskTier>> tier = DiskTier::open(config);
  ASSERT_TRUE(tier.is_ok());
  const Slot slot = tier.value()->allocate(kBytes).value();
  AlignedBuffer buffer(kBytes);
  const IoSegment segment = {buffer.data(), slot.offset, slot.bytes};
  ASSERT_TRUE(tier.value()->write({&segment, 1}, nullptr).status.is_ok());
  EXPECT_EQ(run_in_child([&] { tier.value().reset(); }), 0);
}

}  // namespace
}  // namespace tencache
