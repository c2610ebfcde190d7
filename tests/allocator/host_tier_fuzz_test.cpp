// SPDX-License-Identifier: Apache-2.0
//
// The host tier in long random runs, by a printed seed: against a small model while memory and
// pinning are refused now and then, and with several threads at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/log.h"
#include "support/fake_pinner.h"
#include "support/host_tiers.h"
#include "support/random.h"

namespace tencache {
namespace {

/// Marks each page of a block and its last bytes, so that a page shared by two blocks is found out.
void stamp(const HostBlock& block, uint64_t value) {
  for (uint64_t offset = 0; offset < block.bytes; offset += kIoAlignment) {
    memcpy(block.memory + offset, &value, sizeof value);
  }
  memcpy(block.memory + block.capacity_bytes() - sizeof value, &value, sizeof value);
}

bool has_stamp(const HostBlock& block, uint64_t value) {
  uint64_t found = 0;
  for (uint64_t offset = 0; offset < block.bytes; offset += kIoAlignment) {
    memcpy(&found, block.memory + offset, sizeof found);
    if (found != value) return false;
  }
  memcpy(&found, block.memory + block.capacity_bytes() - sizeof found, sizeof found);
  return found == value;
}

uint64_t random_size(Random& random) {
  static constexpr uint64_t kCommon[] = {64 * kKiB, 128 * kKiB, 192 * kKiB};
  if (random.chance(0.6)) return kCommon[random.between(0, 2)];
  if (random.chance(0.05)) return random.between(kMiB, 5 * kMiB);
  return random.between(1, 300 * kKiB);
}

/// The reference: live blocks by address, each with its mark.
class Model {
 public:
  void add(const HostBlock& block) {
    const auto next = blocks_.lower_bound(block.memory);
    if (next != blocks_.end()) {
      ASSERT_LE(block.memory + block.capacity_bytes(), next->first);
    }
    if (next != blocks_.begin()) {
      const HostBlock& previous = std::prev(next)->second.first;
      ASSERT_LE(previous.memory + previous.capacity_bytes(), block.memory);
    }
    blocks_[block.memory] = {block, ++stamp_};
    asked_bytes_ += block.bytes;
    stamp(block, stamp_);
  }

  HostBlock remove(Random& random) {
    const auto found =
        std::next(blocks_.begin(), static_cast<ptrdiff_t>(random.between(0, blocks_.size() - 1)));
    const auto [block, value] = found->second;
    EXPECT_TRUE(has_stamp(block, value)) << "the bytes of a block changed";
    asked_bytes_ -= block.bytes;
    blocks_.erase(found);
    return block;
  }

  size_t size() const { return blocks_.size(); }
  uint64_t asked_bytes() const { return asked_bytes_; }

 private:
  std::map<char*, std::pair<HostBlock, uint64_t>> blocks_;
  uint64_t asked_bytes_ = 0;
  uint64_t stamp_ = 0;
};

/// One life of a tier, before its budget is reached and after. From then on only the budget
/// refuses.
class FuzzRun {
 public:
  explicit FuzzRun(uint64_t stream) : random_(stream) {}

  void run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      const double allocate_chance = step / 400 % 2 == 0 ? 0.65 : 0.35;
      if (model_.size() == 0 || random_.chance(allocate_chance)) {
        allocate();
      } else {
        tier_->release(model_.remove(random_));
      }
      compare();
    }
    EXPECT_GT(refusals_, 0U) << "nothing was ever refused";
    while (model_.size() > 0) tier_->release(model_.remove(random_));
    EXPECT_EQ(tier_->stats().asked_bytes, 0U);
    EXPECT_TRUE(tier_->is_valid());
  }

 private:
  static constexpr uint64_t kBudgetBytes = 24 * kMiB;

  void allocate() {
    refuses_memory_ = random_.chance(0.3);
    pinner_.refuse_after(random_.chance(0.3) ? 0 : 1);
    const uint64_t bytes = random_size(random_);
    const Result<HostBlock> block = tier_->allocate(bytes);
    if (!block.is_ok()) {
      ++refusals_;
      const StatusCode code = block.status().code();
      EXPECT_TRUE(code == StatusCode::kNoSpace || code == StatusCode::kOutOfMemory)
          << block.status().message();
      return;
    }
    EXPECT_EQ(block.value().bytes, bytes);
    EXPECT_EQ(block.value().is_pinned,
              pinner_.is_pinned(block.value().memory, block.value().capacity_bytes()));
    model_.add(block.value());
  }

  void compare() {
    const HostTierStats stats = tier_->stats();
    ASSERT_EQ(stats.asked_bytes, model_.asked_bytes());
    ASSERT_EQ(stats.block_count, model_.size());
    ASSERT_LE(stats.chunk_bytes, kBudgetBytes);
    ASSERT_EQ(stats.pinned_bytes, pinner_.pinned_bytes());
    if (random_.chance(0.05)) {
      ASSERT_TRUE(tier_->is_valid());
    }
  }

  Result<HostMemory> map(const HostMemoryRequest& request) const {
    if (refuses_memory_) return status_from_errno(ENOMEM, "cannot map");
    return HostMemory::map(request);
  }

  Random random_;
  FakePinner pinner_;
  Model model_;
  bool refuses_memory_ = false;
  uint64_t refusals_ = 0;
  const std::unique_ptr<HostTier> tier_ =
      make_tier({.budget_bytes = kBudgetBytes,
                 .chunk_bytes = kMiB,
                 .threads = 2,
                 .pinner = &pinner_,
                 .memory_factory = [this](const HostMemoryRequest& r) { return map(r); }});
};

TEST(HostTierFuzzTest, RandomStepsWithFaultsEqualAModel) {
  set_log_level(LogLevel::kError);  // each life has one warning about refused pins
  for (uint64_t life = 0; life < 20 && !HasFatalFailure(); ++life) FuzzRun(1 + life).run(2'000);
  set_log_level(LogLevel::kInfo);
}

TEST(HostTierFuzzTest, ThreadsAllocateAndReleaseAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kSteps = 3'000;
  constexpr uint64_t kBudgetBytes = 16 * kMiB;
  FakePinner pinner;
  const auto tier = make_tier(
      {.budget_bytes = kBudgetBytes, .chunk_bytes = kMiB, .threads = 2, .pinner = &pinner});
  std::atomic<bool> is_done{false};
  std::thread watcher([&] {
    while (!is_done) {
      EXPECT_LE(tier->stats().chunk_bytes, kBudgetBytes);
      EXPECT_TRUE(tier->is_valid());
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      Random random(100 + id);
      std::vector<HostBlock> live;
      for (int step = 0; step < kSteps; ++step) {
        if (live.empty() || (live.size() < 40 && random.chance(0.5))) {
          const Result<HostBlock> block = tier->allocate(random_size(random));
          if (!block.is_ok()) {
            EXPECT_EQ(block.status().code(), StatusCode::kNoSpace) << block.status().message();
            continue;
          }
          stamp(block.value(), reinterpret_cast<uintptr_t>(block.value().memory) + id);
          live.push_back(block.value());
        } else {
          std::swap(live[random.between(0, live.size() - 1)], live.back());
          const HostBlock block = live.back();
          live.pop_back();
          EXPECT_TRUE(has_stamp(block, reinterpret_cast<uintptr_t>(block.memory) + id));
          tier->release(block);
        }
      }
      for (const HostBlock& block : live) tier->release(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  is_done = true;
  watcher.join();
  EXPECT_EQ(tier->stats().asked_bytes, 0U);
  EXPECT_EQ(tier->stats().block_count, 0U);
  EXPECT_TRUE(tier->is_valid());
}

/// A factory that blocks until it is told to go on.
class SlowMemory {
 public:
  Result<HostMemory> map(const HostMemoryRequest& request) {
    ++calls_;
    MutexLock lock(mutex_);
    is_inside_ = true;
    changed_.notify_all();
    while (!may_leave_) changed_.wait(mutex_);
    return HostMemory::map(request);
  }
  void wait_until_inside() {
    MutexLock lock(mutex_);
    while (!is_inside_) changed_.wait(mutex_);
  }
  void let_go(bool go) {
    MutexLock lock(mutex_);
    may_leave_ = go;
    is_inside_ = false;
    changed_.notify_all();
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_{0};
  Mutex mutex_;
  CondVar changed_;
  bool is_inside_ TENCACHE_GUARDED_BY(mutex_) = false;
  bool may_leave_ TENCACHE_GUARDED_BY(mutex_) = true;
};

TEST(HostTierFuzzTest, WhoFindsRoomDoesNotWaitForGrowth) {
  SlowMemory memory;
  const auto tier =
      make_tier({.budget_bytes = 64 * kMiB,
                 .chunk_bytes = kMiB,
                 .memory_factory = [&](const HostMemoryRequest& r) { return memory.map(r); }});
  const HostBlock first = must_allocate(*tier, kMiB / 2);
  memory.let_go(false);
  std::thread growing([&] { must_allocate(*tier, kMiB); });
  memory.wait_until_inside();
  // If a lock were held now, this thread would wait for ever.
  const HostBlock second = must_allocate(*tier, kMiB / 2);
  EXPECT_EQ(tier->stats().chunk_bytes, 2 * kMiB) << "what is being mapped is reserved";
  tier->release(first);
  tier->release(second);
  memory.let_go(true);
  growing.join();
  EXPECT_EQ(tier->stats().mapped_chunks.current, 2U);
}

TEST(HostTierFuzzTest, ThreadsThatFindNoRoomTogetherGrowOnce) {
  SlowMemory memory;
  const auto tier =
      make_tier({.budget_bytes = 64 * kMiB,
                 .chunk_bytes = kMiB,
                 .memory_factory = [&](const HostMemoryRequest& r) { return memory.map(r); }});
  memory.let_go(false);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { must_allocate(*tier, kMiB / 4); });
  }
  memory.wait_until_inside();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time for the others to arrive
  memory.let_go(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.calls(), 1);
  EXPECT_EQ(tier->stats().chunk_bytes, kMiB);
  EXPECT_EQ(tier->stats().block_count, 4U);
}

}  // namespace
}  // namespace tencache
