// SPDX-License-Identifier: Apache-2.0
//
// The state machine of an extent: which transition is allowed where, and what happens to pins and
// flags. A pin and an eviction never both win.
#include "memory/extent.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.h"

namespace tencache {
namespace {

using enum ExtentState;

/// Brings a fresh extent into a state by the methods that lead there.
void lead_to(Extent& extent, ExtentState state) {
  if (state == kVacant) return;
  extent.commit();
  extent.set_flags(kFlagSeen);
  if (state == kCached) {
    ASSERT_EQ(extent.retire(), Retired::kCached);
  }
  if (state == kResident || state == kCached) return;
  ASSERT_TRUE(extent.claim_for_eviction());
  if (state == kEvicting) return;
  ASSERT_TRUE(extent.seal());
  if (state == kSealing) return;
  extent.become_cold();
  if (state == kCold) return;
  ASSERT_TRUE(extent.claim_for_fetch());
  if (state == kFetching) return;
  if (state == kArriving) return extent.become_arriving();
  extent.begin_merge();
}

const ExtentState kAllStates[] = {kVacant, kCached,   kResident, kEvicting, kSealing,
                                  kCold,   kFetching, kMerging,  kArriving};

// Some transitions may be refused. The table says where each is taken, and where it leads.
TEST(ExtentTest, ClaimsAreTakenInTheirStatesOnly) {
  struct Claim {
    const char* name;
    std::function<bool(Extent&)> take;
    std::map<ExtentState, ExtentState> leads;
  };
  const Claim claims[] = {
      {"claim_for_eviction", &Extent::claim_for_eviction, {{kResident, kEvicting}}},
      {"reaffirm_eviction", &Extent::reaffirm_eviction, {{kEvicting, kEvicting}}},
      {"seal", &Extent::seal, {{kEvicting, kSealing}}},
      {"claim_for_fetch", &Extent::claim_for_fetch, {{kCold, kFetching}}},
      {"claim_cold", &Extent::claim_cold, {{kCold, kCold}}},
      {"claim_for_trim", &Extent::claim_for_trim, {{kCached, kVacant}}},
      {"try_take_busy", &Extent::try_take_busy, {{kResident, kResident}}},
  };
  for (const Claim& claim : claims) {
    for (const ExtentState state : kAllStates) {
      Extent extent;
      lead_to(extent, state);
      const uint64_t before = extent.load();
      const auto lead = claim.leads.find(state);
      const bool expected = lead != claim.leads.end();
      EXPECT_EQ(claim.take(extent), expected) << claim.name << " in " << static_cast<int>(state);
      if (expected) {
        EXPECT_EQ(extent.state(), lead->second) << claim.name;
      } else {
        EXPECT_EQ(extent.load(), before) << claim.name << " in " << static_cast<int>(state);
      }
    }
  }
}

TEST(ExtentTest, RetiringLeadsWhereItsMemoryIs) {
  const std::map<ExtentState, Retired> leads = {{kResident, Retired::kCached},
                                                {kEvicting, Retired::kCached},
                                                {kArriving, Retired::kCached},
                                                {kCold, Retired::kVacant}};
  for (const auto& [state, lead] : leads) {
    Extent extent;
    lead_to(extent, state);
    const bool was_busy = extent.has(kFlagBusy);
    EXPECT_EQ(extent.retire(), lead) << "in " << static_cast<int>(state);
    EXPECT_EQ(extent.state(), lead == Retired::kCached ? kCached : kVacant);
    EXPECT_EQ(extent.has(kFlagBusy), was_busy || lead == Retired::kVacant);
  }
}

TEST(ExtentTest, RetiringWaitsForTheEndOfAWindow) {
  struct End {
    ExtentState state;
    void (Extent::*end)();
    Retired lead;
  };
  const End ends[] = {
      {kSealing, &Extent::become_cold, Retired::kVacant},
      {kSealing, &Extent::unseal, Retired::kCached},
      {kSealing, &Extent::abandon_eviction, Retired::kCached},
      {kMerging, &Extent::become_resident, Retired::kCached},
      {kMerging, &Extent::abandon_fetch, Retired::kVacant},
      {kFetching, &Extent::become_arriving, Retired::kCached},
  };
  for (const End& end : ends) {
    Extent extent;
    lead_to(extent, end.state);
    std::atomic<bool> is_over = false;
    std::jthread freeing([&] {
      EXPECT_EQ(extent.retire(), end.lead) << "in " << static_cast<int>(end.state);
      is_over = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_FALSE(is_over);
    (extent.*end.end)();
  }
}

// Between two looks of the freeing thread, another thread may claim the extent and give it up.
TEST(ExtentTest, RetiringNeverWaitsForWhatHasEnded) {
  constexpr int kRounds = 20000;
  std::vector<Extent> extents(kRounds);
  for (Extent& extent : extents) lead_to(extent, kCold);
  std::atomic<int> begun = 0;
  std::atomic<int> freed = 0;
  std::jthread freeing([&] {
    for (int index = 0; index < kRounds; ++index) {
      while (begun.load() <= index) std::this_thread::yield();
      extents[index].retire();
      freed.store(index + 1);
    }
  });
  int stuck = 0;
  for (int index = 0; index < kRounds; ++index) {
    begun.store(index + 1);
    if (extents[index].claim_for_fetch()) extents[index].abandon_fetch();
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(stuck > 0 ? 0 : 30);
    while (freed.load() <= index && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    if (freed.load() > index) continue;
    ++stuck;
    extents[index].pin();  // changes the word, so that the thread looks once more when it is woken
    extents[index].release_busy();
    while (freed.load() <= index) std::this_thread::yield();
  }
  EXPECT_EQ(stuck, 0);
}

TEST(ExtentTest, UsableStatesAreThoseWithWritableAnonymousPages) {
  for (const ExtentState state : kAllStates) {
    EXPECT_EQ(Extent::usable_in(state), state == kResident || state == kEvicting);
  }
}

TEST(ExtentDeathTest, RetiringTwiceIsADoubleFree) {
  Extent extent;
  lead_to(extent, kCached);
  EXPECT_DEATH(extent.retire(), "double free");
}

TEST(ExtentDeathTest, ForcedTransitionsCheckTheirState) {
  const std::function<void(Extent&)> forced[] = {
      &Extent::unseal,          &Extent::become_cold,   &Extent::begin_merge,
      &Extent::become_resident, &Extent::abandon_fetch, &Extent::revive,
      &Extent::become_arriving, &Extent::cancel_trim,
  };
  for (const auto& transition : forced) {
    EXPECT_DEATH(
        {
          Extent extent;
          extent.commit();
          transition(extent);
        },
        "check failed.*state 2");
  }
  Extent committed;
  committed.commit();
  EXPECT_DEATH(committed.commit(), "check failed.*state 2");
}

TEST(ExtentTest, OnlySeenUnpinnedExtentsAreEvicted) {
  Extent extent;
  extent.commit();
  EXPECT_FALSE(extent.may_be_evicted());
  EXPECT_FALSE(extent.claim_for_eviction()) << "not seen";
  extent.set_flags(kFlagSeen);
  EXPECT_TRUE(extent.may_be_evicted());
  extent.pin();
  EXPECT_FALSE(extent.may_be_evicted());
  EXPECT_FALSE(extent.claim_for_eviction()) << "pinned";
  extent.unpin();
  extent.set_flags(kFlagKeepResident);
  EXPECT_FALSE(extent.may_be_evicted());
  EXPECT_FALSE(extent.claim_for_eviction()) << "kept resident";
}

TEST(ExtentTest, SealRefusesPinsAndKeptExtents) {
  Extent pinned;
  lead_to(pinned, kEvicting);
  EXPECT_TRUE(Extent::usable_in(Extent::state_of(pinned.pin())));
  EXPECT_FALSE(pinned.seal());
  pinned.unpin();
  EXPECT_TRUE(pinned.seal());
  Extent kept;
  lead_to(kept, kEvicting);
  kept.set_flags(kFlagKeepResident);
  EXPECT_FALSE(kept.seal());
}

TEST(ExtentTest, AbandonedEvictionsLeaveItResidentOrCached) {
  for (const ExtentState state : {kEvicting, kSealing}) {
    Extent extent;
    lead_to(extent, state);
    extent.abandon_eviction();
    EXPECT_EQ(extent.state(), kResident);
    EXPECT_FALSE(extent.has(kFlagBusy));
    EXPECT_TRUE(extent.may_be_evicted());
  }
  Extent freed;
  lead_to(freed, kEvicting);
  ASSERT_EQ(freed.retire(), Retired::kCached);
  EXPECT_TRUE(freed.has(kFlagBusy));
  EXPECT_FALSE(freed.claim_for_trim()) << "its writer still reads it";
  freed.abandon_eviction();
  EXPECT_EQ(freed.state(), kCached);
  EXPECT_TRUE(freed.claim_for_trim());
}

TEST(ExtentTest, AbandonedFetchesLeaveItCold) {
  for (const ExtentState state : {kFetching, kMerging}) {
    Extent extent;
    lead_to(extent, state);
    extent.abandon_fetch();
    EXPECT_EQ(extent.state(), kCold);
    EXPECT_TRUE(extent.claim_for_fetch());
  }
}

TEST(ExtentTest, FlagsEndWithTheLifeAndDirtyWithTheEviction) {
  Extent extent;
  extent.commit();
  extent.set_flags(kUseFlags & ~kFlagKeepResident);
  ASSERT_TRUE(extent.claim_for_eviction());
  ASSERT_TRUE(extent.seal());
  extent.become_cold();
  EXPECT_FALSE(extent.has(kFlagDirty));
  EXPECT_TRUE(extent.has(kFlagSeen));
  ASSERT_TRUE(extent.claim_for_fetch());
  extent.begin_merge();
  extent.become_resident();
  extent.set_flags(kUseFlags);
  ASSERT_EQ(extent.retire(), Retired::kCached);
  extent.revive();
  EXPECT_EQ(extent.load() & kUseFlags, 0u);
}

TEST(ExtentTest, ArrivalEndsWhereTheProgramLeftIt) {
  Extent extent;
  lead_to(extent, kArriving);
  EXPECT_FALSE(extent.may_be_evicted());
  extent.settle();
  EXPECT_EQ(extent.state(), kResident);
  EXPECT_TRUE(extent.may_be_evicted());

  Extent freed;
  lead_to(freed, kArriving);
  ASSERT_EQ(freed.retire(), Retired::kCached);
  EXPECT_FALSE(freed.claim_for_trim());  // the copy is still under way
  freed.settle();
  EXPECT_EQ(freed.state(), kCached);
  EXPECT_TRUE(freed.claim_for_trim());
  freed.cancel_trim();
  EXPECT_EQ(freed.state(), kCached);

  Extent revived;
  lead_to(revived, kArriving);
  ASSERT_EQ(revived.retire(), Retired::kCached);
  revived.revive();
  revived.set_flags(kFlagSeen);
  EXPECT_FALSE(revived.claim_for_eviction());
  revived.settle();
  EXPECT_TRUE(revived.claim_for_eviction());
}

// The extent is cold all the while; nobody else moves it, and a free does not wait.
TEST(ExtentTest, DemotionKeepsOthersOffUntilItsEnd) {
  Extent extent;
  lead_to(extent, kCold);
  ASSERT_TRUE(extent.claim_cold());
  EXPECT_FALSE(extent.claim_cold());
  EXPECT_FALSE(extent.claim_for_fetch());
  EXPECT_TRUE(extent.release_cold());
  EXPECT_FALSE(extent.has(kFlagBusy));
  ASSERT_TRUE(extent.claim_cold());
  EXPECT_EQ(extent.retire(), Retired::kLeftToClaimer);
  EXPECT_EQ(extent.state(), kVacant);
  EXPECT_FALSE(extent.release_cold());
  EXPECT_TRUE(extent.has(kFlagBusy));
  extent.become_vacant();
  lead_to(extent, kCold);
  extent.pin();
  EXPECT_FALSE(extent.claim_cold());
}

// A thread that waits to fetch the extent learns that it was freed meanwhile.
TEST(ExtentTest, LeavingToADemotionWakesWhoWaits) {
  Extent extent;
  lead_to(extent, kCold);
  ASSERT_TRUE(extent.claim_cold());
  std::atomic<bool> is_awake = false;
  const uint64_t seen = extent.load();
  std::thread waiting([&] {
    extent.wait_while(seen);
    is_awake = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(extent.retire(), Retired::kLeftToClaimer);
  EXPECT_TRUE(eventually([&] { return is_awake.load(); }));
  extent.become_vacant();
  lead_to(extent, kResident);
  waiting.join();
}

TEST(ExtentTest, PinsRequestsAndFreesWantADemotedExtent) {
  Extent extent;
  lead_to(extent, kCold);
  extent.last_use_at = 100;
  ASSERT_TRUE(extent.claim_cold());
  EXPECT_FALSE(is_wanted_since(extent, 100));
  EXPECT_TRUE(is_wanted_since(extent, 99));
  extent.pin();
  EXPECT_TRUE(is_wanted_since(extent, 100));
  extent.unpin();
  EXPECT_FALSE(is_wanted_since(extent, 100));
  extent.retire();
  EXPECT_TRUE(is_wanted_since(extent, 100));
}

TEST(ExtentTest, StreamsThatUseItAddUp) {
  Extent extent;
  extent.note_streams(kNoStreams);
  EXPECT_EQ(extent.used_by.load(), kNoStreams);
  extent.note_streams(0b100);
  extent.note_streams(0b001);
  extent.note_streams(0b100);
  EXPECT_EQ(extent.used_by.load(), StreamSet{0b101});
}

TEST(ExtentTest, PresumedCleanNeedsAWrittenSlotAndNoWriteSince) {
  Extent extent;
  extent.commit();
  EXPECT_FALSE(extent.is_presumed_clean());
  extent.has_copy_below = true;
  EXPECT_TRUE(extent.is_presumed_clean());
  extent.set_flags(kFlagDirty);
  EXPECT_FALSE(extent.is_presumed_clean());
}

TEST(ExtentTest, PinsOutliveTheExtentsLife) {
  Extent extent;
  lead_to(extent, kCold);
  extent.pin();
  ASSERT_EQ(extent.retire(), Retired::kVacant);
  extent.become_vacant();
  EXPECT_EQ(Extent::pins_of(extent.load()), 1u);
  extent.commit();
  extent.set_flags(kFlagSeen);
  EXPECT_FALSE(extent.claim_for_eviction());
  extent.unpin();
  EXPECT_EQ(Extent::pins_of(extent.load()), 0u);
  EXPECT_TRUE(extent.claim_for_eviction());
}

TEST(ExtentTest, TrimRefusesPinned) {
  Extent extent;
  lead_to(extent, kCached);
  extent.pin();
  EXPECT_FALSE(extent.claim_for_trim());
  extent.unpin();
  EXPECT_TRUE(extent.claim_for_trim());
  EXPECT_TRUE(extent.has(kFlagBusy));
  extent.become_vacant();
  EXPECT_EQ(extent.load(), 0u);
}

TEST(ExtentTest, WaiterWakesAtEachEndOfAWindow) {
  const std::pair<ExtentState, void (Extent::*)()> ends[] = {
      {kSealing, &Extent::become_cold},      {kSealing, &Extent::unseal},
      {kSealing, &Extent::abandon_eviction}, {kMerging, &Extent::become_resident},
      {kMerging, &Extent::abandon_fetch},    {kFetching, &Extent::become_arriving},
      {kArriving, &Extent::settle},
  };
  for (const auto& [state, end] : ends) {
    Extent extent;
    lead_to(extent, state);
    const uint64_t seen = extent.load();
    std::jthread waiter([&] { extent.wait_while(seen); });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    (extent.*end)();
    waiter.join();  // hangs if nobody woke it
    EXPECT_NE(extent.load(), seen);
  }
}

// Invariant 2 under threads: as long as a pin that found the extent usable is held, the extent does
// not go cold.
TEST(ExtentTest, PinAndEvictionNeverBothWin) {
  constexpr int kPinners = 3;
  constexpr int kRounds = 20000;
  Extent extent;
  extent.commit();
  extent.set_flags(kFlagSeen);
  std::atomic<int> wrong{0};
  std::atomic<bool> is_over{false};
  std::vector<std::jthread> pinners;
  for (int index = 0; index < kPinners; ++index) {
    pinners.emplace_back([&] {
      while (!is_over.load()) {
        const uint64_t word = extent.pin();
        if (Extent::usable_in(Extent::state_of(word))) {
          for (int look = 0; look < 5; ++look) {
            if (!Extent::usable_in(extent.state())) wrong.fetch_add(1);
          }
        }
        extent.unpin();
        std::this_thread::yield();
      }
    });
  }
  int cold = 0;
  // A thread that holds a pin may be off its core for all these rounds, but not for a minute.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto may_go_on = [&] { return cold == 0 && std::chrono::steady_clock::now() < deadline; };
  for (int round = 0; round < kRounds || may_go_on(); ++round) {
    if (round >= kRounds) std::this_thread::yield();
    if (!extent.claim_for_eviction()) continue;
    if (!extent.seal()) {
      extent.abandon_eviction();
      continue;
    }
    extent.become_cold();
    ++cold;
    ASSERT_TRUE(extent.claim_for_fetch());
    extent.begin_merge();
    extent.become_resident();
  }
  is_over.store(true);
  pinners.clear();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(cold, 0);
  EXPECT_EQ(Extent::pins_of(extent.load()), 0u);
}

}  // namespace
}  // namespace tencache
