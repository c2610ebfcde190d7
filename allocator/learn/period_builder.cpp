// SPDX-License-Identifier: Apache-2.0
#include "learn/period_builder.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "learn/compute_times.h"
#include "learn/extent_roles.h"

namespace tencache {
namespace {

// A tick that names only extents that were made once fills them, if they were allocated at most so
// many ticks before. An op's nested ops are ticks, too.
constexpr uint64_t kFillTicksMax = 2;

class PeriodBuilder {
 public:
  PeriodBuilder(const TickLog& log, const PeriodPlace& place, const Recorder& recorder)
      : log_(log), place_(place), recorder_(recorder), roles_(log, place) {}

  std::optional<Period> build() {
    if (!roles_.is_consistent() || !choose_ticks()) return std::nullopt;
    add_born_tensors();
    const std::vector<uint64_t> compute_ns =
        compute_times(log_, place_, roles_.counterparts(), recorder_.clock().line());
    period_.first_born_id = first_born_id();
    for (const uint64_t number : numbers_) add_tick(number, compute_ns[number - place_.begin]);
    period_.born_bytes = period_.trace.transient_bytes();
    if (!period_.trace.validate().is_ok()) return std::nullopt;
    return std::move(period_);
  }

 private:
  /// Chooses the ticks of the period. Returns false when none is left.
  bool choose_ticks() {
    ticks_.reserve(place_.length);
    for (uint64_t number = place_.begin; number < place_.end(); ++number) {
      if (!only_fills(number)) numbers_.push_back(number);
      ticks_.push_back(numbers_.empty() ? 0 : static_cast<Tick>(numbers_.size() - 1));
    }
    return !numbers_.empty();
  }

  bool only_fills(uint64_t number) const {
    return std::ranges::all_of(log_.tick(number).accesses, [&](const LoggedAccess& access) {
      return roles_.is_made_once(access.extent_id) &&
             log_.life(access.extent_id)->born + kFillTicksMax >= number;
    });
  }

  uint64_t first_born_id() const {
    uint64_t first = ~uint64_t{0};
    for (uint64_t number = place_.begin; number < place_.end(); ++number) {
      for (const uint64_t extent_id : log_.births(number)) first = std::min(first, extent_id);
    }
    return first;
  }

  Tick tick_of(uint64_t number) const {
    return ticks_[std::min(number, place_.end() - 1) - place_.begin];
  }

  // Adds the tensors that no op names, too: they take room.
  void add_born_tensors() {
    for (const Succession& born : roles_.successions()) {
      const Tick allocated_at = tick_of(born.born);
      Tick freed_at = tick_of(born.freed);
      // A tensor that lives until the next repetition replaces it is always there: it ends right
      // before the tick that allocates its successor.
      const bool lasts = born.end == Succession::End::kLasts ||
                         (born.end == Succession::End::kInNextCopy && freed_at >= allocated_at);
      const auto count = static_cast<Tick>(numbers_.size());
      if (lasts) freed_at = (allocated_at + count - 1) % count;
      const uint32_t tensor = add_tensor({born.bytes, allocated_at, freed_at}, 0);
      tensors_[born.extent_id] = tensor;
      if (born.predecessor != 0) tensors_[born.predecessor] = tensor;
    }
  }

  uint32_t add_tensor(const TraceTensor& tensor, uint64_t extent_id) {
    period_.trace.tensors.push_back(tensor);
    period_.extent_ids.push_back(extent_id);
    return static_cast<uint32_t>(period_.trace.tensors.size() - 1);
  }

  void add_tick(uint64_t number, uint64_t compute_ns) {
    const LoggedTick& tick = log_.tick(number);
    TraceOp op;
    op.name = name(tick.op);
    op.compute_ns = compute_ns;
    for (const LoggedAccess& access : tick.accesses) {
      op.accesses.push_back({find_tensor(access), access.is_write});
    }
    period_.trace.ops.push_back(std::move(op));
    period_.digests.push_back(tick.digest);
  }

  uint32_t name(uint32_t op) {
    std::vector<std::string>& names = period_.trace.op_names;
    const auto [entry, is_new] = names_.try_emplace(op, static_cast<uint32_t>(names.size()));
    if (is_new) names.push_back(recorder_.op_name(op));
    return entry->second;
  }

  uint32_t find_tensor(const LoggedAccess& access) {
    const auto found = tensors_.find(access.extent_id);
    if (found != tensors_.end()) return found->second;
    const uint64_t freed = roles_.is_exchanged(access.extent_id)
                               ? place_.end() - 1
                               : roles_.freed_in_copy(access.extent_id);
    const uint32_t number = freed == kUnknownTick
                                ? add_tensor({access.bytes}, access.extent_id)
                                : add_tensor({access.bytes, 0, tick_of(freed)}, 0);
    tensors_[access.extent_id] = number;
    return number;
  }

  const TickLog& log_;
  const PeriodPlace place_;
  const Recorder& recorder_;
  const ExtentRoles roles_;
  std::vector<uint64_t> numbers_;                   // in the log, by tick of the period
  std::vector<Tick> ticks_;                         // by place in the copy
  std::unordered_map<uint32_t, uint32_t> names_;    // by the recorder's number
  std::unordered_map<uint64_t, uint32_t> tensors_;  // by extent
  Period period_;
};

}  // namespace

uint64_t allocated_bytes(const TickLog& log, const PeriodPlace& place) {
  uint64_t bytes = 0;
  for (uint64_t number = place.begin; number < place.end(); ++number) {
    for (const uint64_t extent_id : log.births(number)) {
      const ExtentLife* life = log.life(extent_id);
      bytes += life != nullptr ? life->bytes : 0;
    }
  }
  return bytes;
}

std::optional<Period> build_period(const TickLog& log, const PeriodPlace& place,
                                   const Recorder& recorder) {
  return PeriodBuilder(log, place, recorder).build();
}

}  // namespace tencache
