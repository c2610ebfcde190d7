// SPDX-License-Identifier: Apache-2.0
#include "learn/compute_times.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace tencache {
namespace {

// Enough for a median that no single repetition decides; older ones may be of another time.
constexpr uint64_t kRepetitionsMax = 16;

uint64_t lasted_ns(const TickStream& stream, const TickLine& clock, uint64_t number) {
  const StreamTick& tick = stream.tick(number);
  const uint64_t lasted = clock.ns_since_start(stream.tick(number + 1).begin_ticks) -
                          clock.ns_since_start(tick.begin_ticks);
  return lasted - std::min(lasted, tick.wait_ns);
}

uint64_t host_ns(const TickStream& stream, const PeriodPlace& place, const TickLine& clock,
                 uint64_t number) {
  const uint64_t earlier = lasted_ns(stream, clock, number - place.length);
  if (number + 1 == stream.end()) return earlier;
  return std::min(earlier, lasted_ns(stream, clock, number));
}

// Nullopt when the op was not measured in any of the repetitions.
std::optional<uint64_t> measured_ns(const TickStream& stream, const PeriodPlace& place,
                                    uint64_t number) {
  const uint64_t digest = stream.tick(number).digest;
  std::vector<uint64_t> times;
  for (uint64_t back = 0; back < kRepetitionsMax; ++back) {
    if (number < stream.begin() + back * place.length) break;
    const StreamTick& tick = stream.tick(number - back * place.length);
    if (tick.digest == digest && tick.device_ns) times.push_back(*tick.device_ns);
  }
  if (times.empty()) return std::nullopt;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

struct Mean {
  uint64_t sum_ns = 0;
  uint64_t count = 0;

  void add(uint64_t ns) {
    sum_ns += ns;
    ++count;
  }
  bool is_known() const { return count > 0; }
  uint64_t ns() const { return sum_ns / count; }
};

}  // namespace

std::vector<uint64_t> compute_times(const TickStream& stream, const PeriodPlace& place,
                                    const TickLine& clock) {
  std::vector<std::optional<uint64_t>> measured;
  std::unordered_map<uint64_t, Mean> by_digest;
  std::unordered_map<uint32_t, Mean> by_name;
  Mean all;
  for (uint64_t number = place.begin; number < place.begin + place.length; ++number) {
    measured.push_back(measured_ns(stream, place, number));
    if (!measured.back()) continue;
    by_digest[stream.tick(number).digest].add(*measured.back());
    by_name[stream.tick(number).op].add(*measured.back());
    all.add(*measured.back());
  }
  std::vector<uint64_t> times;
  times.reserve(place.length);
  for (uint64_t index = 0; index < place.length; ++index) {
    const uint64_t number = place.begin + index;
    const Mean& alike = by_digest[stream.tick(number).digest];
    const Mean& namesakes = by_name[stream.tick(number).op];
    if (!all.is_known()) {
      times.push_back(host_ns(stream, place, clock, number));
    } else if (measured[index]) {
      times.push_back(*measured[index]);
    } else {
      times.push_back((alike.is_known() ? alike : namesakes.is_known() ? namesakes : all).ns());
    }
  }
  return times;
}

}  // namespace tencache
