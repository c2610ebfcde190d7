// SPDX-License-Identifier: Apache-2.0
#include "learn/alignment.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tencache {
namespace {

using Row = std::span<const uint64_t>;

// This many equal entries in a row are taken for the same place of both sequences.
constexpr size_t kRun = 4;
// At most this many entries are left out at once, of both sequences together. The time of the
// search for the next run grows with the square of that.
constexpr size_t kLeftOutMax = 1024;

/// Whether both begin with the same run. Where one is shorter than a run, both must be equal as a
/// whole.
bool begin_alike(Row a, Row b) {
  const size_t count = std::min({kRun, a.size(), b.size()});
  if (count < kRun && a.size() != b.size()) return false;
  return std::ranges::equal(a.first(count), b.first(count));
}

/// How many entries of each sequence to leave out. Returns nullopt where no run follows.
std::optional<std::pair<size_t, size_t>> next_run(Row a, Row b) {
  for (size_t left_out = 1; left_out <= kLeftOutMax; ++left_out) {
    for (size_t of_a = 0; of_a <= left_out; ++of_a) {
      const size_t of_b = left_out - of_a;
      if (of_a >= a.size() || of_b >= b.size()) continue;
      if (begin_alike(a.subspan(of_a), b.subspan(of_b))) return std::pair(of_a, of_b);
    }
  }
  return std::nullopt;
}

std::vector<size_t> align_begins(Row earlier, Row later) {
  std::vector<size_t> counterparts(later.size(), kUnmatched);
  size_t at_earlier = 0;
  size_t at_later = 0;
  while (at_earlier < earlier.size() && at_later < later.size()) {
    if (earlier[at_earlier] == later[at_later]) {
      counterparts[at_later++] = at_earlier++;
      continue;
    }
    const auto left_out = next_run(earlier.subspan(at_earlier), later.subspan(at_later));
    if (!left_out) break;
    at_earlier += left_out->first;
    at_later += left_out->second;
  }
  return counterparts;
}

}  // namespace

std::vector<size_t> align_ends(std::span<const uint64_t> earlier, std::span<const uint64_t> later) {
  const std::vector<uint64_t> earlier_back(earlier.rbegin(), earlier.rend());
  const std::vector<uint64_t> later_back(later.rbegin(), later.rend());
  std::vector<size_t> counterparts = align_begins(earlier_back, later_back);
  std::ranges::reverse(counterparts);
  for (size_t& counterpart : counterparts) {
    if (counterpart != kUnmatched) counterpart = earlier.size() - 1 - counterpart;
  }
  return counterparts;
}

std::vector<size_t> align(std::span<const uint64_t> earlier, std::span<const uint64_t> later) {
  std::vector<size_t> counterparts = align_ends(earlier, later);
  const auto matched = std::ranges::find_if(
      counterparts, [](size_t counterpart) { return counterpart != kUnmatched; });
  const size_t earlier_left = matched == counterparts.end() ? earlier.size() : *matched;
  const auto later_left = static_cast<size_t>(matched - counterparts.begin());
  const std::vector<size_t> first =
      align_begins(earlier.first(earlier_left), later.first(later_left));
  std::ranges::copy(first, counterparts.begin());
  return counterparts;
}

}  // namespace tencache
