// SPDX-License-Identifier: Apache-2.0
#include "learn/period.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "learn/compute_times.h"
#include "learn/tick_digest.h"

namespace tencache {
namespace {

// At most this many steps make up one period: optimizers that take turns, accumulation patterns.
constexpr size_t kMarksMax = 8;
// At most this many repetitions are looked at; more come from loops within loops.
constexpr size_t kRepeatsMax = 16;

bool is_repetition(const TickStream& stream, const PeriodPlace& place) {
  for (uint64_t number = place.begin; number < place.begin + place.length; ++number) {
    if (stream.tick(number).digest != stream.tick(number - place.length).digest) return false;
  }
  return true;
}

/// The digest, mixed with those of its extents that existed before `since`. A repetition uses the
/// same ones, so layers that only look alike are no repetition.
uint64_t identity(const TickStream& stream, uint64_t number, uint64_t since) {
  const StreamTick& tick = stream.tick(number);
  uint64_t value = tick.digest;
  for (const StreamAccess& access : tick.accesses) {
    const ExtentLife* life = stream.life(access.extent_id);
    const bool is_old = life == nullptr || life->born == kUnknownTick || life->born < since;
    if (is_old) value = TickDigest::mix(value ^ access.extent_id);
  }
  return value;
}

/// Turns the extents of a copy into tensors. A `Key` is equal for corresponding extents of two
/// copies.
class Copy {
 public:
  Copy(const TickStream& stream, const PeriodPlace& place) : stream_(stream), place_(place) {}

  struct Key {
    uint64_t born = 0;     // in ticks from the begin of a copy; 0 for an old extent
    uint64_t ordinal = 0;  // among that tick's births; for an old extent its number
    bool is_old = false;   // allocated before this copy and the one before it
    bool operator==(const Key&) const = default;
    bool operator<(const Key& other) const {
      return std::tie(born, ordinal, is_old) < std::tie(other.born, other.ordinal, other.is_old);
    }
  };

  Key key(uint64_t extent_id) const {
    const ExtentLife* life = stream_.life(extent_id);
    if (life == nullptr || life->born == kUnknownTick ||
        life->born + place_.length < place_.begin) {
      return {0, extent_id, true};
    }
    if (life->born >= place_.begin) return {life->born - place_.begin, life->ordinal, false};
    return {life->born + place_.length - place_.begin, life->ordinal, false};
  }

 private:
  const TickStream& stream_;
  const PeriodPlace place_;
};

class PeriodBuilder {
 public:
  PeriodBuilder(const TickStream& stream, const PeriodPlace& place, const Recorder& recorder)
      : stream_(stream),
        place_(place),
        recorder_(recorder),
        later_(stream, place),
        earlier_(stream, {place.begin - place.length, place.length}) {}

  std::optional<Period> build() {
    if (!add_born_tensors()) return std::nullopt;
    compute_ns_ = compute_times(stream_, place_, recorder_.clock().line());
    for (uint64_t number = place_.begin; number < place_.begin + place_.length; ++number) {
      if (!add_tick(number)) return std::nullopt;
    }
    if (!period_.trace.validate().is_ok()) return std::nullopt;
    return std::move(period_);
  }

 private:
  using Key = Copy::Key;

  // Adds those that no op names, too: they take room.
  bool add_born_tensors() {
    for (uint64_t number = place_.begin; number < place_.begin + place_.length; ++number) {
      for (const uint64_t extent_id : stream_.births(number)) {
        const ExtentLife* life = stream_.life(extent_id);
        if (life == nullptr) return false;  // events of two threads in the wrong order
        add_born(extent_id, *life);
      }
    }
    return true;
  }

  void add_born(uint64_t extent_id, const ExtentLife& life) {
    const Key key = later_.key(extent_id);
    const Tick born = static_cast<Tick>(key.born);
    tensors_[key] = static_cast<uint32_t>(period_.trace.tensors.size());
    period_.trace.tensors.push_back({life.bytes, born, freed_at(life, born)});
    period_.extent_ids.push_back(0);
  }

  // Taken from this copy if the extent died in it, else from the one before, which had more time.
  Tick freed_at(const ExtentLife& life, Tick born) const {
    const auto length = static_cast<Tick>(place_.length);
    uint64_t lasted = kUnknownTick;
    if (life.freed != kUnknownTick) {
      lasted = life.freed - life.born;
    } else if (const auto before = stream_.born_at(life.born - place_.length, life.ordinal)) {
      const ExtentLife* earlier = stream_.life(*before);
      if (earlier != nullptr && earlier->freed != kUnknownTick) {
        lasted = earlier->freed - earlier->born;
      }
    }
    // A tensor that lives longer is always there, except in the tick in which it is replaced.
    lasted = std::min<uint64_t>(lasted, length - 1);
    return static_cast<Tick>((born + lasted) % length);
  }

  bool add_tick(uint64_t number) {
    const StreamTick& tick = stream_.tick(number);
    const StreamTick& before = stream_.tick(number - place_.length);
    if (tick.accesses.size() != before.accesses.size()) return false;
    TraceOp op;
    op.name = name(tick.op);
    op.compute_ns = compute_ns_[number - place_.begin];
    for (size_t index = 0; index < tick.accesses.size(); ++index) {
      const std::optional<uint32_t> tensor =
          find_tensor(number, tick.accesses[index], before.accesses[index]);
      if (!tensor) return false;
      op.accesses.push_back({*tensor, tick.accesses[index].is_write});
    }
    period_.trace.ops.push_back(std::move(op));
    period_.digests.push_back(tick.digest);
    return true;
  }

  uint32_t name(uint32_t op) {
    std::vector<std::string>& names = period_.trace.op_names;
    const auto [entry, is_new] = names_.try_emplace(op, static_cast<uint32_t>(names.size()));
    if (is_new) names.push_back(recorder_.op_name(op));
    return entry->second;
  }

  std::optional<uint32_t> find_tensor(uint64_t number, const StreamAccess& access,
                                      const StreamAccess& before) {
    const Key key = later_.key(access.extent_id);
    if (key.is_old) {
      if (access.extent_id != before.extent_id) return std::nullopt;
      const auto [entry, is_new] =
          tensors_.try_emplace(key, static_cast<uint32_t>(period_.trace.tensors.size()));
      if (is_new) {
        period_.trace.tensors.push_back({access.bytes, kNoTick, kNoTick});
        period_.extent_ids.push_back(access.extent_id);
      }
      return entry->second;
    }
    // An extent that outlives a period overlaps its successor.
    const ExtentLife* life = stream_.life(access.extent_id);
    if (life != nullptr && life->born < place_.begin && number - place_.begin > key.born) {
      return std::nullopt;
    }
    // The birth of an extent from before the earlier copy's predecessor may be unknown.
    const Key expected = earlier_.key(before.extent_id);
    if (!expected.is_old && expected != key) return std::nullopt;
    const auto found = tensors_.find(key);
    if (found == tensors_.end()) return std::nullopt;  // it was not allocated again
    return found->second;
  }

  const TickStream& stream_;
  const PeriodPlace place_;
  const Recorder& recorder_;
  const Copy later_;
  const Copy earlier_;
  std::vector<uint64_t> compute_ns_;              // by tick
  std::unordered_map<uint32_t, uint32_t> names_;  // by the recorder's number
  std::map<Key, uint32_t> tensors_;
  Period period_;
};

}  // namespace

bool Period::is_same_loop(const Period& other) const {
  if (digests.size() != other.digests.size()) return false;
  const auto sorted = [](std::vector<uint64_t> ids) {
    std::ranges::sort(ids);
    return ids;
  };
  if (sorted(extent_ids) != sorted(other.extent_ids)) return false;
  std::vector<uint64_t> twice = digests;
  twice.insert(twice.end(), digests.begin(), digests.end());
  return std::search(twice.begin(), twice.end(), other.digests.begin(), other.digests.end()) !=
         twice.end();
}

std::optional<PeriodPlace> find_marked_period(const TickStream& stream) {
  const std::deque<uint64_t>& marks = stream.marks();
  if (marks.empty()) return std::nullopt;
  const size_t last = marks.size() - 1;
  for (size_t steps = 1; steps <= kMarksMax && 2 * steps <= last; ++steps) {
    const uint64_t length = marks[last] - marks[last - steps];
    if (length == 0 || marks[last - steps] - marks[last - 2 * steps] != length) continue;
    const PeriodPlace place = {marks[last - steps], length};
    if (is_repetition(stream, place)) return place;
  }
  return std::nullopt;
}

// z[p] tells how many of the newest identities, counted backwards, equal those p ticks before them.
std::vector<PeriodPlace> find_repeats(const TickStream& stream, uint64_t since) {
  std::vector<PeriodPlace> places;
  const uint64_t begin = std::max(since, stream.begin());
  if (stream.end() <= begin + 1) return places;
  const uint64_t end = stream.end() - 1;
  const uint64_t count = end - begin;
  std::vector<uint64_t> identities;  // the newest first
  identities.reserve(count);
  for (uint64_t number = end; number > begin; --number) {
    identities.push_back(identity(stream, number - 1, begin));
  }
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
    if (z[at] >= at) places.push_back({end - at, at});
  }
  return places;
}

std::optional<PeriodPlace> find_copies(const TickStream& stream, const Period& period) {
  const uint64_t length = period.digests.size();
  for (uint64_t back = 1; back <= length; ++back) {
    if (stream.end() < stream.begin() + 2 * length + back) return std::nullopt;
    const PeriodPlace place = {stream.end() - length - back, length};
    bool is_copy = true;
    for (uint64_t index = length; is_copy && index > 0; --index) {
      const StreamTick& tick = stream.tick(place.begin + index - 1);
      is_copy = period.agrees(static_cast<Tick>(index - 1), tick.digest, tick.accesses.size(),
                              [&](size_t access) { return tick.accesses[access].extent_id; });
    }
    if (is_copy && is_repetition(stream, place)) return place;
  }
  return std::nullopt;
}

std::optional<Period> build_period(const TickStream& stream, const PeriodPlace& place,
                                   const Recorder& recorder) {
  return PeriodBuilder(stream, place, recorder).build();
}

}  // namespace tencache
