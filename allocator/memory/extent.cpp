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

bool Extent::transition(uint64_t from_mask, ExtentState to, uint64_t required_clear, uint64_t set,
                        uint64_t clear, uint64_t required_set) {
  uint64_t word = word_.load(std::memory_order_acquire);  // acquire: a refusal tells something, too
  for (;;) {
    const bool allowed = (bit(state_of(word)) & from_mask) != 0 && (word & required_clear) == 0 &&
                         (word & required_set) == required_set;
    if (!allowed) return false;
    const uint64_t next = (with_state(word, to) & ~clear) | set;
    if (word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      word_.notify_all();
      return true;
    }
  }
}

bool Extent::claim_for_eviction() {
  return transition(bit(ExtentState::kResident), ExtentState::kEvicting,
                    kPinsMask | kFlagBusy | kFlagKeepResident, kFlagBusy, 0, kFlagSeen);
}

bool Extent::reaffirm_eviction() {
  return transition(bit(ExtentState::kEvicting), ExtentState::kEvicting, 0, 0, 0);
}

bool Extent::seal() {
  return transition(bit(ExtentState::kEvicting), ExtentState::kSealing,
                    kPinsMask | kFlagKeepResident, 0, 0);
}

void Extent::unseal() {
  const bool done = transition(bit(ExtentState::kSealing), ExtentState::kEvicting, 0, 0, 0);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

void Extent::become_cold() {
  const bool done = transition(bit(ExtentState::kSealing), ExtentState::kCold, 0, 0,
                               kFlagBusy | kFlagDirty | kFlagAhead);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

void Extent::abandon_eviction() {
  uint64_t word = word_.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    TENCACHE_DCHECK((word & kFlagBusy) != 0);
    const ExtentState state = state_of(word);
    const bool in_eviction = state == ExtentState::kEvicting || state == ExtentState::kSealing;
    next = (in_eviction ? with_state(word, ExtentState::kResident) : word) & ~kFlagBusy;
  } while (!word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  word_.notify_all();
}

bool Extent::claim_for_fetch() {
  return transition(bit(ExtentState::kCold), ExtentState::kFetching, kFlagBusy, kFlagBusy, 0);
}

void Extent::begin_merge() {
  const bool done = transition(bit(ExtentState::kFetching), ExtentState::kMerging, 0, 0, 0);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

void Extent::become_resident() {
  const bool done = transition(bit(ExtentState::kMerging), ExtentState::kResident, 0, 0, kFlagBusy);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

void Extent::become_arriving() {
  const bool done = transition(bit(ExtentState::kFetching), ExtentState::kArriving, 0, 0, 0);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

void Extent::settle() {
  if (!transition(bit(ExtentState::kArriving), ExtentState::kResident, 0, 0, kFlagBusy)) {
    release_busy();
  }
}

void Extent::abandon_fetch() {
  const bool done = transition(bit(ExtentState::kFetching) | bit(ExtentState::kMerging),
                               ExtentState::kCold, 0, 0, kFlagBusy);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

bool Extent::claim_cold() {
  return transition(bit(ExtentState::kCold), ExtentState::kCold, kPinsMask | kFlagBusy, kFlagBusy,
                    0);
}

bool Extent::release_cold() {
  return transition(bit(ExtentState::kCold), ExtentState::kCold, 0, 0, kFlagBusy);
}

// Ends the sealing: a pin makes the evicting thread give up at once.
void Extent::call_off_sealing() {
  uint64_t word = pin() + kOnePin;
  while (state_of(word) == ExtentState::kSealing) {
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
      case ExtentState::kResident:
      case ExtentState::kEvicting:
      case ExtentState::kArriving:
        next = with_state(word, ExtentState::kCached) & ~kUseFlags;
        break;
      case ExtentState::kCold:
        next = with_state(word, ExtentState::kVacant) | kFlagBusy;
        retired = (word & kFlagBusy) != 0 ? Retired::kLeftToClaimer : Retired::kVacant;
        break;
      case ExtentState::kSealing:
        call_off_sealing();
        word = load();
        continue;
      case ExtentState::kFetching:
      case ExtentState::kMerging:
        wait_while(word);
        word = load();
        continue;
      case ExtentState::kVacant:
      case ExtentState::kCached:
        TENCACHE_CHECK(false, "double free of %p", static_cast<void*>(address));
    }
    if (word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      word_.notify_all();
      return retired;
    }
  }
}

void Extent::revive() {
  const bool done = transition(bit(ExtentState::kCached), ExtentState::kResident, 0, 0, kUseFlags);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

bool Extent::claim_for_trim() {
  return transition(bit(ExtentState::kCached), ExtentState::kVacant, kFlagBusy | kPinsMask,
                    kFlagBusy, 0);
}

void Extent::cancel_trim() {
  const bool done = transition(bit(ExtentState::kVacant), ExtentState::kCached, 0, 0, kFlagBusy);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

bool Extent::try_take_busy() {
  uint64_t word = word_.load(std::memory_order_relaxed);
  for (;;) {
    if (state_of(word) != ExtentState::kResident || (word & kFlagBusy) != 0) return false;
    if (word_.compare_exchange_weak(word, word | kFlagBusy, std::memory_order_acq_rel,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
}

void Extent::release_busy() {
  word_.fetch_and(~kFlagBusy, std::memory_order_release);
  word_.notify_all();
}

void Extent::become_vacant() {
  TENCACHE_DCHECK(state() == ExtentState::kVacant);
  // Pins stay: an extent that could not be fetched may be freed while its op still pins it. The op
  // unpins it in the object's next life.
  word_.fetch_and(kPinsMask | kStateMask, std::memory_order_release);
  word_.notify_all();  // a thread may wait to fetch it until its demotion ends
}

void Extent::commit() {
  const bool done =
      transition(bit(ExtentState::kVacant), ExtentState::kResident, kFlagBusy, 0, kUseFlags);
  TENCACHE_CHECK(done, "state %u", static_cast<unsigned>(state()));
}

}  // namespace tencache
