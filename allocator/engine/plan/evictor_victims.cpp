// SPDX-License-Identifier: Apache-2.0
//
// The part of Evictor that chooses the victims of a pass and evicts them.
#include <algorithm>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/units.h"
#include "engine/plan/evictor.h"
#include "engine/plan/plan_cursor.h"
#include "engine/plan/upcoming_uses.h"

namespace tencache {
namespace {

// After each batch, of about this size at most, a pass looks anew how much room is wanted.
constexpr uint64_t kBatchBytes = 64 * kMiB;
// This many extents that the program has just named, and may still use by address, are worth more
// than a guess.
constexpr size_t kNamedLately = 8;

/// Puts clean extents first, but only among extents that are old anyway: within each run of victims
/// that would make the wanted room twice over.
void put_clean_first(std::vector<ListedExtent>& by_age, uint64_t wanted_bytes) {
  auto begin = by_age.begin();
  while (begin != by_age.end()) {
    auto end = begin;
    for (uint64_t bytes = 0; end != by_age.end() && bytes < 2 * wanted_bytes; ++end) {
      bytes += end->bytes;
    }
    std::stable_partition(
        begin, end, [](const ListedExtent& listed) { return listed.extent->is_presumed_clean(); });
    begin = end;
  }
}

/// Drops the newest victims, so that kNamedLately extents that the program has named stay. Extents
/// that were fetched ahead are as new, but not named yet.
void spare_named_lately(std::vector<ListedExtent>& by_age) {
  for (size_t named = 0; named < kNamedLately && !by_age.empty();) {
    named += by_age.back().extent->has(kFlagAhead) ? 0 : 1;
    by_age.pop_back();
  }
}

/// Requests for the first victims, as many as make up `bytes`. A victim leaves even if it was used
/// since it was chosen.
std::vector<MoveRequest> first_of(std::span<const ListedExtent> victims, uint64_t bytes) {
  std::vector<MoveRequest> requests;
  uint64_t request_bytes = 0;
  for (const ListedExtent& victim : victims) {
    if (request_bytes >= bytes) break;
    requests.push_back(
        {victim.extent, victim.extent->id.load(), victim.bytes, MoveRequest::kAtAnyTime});
    request_bytes += victim.bytes;
  }
  return requests;
}

}  // namespace

std::vector<ListedExtent> Evictor::victims(uint64_t wanted_bytes, bool is_for_guesses) const {
  struct Candidate {
    uint64_t ticks_to_next_use;
    uint64_t last_use_at;
    ListedExtent listed;
  };
  std::unordered_map<const Extent*, uint64_t> next_uses;
  if (parts_.cursor != nullptr) next_uses = parts_.cursor->next_uses();
  // Extents that a list op has announced are needed soon, whatever a plan foresees. Their places in
  // its list are no ticks, but numbers as small.
  if (parts_.upcoming != nullptr) {
    for (const auto& [extent, place] : parts_.upcoming->next_uses()) {
      uint64_t& next_use = next_uses.try_emplace(extent, place).first->second;
      next_use = std::min(next_use, place);
    }
  }
  std::vector<Candidate> candidates;
  for (const ListedExtent& listed : heap_.extents()) {
    if (!listed.extent->may_be_evicted()) continue;
    const auto known = next_uses.find(listed.extent);
    candidates.push_back({known != next_uses.end() ? known->second : ~uint64_t{0},
                          listed.extent->last_use_at.load(std::memory_order_relaxed), listed});
  }
  std::ranges::sort(candidates, leaves_before<Candidate>);
  std::vector<ListedExtent> chosen;
  chosen.reserve(candidates.size());
  for (const Candidate& candidate : candidates) chosen.push_back(candidate.listed);
  if (is_for_guesses) spare_named_lately(chosen);
  if (next_uses.empty()) put_clean_first(chosen, wanted_bytes);
  return chosen;
}

/// Victims of a pass, batch by batch until there is as much room as is wanted.
class Evictor::PassEvictions final : public EvictionSource {
 public:
  PassEvictions(Evictor& evictor, std::span<const ListedExtent> victims, bool is_for_guesses,
                EvictionResult* total)
      : evictor_(evictor), left_(victims), is_for_guesses_(is_for_guesses), total_(*total) {}

  std::vector<MoveRequest> take(uint64_t bytes_under_way) override {
    const uint64_t wanted_bytes = evictor_.wanted_bytes(is_for_guesses_);
    if (wanted_bytes == 0) left_ = {};
    if (wanted_bytes <= bytes_under_way) return {};
    std::vector<MoveRequest> batch =
        first_of(left_, std::min(kBatchBytes, wanted_bytes - bytes_under_way));
    left_ = left_.subspan(batch.size());
    return batch;
  }
  void on_evicted(const EvictionResult& part) override {
    total_.add(part);
    evictor_.note_departure(part);
  }

 private:
  Evictor& evictor_;
  std::span<const ListedExtent> left_;
  const bool is_for_guesses_;
  EvictionResult& total_;
};

void Evictor::evict_victims(uint64_t wanted_bytes, bool is_for_guesses, EvictionResult* total) {
  const std::vector<ListedExtent> chosen = victims(wanted_bytes, is_for_guesses);
  PassEvictions source(*this, chosen, is_for_guesses, total);
  mover_->evict_requested(source);
  const bool has_lost_all = total->bytes == 0 && total->failure.is_ok() && !chosen.empty();
  passes_in_vain_ = has_lost_all ? passes_in_vain_ + 1 : 0;
}

}  // namespace tencache
