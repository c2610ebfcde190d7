// SPDX-License-Identifier: Apache-2.0
#include "learn/period.h"

#include <algorithm>
#include <iterator>

namespace tencache {
namespace {

std::vector<uint64_t> sorted(std::vector<uint64_t> ids) {
  std::ranges::sort(ids);
  return ids;
}

/// The extents that are always there, sorted.
std::vector<uint64_t> always_there(const Period& period) {
  std::vector<uint64_t> ids = sorted(period.extent_ids);
  std::erase(ids, uint64_t{0});
  return ids;
}

size_t count_unknown(const Period& period) {
  return static_cast<size_t>(std::ranges::count(period.extent_ids, kUnknownExtent));
}

bool may_be_same(uint64_t id, uint64_t other_id) {
  return id == other_id || id == kUnknownExtent || other_id == kUnknownExtent;
}

size_t common_count(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  std::vector<uint64_t> common;
  std::ranges::set_intersection(a, b, std::back_inserter(common));
  return common.size();
}

/// Whether at least half of the extents that are always there are the same, where one that is not
/// known yet may be any.
bool share_extents(const Period& a, const Period& b) {
  const std::vector<uint64_t> ids = always_there(a);
  const std::vector<uint64_t> others = always_there(b);
  const size_t may_be_common = std::max(count_unknown(a), count_unknown(b));
  return 2 * (common_count(ids, others) + may_be_common) >= std::max(ids.size(), others.size());
}

/// Whether `part` is no longer than `whole` and lies in the endless repetition of `whole`.
bool is_within(const std::vector<uint64_t>& part, const std::vector<uint64_t>& whole) {
  if (part.size() > whole.size()) return false;
  std::vector<uint64_t> twice = whole;
  twice.insert(twice.end(), whole.begin(), whole.end());
  return std::search(twice.begin(), twice.end(), part.begin(), part.end()) != twice.end();
}

}  // namespace

bool Period::has_unknown_extents() const {
  return std::ranges::find(extent_ids, kUnknownExtent) != extent_ids.end();
}

bool Period::names_always_there(Tick tick) const {
  return std::ranges::any_of(trace.ops[tick].accesses, [this](const TraceAccess& access) {
    return extent_ids[access.tensor] != 0;
  });
}

bool Period::is_same_kind(const Period& other) const {
  if (digests != other.digests) return false;
  if (!std::ranges::equal(extent_ids, other.extent_ids, may_be_same)) return false;
  const auto names_the_same = [](const TraceOp& op, const TraceOp& other_op) {
    return std::ranges::equal(op.accesses, other_op.accesses, {}, &TraceAccess::tensor,
                              &TraceAccess::tensor);
  };
  return std::ranges::equal(trace.ops, other.trace.ops, names_the_same);
}

bool Period::is_same_loop(const Period& other) const {
  return digests.size() == other.digests.size() && sorted(extent_ids) == sorted(other.extent_ids) &&
         is_within(other.digests, digests);
}

bool Period::is_like(const Period& other) const {
  return digests.size() == other.digests.size() && is_within(other.digests, digests) &&
         share_extents(*this, other);
}

bool Period::has_same_ops(const Period& other) const {
  const size_t common = common_count(sorted(digests), sorted(other.digests));
  return 10 * common >= 9 * std::max(digests.size(), other.digests.size()) &&
         share_extents(*this, other);
}

bool Period::contains(const Period& other) const {
  const size_t count = digests.size();
  if (other.digests.size() > count) return false;
  for (size_t begin = 0; begin < count; ++begin) {
    if (fits_at(other, begin)) return true;
  }
  return false;
}

// Whether the other's ops are those from tick `begin` of this loop on, on the same extents. A guess
// may take an extent for one that is always there, where the whole loop shows that it is not.
bool Period::fits_at(const Period& other, size_t begin) const {
  for (size_t index = 0; index < other.digests.size(); ++index) {
    const size_t tick = (begin + index) % digests.size();
    if (digests[tick] != other.digests[index]) return false;
    const std::vector<TraceAccess>& own = trace.ops[tick].accesses;
    const std::vector<TraceAccess>& others = other.trace.ops[index].accesses;
    for (size_t access = 0; access < own.size(); ++access) {
      const uint64_t known = extent_ids[own[access].tensor];
      const uint64_t other_known = other.extent_ids[others[access].tensor];
      if (known != 0 && other_known != 0 && known != other_known) return false;
    }
  }
  return true;
}

}  // namespace tencache
