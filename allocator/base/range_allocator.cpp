// SPDX-License-Identifier: Apache-2.0
//
// The free ranges have two indexes: by offset for coalescing, by length for best fit. Only
// insert_free and erase_free change them, both at once. An operation costs O(log ranges), unless it
// lists or walks ranges (best_fits, is_valid). The class is not thread-safe.
#include "base/range_allocator.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace tencache {

RangeAllocator::RangeAllocator(uint64_t limit) : limit_(limit) {
  if (limit > 0) insert_free(0, limit);
}

void RangeAllocator::insert_free(uint64_t offset, uint64_t length) {
  free_by_offset_.emplace(offset, length);
  free_by_length_.emplace(length, offset);
}

void RangeAllocator::erase_free(uint64_t offset, uint64_t length) {
  free_by_offset_.erase(offset);
  free_by_length_.erase({length, offset});
}

std::optional<uint64_t> RangeAllocator::best_fit(uint64_t length) const {
  TENCACHE_CHECK(length > 0, "a range of length 0 was requested");
  const auto best = free_by_length_.lower_bound({length, 0});
  if (best == free_by_length_.end()) return std::nullopt;
  return best->second;
}

std::vector<std::pair<uint64_t, uint64_t>> RangeAllocator::best_fits(uint64_t length,
                                                                     size_t count_max) const {
  std::vector<std::pair<uint64_t, uint64_t>> fits;
  auto range = free_by_length_.lower_bound({length, 0});
  for (; range != free_by_length_.end() && fits.size() < count_max; ++range) {
    fits.emplace_back(range->second, range->first);
  }
  return fits;
}

void RangeAllocator::take(uint64_t offset, uint64_t length) {
  const auto behind = free_by_offset_.upper_bound(offset);
  const bool has_range = length > 0 && behind != free_by_offset_.begin() &&
                         length <= std::prev(behind)->second &&
                         offset - std::prev(behind)->first <= std::prev(behind)->second - length;
  TENCACHE_CHECK(has_range, "range %lu+%lu is not free", offset, length);
  const auto [begin, free_length] = *std::prev(behind);
  erase_free(begin, free_length);
  if (offset > begin) insert_free(begin, offset - begin);
  const uint64_t end = offset + length;
  if (begin + free_length > end) insert_free(end, begin + free_length - end);
  used_ += length;
}

std::optional<uint64_t> RangeAllocator::allocate(uint64_t length) {
  const std::optional<uint64_t> offset = best_fit(length);
  if (offset) take(*offset, length);
  return offset;
}

void RangeAllocator::free(uint64_t offset, uint64_t length) {
  TENCACHE_CHECK(length > 0 && length <= used_ && offset <= limit_ && length <= limit_ - offset,
                 "range %lu+%lu freed of %lu used in %lu", offset, length, used_, limit_);
  TENCACHE_CHECK(!crosses_border(offset, length), "range %lu+%lu freed across a border", offset,
                 length);
  uint64_t begin = offset;
  uint64_t end = offset + length;
  const auto next = free_by_offset_.lower_bound(offset);
  const auto previous = next == free_by_offset_.begin() ? free_by_offset_.end() : std::prev(next);
  const bool has_next = next != free_by_offset_.end();
  const bool has_previous = previous != free_by_offset_.end();
  TENCACHE_CHECK((!has_next || end <= next->first) &&
                     (!has_previous || previous->first + previous->second <= begin),
                 "range %lu+%lu freed twice", offset, length);
  const bool joins_next = has_next && next->first == end;
  const bool joins_previous = has_previous && previous->first + previous->second == begin;
  if (joins_next) {
    end += next->second;
    erase_free(next->first, next->second);
  }
  if (joins_previous) {
    begin = previous->first;
    erase_free(previous->first, previous->second);
  }
  insert_free(begin, end - begin);
  used_ -= length;
}

void RangeAllocator::grow(uint64_t new_limit) {
  TENCACHE_CHECK(new_limit >= limit_, "a space of %lu cannot shrink to %lu", limit_, new_limit);
  if (new_limit == limit_) return;
  uint64_t begin = limit_;
  if (const uint64_t tail = free_at_end(); tail > 0) {
    begin -= tail;
    erase_free(begin, tail);
  }
  insert_free(begin, new_limit - begin);
  limit_ = new_limit;
}

bool RangeAllocator::is_free_range(uint64_t offset, uint64_t length) const {
  const auto found = free_by_offset_.find(offset);
  return found != free_by_offset_.end() && found->second == length;
}

bool RangeAllocator::retire(uint64_t offset, uint64_t length) {
  if (!is_free_range(offset, length)) return false;
  erase_free(offset, length);
  retired_ += length;
  return true;
}

uint64_t RangeAllocator::grow_behind_border(uint64_t length) {
  TENCACHE_CHECK(length > 0, "a space of length 0 behind a border was requested");
  const uint64_t begin = limit_ + 1;
  borders_.push_back(limit_);
  insert_free(begin, length);
  limit_ = begin + length;
  return begin;
}

bool RangeAllocator::crosses_border(uint64_t offset, uint64_t length) const {
  const auto border = std::lower_bound(borders_.begin(), borders_.end(), offset);
  return border != borders_.end() && *border < offset + length;
}

uint64_t RangeAllocator::largest_free() const {
  return free_by_length_.empty() ? 0 : free_by_length_.rbegin()->first;
}

uint64_t RangeAllocator::free_at_end() const {
  if (free_by_offset_.empty()) return 0;
  const auto& [offset, length] = *free_by_offset_.rbegin();
  return offset + length == limit_ ? length : 0;
}

bool RangeAllocator::is_valid() const {
  uint64_t free_total = 0;
  uint64_t lowest_next = 0;  // the lowest offset at which a free range may begin
  for (const auto& [offset, length] : free_by_offset_) {
    if (length == 0 || offset < lowest_next || offset > limit_ || length > limit_ - offset) {
      return false;
    }
    if (!free_by_length_.contains({length, offset}) || crosses_border(offset, length)) return false;
    free_total += length;
    lowest_next = offset + length + 1;  // between free ranges lies a unit that is not free
  }
  return free_by_offset_.size() == free_by_length_.size() &&
         free_total + used_ + borders_.size() + retired_ == limit_;
}

}  // namespace tencache
