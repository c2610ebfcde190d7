// SPDX-License-Identifier: Apache-2.0
//
// ExtentWord: the one atomic word of an extent. It says where the extent's bytes are (its state),
// who uses it (its pins) and what is known of its use (its flags). This is what an op needs of an
// extent: to pin it, and to see whether its bytes are there. Only Extent's methods change the
// state; memory/extent.h has the state machine and its invariants.
//
// The word: pins in the upper half, flags from bit 4 on, the state in the lowest four bits.
//
// Threads: any thread calls the methods below, all of them lock-free but wait_while().
#pragma once

#include <atomic>
#include <cstdint>

namespace tencache {

enum class ExtentState : uint8_t {
  kVacant = 0,
  kCached = 1,
  kResident = 2,
  kEvicting = 3,
  kSealing = 4,
  kCold = 5,
  kFetching = 6,
  kMerging = 7,
  kArriving = 8,
};

/// Flags of the word: whether a thread works on the extent, and what is known from its use.
inline constexpr uint64_t kFlagBusy = 1u << 4;  // one thread migrates, demotes or recycles it
inline constexpr uint64_t kFlagSeen = 1u << 5;  // an op has named it: it may go cold
inline constexpr uint64_t kFlagKeepResident = 1u << 6;  // never evicted until freed
inline constexpr uint64_t kFlagDirty = 1u << 7;  // an op announced a write since the copy was made
inline constexpr uint64_t kFlagAhead = 1u << 8;  // fetched ahead of use and not used since
inline constexpr uint64_t kUseFlags = kFlagSeen | kFlagKeepResident | kFlagDirty | kFlagAhead;
inline constexpr uint64_t kStateMask = 0xf;
inline constexpr uint64_t kOnePin = uint64_t{1} << 32;

class ExtentWord {
 public:
  uint64_t load() const { return word_.load(std::memory_order_acquire); }
  static ExtentState state_of(uint64_t word) { return static_cast<ExtentState>(word & kStateMask); }
  static uint64_t pins_of(uint64_t word) { return word >> 32; }
  ExtentState state() const { return state_of(load()); }
  bool has(uint64_t flag) const { return (load() & flag) != 0; }

  /// Pins and returns the word as it was: the bytes are usable at once if usable_in(its state).
  uint64_t pin() { return word_.fetch_add(kOnePin, std::memory_order_acq_rel); }
  void unpin() { word_.fetch_sub(kOnePin, std::memory_order_release); }
  static bool usable_in(ExtentState state) {
    return state == ExtentState::kResident || state == ExtentState::kEvicting;
  }
  void set_flags(uint64_t flags) { word_.fetch_or(flags, std::memory_order_relaxed); }
  /// Whether the extent was fetched ahead of this use; true for one caller only.
  bool take_ahead() {
    return (word_.fetch_and(~kFlagAhead, std::memory_order_relaxed) & kFlagAhead) != 0;
  }

  /// Blocks until the word differs from `seen`.
  void wait_while(uint64_t seen) const { word_.wait(seen, std::memory_order_acquire); }

  /// Whether claim_for_eviction() would succeed now.
  bool may_be_evicted() const { return rests_with(kFlagSeen); }
  /// Whether it might be evicted if an op had named it.
  bool is_kept_unseen() const { return rests_with(0); }

 protected:
  std::atomic<uint64_t> word_{0};

 private:
  /// Whether the extent is resident, nobody uses it, and of the flags that matter to evictions it
  /// has exactly these.
  bool rests_with(uint64_t flags) const {
    const uint64_t word = load();
    return state_of(word) == ExtentState::kResident && pins_of(word) == 0 &&
           (word & (kFlagSeen | kFlagBusy | kFlagKeepResident)) == flags;
  }
};

}  // namespace tencache
