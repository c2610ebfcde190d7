// SPDX-License-Identifier: Apache-2.0
#include "memory/extent.h"

namespace tencache {
namespace {

constexpr uint64_t kPinsMask = ~uint64_t{0} << 32;

constexpr uint64_t bit(ExtentState state) { return uint64_t{1} << static_cast<unsigned>(state); }

constexpr uint64_t with_state(uint64_t word, ExtentState state) {
  return (word & ~kStateMask) | static_cast<uint64_t>(state);
}

}  // namespace

/// Where a transition may begin, and what it changes.
struct Extent::Change {
  uint64_t from;  // states, as bits
  ExtentState to;
  uint64_t if_clear = 0;  // bits of the word that must be clear
  uint64_t if_set = 0;
  uint64_t set = 0;
  uint64_t clear = 0;
};

bool Extent::transition(const Change& change) {
  uint64_t word = word_.load(std::memory_order_acquire);  // acquire: a refusal tells something, too
  for (;;) {
    const bool allowed = (bit(state_of(word)) & change.from) != 0 &&
                         (word & change.if_clear) == 0 && (word & change.if_set) == change.if_set;
    if (!allowed) return false;
    const uint64_t next = (with_state(word, change.to) & ~change.clear) | change.set;
    if (word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      word_.notify_all();
      return true;
    }
  }
}

void Extent::must(const Change& change) {
  const bool done = transition(change);
  TENCACHE_CHECK(done, "state %u cannot become %u", static_cast<unsigned>(state()),
                 static_cast<unsigned>(change.to));
}

bool Extent::claim_for_eviction() {
  return transition({.from = bit(kResident),
                     .to = kEvicting,
                     .if_clear = kPinsMask | kFlagBusy | kFlagKeepResident,
                     .if_set = kFlagSeen,
                     .set = kFlagBusy});
}

bool Extent::reaffirm_eviction() { return transition({.from = bit(kEvicting), .to = kEvicting}); }

bool Extent::seal() {
  return transition(
      {.from = bit(kEvicting), .to = kSealing, .if_clear = kPinsMask | kFlagKeepResident});
}

void Extent::unseal() { must({.from = bit(kSealing), .to = kEvicting}); }

void Extent::become_cold() {
  must({.from = bit(kSealing), .to = kCold, .clear = kFlagBusy | kFlagDirty | kFlagAhead});
}

// In any state but Evicting and Sealing the extent was freed meanwhile. Nobody can evict it before
// `busy` is given up.
void Extent::abandon_eviction() {
  TENCACHE_DCHECK(has(kFlagBusy));
  const uint64_t from = bit(kEvicting) | bit(kSealing);
  if (!transition({.from = from, .to = kResident, .clear = kFlagBusy})) release_busy();
}

bool Extent::claim_for_fetch() {
  return transition({.from = bit(kCold), .to = kFetching, .if_clear = kFlagBusy, .set = kFlagBusy});
}

void Extent::begin_merge() { must({.from = bit(kFetching), .to = kMerging}); }

void Extent::become_resident() {
  must({.from = bit(kMerging), .to = kResident, .clear = kFlagBusy});
}

void Extent::become_arriving() { must({.from = bit(kFetching), .to = kArriving}); }

void Extent::settle() {
  if (!transition({.from = bit(kArriving), .to = kResident, .clear = kFlagBusy})) release_busy();
}

void Extent::abandon_fetch() {
  must({.from = bit(kFetching) | bit(kMerging), .to = kCold, .clear = kFlagBusy});
}

bool Extent::claim_cold() {
  return transition(
      {.from = bit(kCold), .to = kCold, .if_clear = kPinsMask | kFlagBusy, .set = kFlagBusy});
}

bool Extent::release_cold() {
  return transition({.from = bit(kCold), .to = kCold, .clear = kFlagBusy});
}

// Ends the sealing: a pin makes the evicting thread give up at once.
void Extent::call_off_sealing() {
  uint64_t word = pin() + kOnePin;
  while (state_of(word) == kSealing) {
    wait_while(word);
    word = load();
  }
  unpin();
}

// Each word that is read is either changed or waited on. So nobody sleeps on a state that nothing
// will end: between two reads, others may claim the extent and give it up again.
Retired Extent::retire() {
  uint64_t word = load();
  for (;;) {
    uint64_t next = 0;
    Retired retired = Retired::kCached;
    switch (state_of(word)) {
      case kResident:
      case kEvicting:
      case kArriving:
        next = with_state(word, kCached) & ~kUseFlags;
        break;
      case kCold:
        next = with_state(word, kVacant) | kFlagBusy;
        retired = (word & kFlagBusy) != 0 ? Retired::kLeftToClaimer : Retired::kVacant;
        break;
      case kSealing:
        call_off_sealing();
        word = load();
        continue;
      case kFetching:
      case kMerging:
        wait_while(word);
        word = load();
        continue;
      case kVacant:
      case kCached:
        TENCACHE_CHECK(false, "double free of %p", static_cast<void*>(address));
    }
    if (word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      word_.notify_all();
      return retired;
    }
  }
}

void Extent::revive() { must({.from = bit(kCached), .to = kResident, .clear = kUseFlags}); }

bool Extent::claim_for_trim() {
  return transition(
      {.from = bit(kCached), .to = kVacant, .if_clear = kFlagBusy | kPinsMask, .set = kFlagBusy});
}

void Extent::cancel_trim() { must({.from = bit(kVacant), .to = kCached, .clear = kFlagBusy}); }

bool Extent::try_take_busy() {
  return transition(
      {.from = bit(kResident), .to = kResident, .if_clear = kFlagBusy, .set = kFlagBusy});
}

void Extent::release_busy() {
  word_.fetch_and(~kFlagBusy, std::memory_order_release);
  word_.notify_all();
}

void Extent::become_vacant() {
  TENCACHE_DCHECK(state() == kVacant);
  // Pins stay: an extent that could not be fetched may be freed while its op still pins it. The op
  // unpins it in the object's next life.
  word_.fetch_and(kPinsMask | kStateMask, std::memory_order_release);
  word_.notify_all();  // a thread may wait to fetch it until its demotion ends
}

void Extent::commit() {
  must({.from = bit(kVacant), .to = kResident, .if_clear = kFlagBusy, .clear = kUseFlags});
}

}  // namespace tencache
