// SPDX-License-Identifier: Apache-2.0
#include "learn/compute_times.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

#include "learn/tick_digest.h"

namespace tencache {
namespace {

// At most this many repetitions are compared, by the device's clock and by the host's. With so many
// no single one decides; older ones may have taken other times. The host's repetitions are fewer,
// so that plans soon follow a machine that stays slower or faster.
constexpr uint64_t kDeviceRepetitions = 16;
constexpr size_t kHostRepetitions = 5;

// Of up to four times that is the least. Reorders the times. REQUIRES: there are some.
uint64_t lower_quartile(std::vector<uint64_t>* times) {
  const auto quartile = times->begin() + static_cast<std::ptrdiff_t>((times->size() - 1) / 4);
  std::ranges::nth_element(*times, quartile);
  return *quartile;
}

uint64_t bytes_named(const LoggedTick& tick) {
  uint64_t bytes = 0;
  for (const LoggedAccess& access : tick.accesses) bytes += access.bytes;
  return bytes;
}

/// Whether the op should take as long in both ticks, as far as digests and bytes tell.
bool is_alike(const LoggedTick& a, const LoggedTick& b) {
  return TickDigest::with_size(a.digest, bytes_named(a)) ==
         TickDigest::with_size(b.digest, bytes_named(b));
}

// Returns how long a tick lasted, or nullopt for the newest tick of all, which has not ended yet.
// Rings of several threads are read one after another, so a tick may have begun before the one that
// it follows in the log.
std::optional<uint64_t> lasted_ns(const TickLog& log, const TimestampLine& clock, uint64_t number) {
  if (number + 1 >= log.end()) return std::nullopt;
  const LoggedTick& tick = log.tick(number);
  const uint64_t begin_ns = clock.ns_since_start(tick.begun_at) + tick.wait_ns;
  const uint64_t end_ns = clock.ns_since_start(log.tick(number + 1).begun_at);
  return end_ns - std::min(end_ns, begin_ns);
}

// How long a tick took by the host's clock: the lower quartile of the last repetitions. The newest
// tick of all has not ended. Between steps a program reads data or saves a checkpoint, which such a
// tick would include, so for the newest tick only repetitions before it count. A batch of another
// size takes another time, and where something came in between, a repetition of the same length ago
// is another op. So the first one that is not alike ends the row.
uint64_t host_ns(const TickLog& log, const PeriodPlace& place, const TimestampLine& clock,
                 uint64_t number, uint64_t counterpart) {
  const std::optional<uint64_t> newest_ns = lasted_ns(log, clock, number);
  if (counterpart == kUnknownTick) return newest_ns.value_or(0);
  std::vector<uint64_t> times;
  if (newest_ns) times.push_back(*newest_ns);
  const LoggedTick& pattern = log.tick(newest_ns ? number : counterpart);
  uint64_t repetition = counterpart;
  while (times.size() < kHostRepetitions && is_alike(log.tick(repetition), pattern)) {
    times.push_back(*lasted_ns(log, clock, repetition));
    if (repetition < log.begin() + place.length) break;
    repetition -= place.length;
  }
  return lower_quartile(&times);
}

// How long the op takes. Returns nullopt when none of the repetitions measured it.
std::optional<uint64_t> measured_ns(const TickLog& log, const PeriodPlace& place, uint64_t number) {
  std::vector<uint64_t> times;
  for (uint64_t back = 0; back < kDeviceRepetitions; ++back) {
    if (number < log.begin() + back * place.length) break;
    const LoggedTick& tick = log.tick(number - back * place.length);
    if (tick.device_ns && is_alike(tick, log.tick(number))) times.push_back(*tick.device_ns);
  }
  if (times.empty()) return std::nullopt;
  return lower_quartile(&times);
}

struct Measured {
  uint64_t sum_ns = 0;
  uint64_t sum_bytes = 0;
  uint64_t count = 0;

  void add(uint64_t ns, uint64_t bytes) {
    sum_ns += ns;
    sum_bytes += bytes;
    ++count;
  }
  bool is_known() const { return count > 0; }
  uint64_t mean_ns() const { return sum_ns / count; }
  // Estimates an op that names `bytes`: start_ns, and per byte what the measured ops took beyond
  // it.
  uint64_t scaled_ns(uint64_t bytes, uint64_t start_ns) const {
    if (sum_bytes == 0) return mean_ns();
    const auto beyond_ns = static_cast<double>(sum_ns - count * start_ns);
    return start_ns + static_cast<uint64_t>(beyond_ns * static_cast<double>(bytes) /
                                            static_cast<double>(sum_bytes));
  }
};

}  // namespace

std::vector<uint64_t> compute_times(const TickLog& log, const PeriodPlace& place,
                                    const std::vector<uint64_t>& counterparts,
                                    const TimestampLine& clock) {
  std::vector<std::optional<uint64_t>> measured;
  std::unordered_map<uint64_t, Measured> by_size;
  std::unordered_map<uint32_t, Measured> by_name;
  Measured all;
  uint64_t start_ns = std::numeric_limits<uint64_t>::max();
  for (uint64_t number = place.begin; number < place.begin + place.length; ++number) {
    measured.push_back(measured_ns(log, place, number));
    if (!measured.back()) continue;
    const LoggedTick& tick = log.tick(number);
    const uint64_t bytes = bytes_named(tick);
    by_size[TickDigest::with_size(tick.digest, bytes)].add(*measured.back(), bytes);
    by_name[tick.op].add(*measured.back(), bytes);
    all.add(*measured.back(), bytes);
    start_ns = std::min(start_ns, *measured.back());
  }
  std::vector<uint64_t> times;
  times.reserve(place.length);
  for (uint64_t index = 0; index < place.length; ++index) {
    const uint64_t number = place.begin + index;
    const LoggedTick& tick = log.tick(number);
    if (!all.is_known()) {
      times.push_back(host_ns(log, place, clock, number, counterparts[index]));
    } else if (measured[index]) {
      times.push_back(*measured[index]);
    } else if (const Measured& alike =
                   by_size[TickDigest::with_size(tick.digest, bytes_named(tick))];
               alike.is_known()) {
      times.push_back(alike.mean_ns());
    } else if (const Measured& namesakes = by_name[tick.op]; namesakes.is_known()) {
      times.push_back(namesakes.scaled_ns(bytes_named(tick), start_ns));
    } else {
      times.push_back(all.mean_ns());
    }
  }
  return times;
}

}  // namespace tencache
