// SPDX-License-Identifier: Apache-2.0
#include "learn/period_search.h"

#include <algorithm>
#include <unordered_set>

#include "learn/alignment.h"
#include "learn/tick_digest.h"

namespace tencache {
namespace {

// At most this many steps make up one period, as where optimizers take turns or gradients
// accumulate in a pattern.
constexpr size_t kMarksMax = 8;
// At most this many repetitions are looked at; more come from loops within loops.
constexpr size_t kRepeatsMax = 16;
// A sequence counts as repeated once this much of a second copy agrees: this many ticks, one tick
// in kAgreedPart, and ticks that name this many old extents.
constexpr uint64_t kAgreedTicksMin = 32;
constexpr uint64_t kAgreedPart = 8;
constexpr size_t kAgreedExtentsMin = 4;
// A shorter sequence of other ticks is passed over wherever it occurs; a longer one may be a loop
// of its own, like an evaluation between two steps.
constexpr uint64_t kAdditionMin = 32;
// A sequence came in place of another one if the other has at least one tick for this many ticks of
// the sequence.
constexpr uint64_t kReplacedPart = 4;

bool is_repetition(const TickLog& log, const PeriodPlace& place) {
  for (uint64_t number = place.begin; number < place.end(); ++number) {
    if (log.tick(number).digest != log.tick(number - place.length).digest) return false;
  }
  return true;
}

/// How many ticks, counted back from `end`, it takes to name enough old extents. Returns more than
/// there are if even all of them name too few.
uint64_t ticks_with_old_extents(const TickLog& log, uint64_t since, uint64_t end,
                                uint64_t old_before) {
  std::unordered_set<uint64_t> extents;
  for (uint64_t number = end; number > since; --number) {
    for (const LoggedAccess& access : log.tick(number - 1).accesses) {
      if (log.is_older(access.extent_id, old_before)) extents.insert(access.extent_id);
    }
    if (extents.size() >= kAgreedExtentsMin) return end - number + 1;
  }
  return end - since + 1;
}

/// How many ticks of a second copy must agree before `length` ticks count as repeated.
/// `with_old_extents`: see ticks_with_old_extents().
uint64_t enough_ticks(uint64_t length, uint64_t with_old_extents) {
  return std::min(length, std::max({kAgreedTicksMin, length / kAgreedPart, with_old_extents}));
}

/// The digests of a period, mixed with the extents that are always there.
std::vector<uint64_t> known_identities(const Period& period) {
  std::vector<uint64_t> row;
  for (Tick tick = 0; tick < period.trace.tick_count(); ++tick) {
    uint64_t value = period.digests[tick];
    for (const TraceAccess& access : period.trace.ops[tick].accesses) {
      const uint64_t id = period.extent_ids[access.tensor];
      if (id != 0 && id != kUnknownExtent) value = TickDigest::mix(value ^ id);
    }
    row.push_back(value);
  }
  return row;
}

}  // namespace

std::optional<PeriodPlace> find_marked_period(const TickLog& log) {
  const std::deque<uint64_t>& marks = log.marks();
  if (marks.empty()) return std::nullopt;
  const size_t last = marks.size() - 1;
  for (size_t steps = 1; steps <= kMarksMax && 2 * steps <= last; ++steps) {
    const uint64_t length = marks[last] - marks[last - steps];
    if (length == 0 || marks[last - steps] - marks[last - 2 * steps] != length) continue;
    const PeriodPlace place = {marks[last - steps], length};
    if (is_repetition(log, place)) return place;
  }
  return std::nullopt;
}

std::optional<PeriodPlace> last_segment(const TickLog& log) {
  const std::deque<uint64_t>& marks = log.marks();
  if (marks.size() < 2) return std::nullopt;
  const uint64_t begin = marks[marks.size() - 2];
  if (marks.back() == begin) return std::nullopt;
  return PeriodPlace{begin, marks.back() - begin};
}

std::vector<PeriodPlace> find_repeats(const TickLog& log, uint64_t since, uint64_t end,
                                      uint64_t old_before) {
  std::vector<PeriodPlace> places;
  const uint64_t begin = std::max(since, log.begin());
  if (end <= begin) return places;
  const uint64_t count = end - begin;
  std::vector<uint64_t> identities = log.identities(begin, end, old_before);
  std::ranges::reverse(identities);
  const uint64_t with_old_extents = ticks_with_old_extents(log, begin, end, old_before);
  // z[p] tells how many of the newest identities, counted backwards, equal those p ticks before
  // them.
  std::vector<uint64_t> z(count, 0);
  uint64_t left = 0;
  uint64_t right = 0;
  for (uint64_t at = 1; at < count && places.size() < kRepeatsMax; ++at) {
    if (at < right) z[at] = std::min(right - at, z[at - left]);
    while (at + z[at] < count && identities[z[at]] == identities[at + z[at]]) ++z[at];
    if (at + z[at] > right) {
      left = at;
      right = at + z[at];
    }
    if (z[at] >= enough_ticks(at, with_old_extents)) places.push_back({end - at, at});
  }
  return places;
}

bool is_copy(const TickLog& log, const PeriodPlace& place, const Period& period) {
  if (place.length != period.digests.size()) return false;
  for (uint64_t index = place.length; index > 0; --index) {
    const LoggedTick& tick = log.tick(place.begin + index - 1);
    if (!period.agrees(static_cast<Tick>(index - 1), tick.digest, tick.accesses.size(),
                       [&](size_t access) { return tick.accesses[access].extent_id; })) {
      return false;
    }
  }
  return true;
}

std::optional<PeriodPlace> find_copy(const TickLog& log, const Period& period) {
  const uint64_t length = period.digests.size();
  for (uint64_t back = 1; back <= length; ++back) {
    if (log.end() < log.begin() + length + back) return std::nullopt;
    const PeriodPlace place = {log.end() - length - back, length};
    if (is_copy(log, place, period)) return place;
  }
  return std::nullopt;
}

Comparison compare(const TickLog& log, const PeriodPlace& segment, const Period& period) {
  const std::unordered_set<uint64_t> known(period.extent_ids.begin(), period.extent_ids.end());
  const std::vector<size_t> counterparts =
      align(known_identities(period),
            log.identities_where(segment.begin, segment.end(),
                                 [&](uint64_t id) { return known.contains(id); }));
  Comparison comparison;
  uint64_t matched = 0;
  uint64_t others = 0;    // in a row
  uint64_t expected = 0;  // the period's tick after the one matched last
  for (uint64_t index = 0; index <= counterparts.size(); ++index) {
    const bool is_end = index == counterparts.size();
    if (!is_end && counterparts[index] == kUnmatched) {
      ++others;
      continue;
    }
    const uint64_t next = is_end ? period.trace.tick_count() : counterparts[index];
    if (others >= kAdditionMin) {
      comparison.additions.push_back({segment.begin + index - others, others});
      comparison.has_replacements |= kReplacedPart * (next - expected) >= others;
    }
    others = 0;
    matched += is_end ? 0 : 1;
    expected = next + 1;
  }
  comparison.of_period = static_cast<double>(matched) / period.trace.tick_count();
  comparison.of_segment = static_cast<double>(matched) / static_cast<double>(segment.length);
  return comparison;
}

}  // namespace tencache
