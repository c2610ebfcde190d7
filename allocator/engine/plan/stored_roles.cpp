// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/stored_roles.h"

#include <algorithm>
#include <utility>

namespace tencache {
namespace {

// A place that was held for this many ticks, or for half a period if that is less, was the right
// one.
constexpr uint64_t kHeldTicks = 32;
// For each tensor this many unexpected ticks are passed over: an op that fills a new extent calls
// others that name it, too.
constexpr uint64_t kPassesPerTensor = 4;

// Whether the extent is still there: a freed one keeps its number until it is used again.
bool is_alive(const Extent& extent, uint64_t id) {
  const ExtentState state = extent.state();
  return extent.id == id && state != ExtentState::kCached && state != ExtentState::kVacant;
}

}  // namespace

StoredRoles::StoredRoles(std::shared_ptr<const Period> period)
    : period_(std::move(period)), found_(period_->extent_ids.size()) {
  for (uint32_t tensor = 0; tensor < found_.size(); ++tensor) {
    const uint64_t extent_id = period_->extent_ids[tensor];
    if (extent_id == kUnknownExtent) {
      ++unknown_count_;
    } else if (extent_id != 0) {
      tensor_of_[extent_id] = tensor;
    }
  }
  passes_left_ = kPassesPerTensor * unknown_count_;
}

uint64_t StoredRoles::known_id(uint32_t tensor) const {
  const Found& found = found_[tensor];
  if (found.extent == nullptr) return period_->extent_ids[tensor];
  return is_alive(*found.extent, found.id) ? found.id : kUnknownExtent;
}

std::optional<uint32_t> StoredRoles::tensor_of(uint64_t extent_id) const {
  const auto found = tensor_of_.find(extent_id);
  return found != tensor_of_.end() ? std::optional(found->second) : std::nullopt;
}

bool StoredRoles::may_be(const NotedExtent& extent, uint32_t tensor) const {
  return extent.bytes == period_->trace.tensors[tensor].bytes && !tensor_of_.contains(extent.id);
}

bool StoredRoles::agrees(Tick tick, uint64_t digest, std::span<Extent* const> extents,
                         Unknown unknown) const {
  return digest == period_->digests[tick] && agrees_with(tick, extents, unknown);
}

template <typename Entry>
bool StoredRoles::agrees_with(Tick tick, std::span<const Entry> extents, Unknown unknown) const {
  const std::vector<TraceAccess>& accesses = period_->trace.ops[tick].accesses;
  if (extents.size() != accesses.size()) return false;
  bool names_known = false;
  bool names_unknown = false;
  for (size_t index = 0; index < accesses.size(); ++index) {
    const uint32_t tensor = accesses[index].tensor;
    if (period_->extent_ids[tensor] == 0) continue;
    const NotedExtent extent = noted(extents[index]);
    const uint64_t known = known_id(tensor);
    if (known != kUnknownExtent) {
      if (extent.id != known) return false;
      names_known = true;
      continue;
    }
    if (!may_be(extent, tensor)) return false;
    names_unknown = true;
    // Within the op, too, one extent stands for one tensor.
    for (size_t earlier = 0; earlier < index; ++earlier) {
      const bool is_same_tensor = accesses[earlier].tensor == tensor;
      if (is_same_tensor != (noted(extents[earlier]).id == extent.id)) return false;
    }
  }
  return unknown == Unknown::kMayBeIt || names_known || !names_unknown;
}

Tick StoredRoles::before(Tick tick, size_t age) const {
  const size_t count = period_->digests.size();
  return static_cast<Tick>((tick + count - age % count) % count);
}

void StoredRoles::see(uint64_t digest, std::span<Extent* const> extents) {
  SeenTick& tick = seen_[seen_count_ % seen_.size()];
  ++seen_count_;
  tick.digest = digest;
  tick.extents.clear();
  for (Extent* extent : extents) tick.extents.push_back(noted(extent));
  if (++ticks_without_place_ > period_->digests.size()) forget_all();
}

bool StoredRoles::fits_seen(Tick tick) const {
  if (seen_count() < kBefore) return false;
  bool tells = period_->names_always_there(tick);
  for (size_t age = 1; age <= kBefore; ++age) {
    const Tick earlier = before(tick, age);
    const std::span<const NotedExtent> extents = seen(age).extents;
    if (!agrees_with(earlier, extents, Unknown::kMayBeIt)) return false;
    tells = tells || period_->names_always_there(earlier);
  }
  return tells;
}

bool StoredRoles::has_begun_at(Tick tick) const {
  if (tick != kBefore || seen_count() <= kBefore) return false;
  const std::vector<uint64_t>& digests = period_->digests;
  return std::ranges::find(digests, seen(kBefore + 1).digest) == digests.end();
}

void StoredRoles::take_place(Tick tick) {
  ++places_taken_;
  ticks_held_ = 0;
  ticks_without_place_ = 0;
  for (size_t age = std::min(seen_count(), kBefore); age > 0; --age) {
    const std::span<const NotedExtent> earlier = seen(age).extents;
    // An earlier tick may have found an extent that this one names.
    if (agrees_with(before(tick, age), earlier, Unknown::kMayBeIt)) {
      bind(before(tick, age), earlier);
    }
  }
  forget_seen();
}

void StoredRoles::follow(Tick tick, std::span<Extent* const> extents) {
  ++ticks_held_;
  bind(tick, extents);
}

template <typename Entry>
void StoredRoles::bind(Tick tick, std::span<const Entry> extents) {
  const std::vector<TraceAccess>& accesses = period_->trace.ops[tick].accesses;
  for (size_t index = 0; index < accesses.size(); ++index) {
    const uint32_t tensor = accesses[index].tensor;
    if (period_->extent_ids[tensor] == 0 || known_id(tensor) != kUnknownExtent) continue;
    unbind(tensor);  // from one that was freed
    found_[tensor] = {noted(extents[index]), places_taken_};
    tensor_of_[found_[tensor].id] = tensor;
    ++found_count_;
  }
}

bool StoredRoles::is_held() const {
  return ticks_held_ >= std::min<uint64_t>(kHeldTicks, period_->digests.size() / 2);
}

bool StoredRoles::passes_over(std::span<Extent* const> extents) {
  if (!is_held() || passes_left_ == 0 || found_count_ == unknown_count_) return false;
  const bool names_known = std::ranges::any_of(
      extents, [this](const Extent* extent) { return tensor_of_.contains(extent->id); });
  if (names_known) return false;
  --passes_left_;
  return true;
}

void StoredRoles::give_up() {
  ticks_without_place_ = 0;
  if (is_held()) return;
  for (uint32_t tensor = 0; tensor < found_.size(); ++tensor) {
    if (found_[tensor].place == places_taken_) unbind(tensor);
  }
}

void StoredRoles::unbind(uint32_t tensor) {
  Found& found = found_[tensor];
  if (found.extent == nullptr) return;
  tensor_of_.erase(found.id);
  found = {};
  --found_count_;
}

void StoredRoles::forget_all() {
  ticks_without_place_ = 0;
  for (uint32_t tensor = 0; tensor < found_.size(); ++tensor) unbind(tensor);
}

std::vector<uint64_t> StoredRoles::extent_ids() const {
  std::vector<uint64_t> ids = period_->extent_ids;
  for (uint32_t tensor = 0; tensor < ids.size(); ++tensor) {
    if (ids[tensor] == kUnknownExtent) ids[tensor] = known_id(tensor);
  }
  return ids;
}

}  // namespace tencache
