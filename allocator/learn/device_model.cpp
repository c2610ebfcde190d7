// SPDX-License-Identifier: Apache-2.0
#include "learn/device_model.h"

#include <algorithm>

#include "base/check.h"

namespace tencache {

DeviceModel::DeviceModel(const TraceIndex& index, const Machine& machine, const Plan& plan,
                         Simulation* notes)
    : index_(index),
      trace_(index.trace()),
      machine_(machine),
      victim_(plan.otherwise),
      notes_(*notes),
      uses_(index.uses()),
      states_(trace_.tensors.size()),
      is_needed_now_(trace_.tensors.size(), 0),
      victims_(index.row(plan.otherwise)) {
  if (machine.host_bytes > 0) host_.emplace(trace_, machine, plan.copy_ahead_bytes, notes);
  tick_ = trace_.tick_count() - 1;
  used_bytes_ = trace_.fixed_bytes;
  for (uint32_t tensor = 0; tensor < states_.size(); ++tensor) {
    if (!trace_.tensors[tensor].is_persistent()) continue;
    const bool is_fixed = !uses_.is_named(tensor);
    if (is_fixed || used_bytes_ + bytes_of(tensor) <= machine_.budget_bytes) {
      states_[tensor].place = Place::kResident;
      used_bytes_ += bytes_of(tensor);
      add_victim(tensor);
    } else {
      if (host_) (void)host_->take_room(tensor, 0);
      become_cold(tensor);
    }
  }
}

// ---- One op ------------------------------------------------------------------------------------

void DeviceModel::begin_op(Tick tick) {
  tick_ = tick;
  ++tick_number_;
  used_most_ = used_bytes_;
}

void DeviceModel::need_now() {
  for (const TraceIndex::Needed& needed : index_.needed_at(tick_)) {
    is_needed_now_[needed.tensor] = 1;
    victims_.remove(needed.tensor);
  }
}

void DeviceModel::need_no_longer() {
  for (const TraceIndex::Needed& needed : index_.needed_at(tick_)) {
    is_needed_now_[needed.tensor] = 0;
    if (victim_ != Victim::kFarthestNextUse) {
      add_victim(needed.tensor);
    } else if (states_[needed.tensor].place == Place::kResident) {
      victims_.add_at(needed.tensor, needed.place);
    }
  }
}

void DeviceModel::request_fetch(uint32_t tensor) {
  if (states_[tensor].place == Place::kEvicting) {
    stay(tensor);
  } else if (states_[tensor].place == Place::kCold) {
    fetch_queue_.push_back({tensor, tick_number_});
  }
}

void DeviceModel::request_eviction(uint32_t tensor) {
  if (states_[tensor].place == Place::kResident) evict(tensor);
}

void DeviceModel::require(const TraceOp& op) {
  const bool are_there = std::ranges::all_of(op.accesses, [this](const TraceAccess& access) {
    const Place place = states_[access.tensor].place;
    return place == Place::kResident || place == Place::kAbsent;
  });
  if (are_there) return;
  const uint64_t moves_before = number_;
  for (const TraceAccess& access : op.accesses) {
    TensorState& state = states_[access.tensor];
    if (state.place == Place::kEvicting) stay(access.tensor);
    if (state.place != Place::kCold) continue;
    make_room(bytes_of(access.tensor));
    start_fetch(access.tensor, now_ns_);
  }
  const bool has_demanded = number_ > moves_before;
  // Where threads wait rather than a device, what an op finds cold is late, even if it arrives
  // while the op waits for something else. The threads wait for the cold tensors first, and what
  // was under way when the op began has arrived by then.
  const auto is_late = [&](const TensorState& state) {
    if (machine_.wait_resolution_ns == 0 && has_demanded) return state.move_number > moves_before;
    return state.done_ns > now_ns_ + machine_.wait_resolution_ns;
  };
  for (const TraceAccess& access : op.accesses) {
    TensorState& state = states_[access.tensor];
    if (state.place == Place::kFetching) {
      if (is_late(state)) notes_.bytes_late += bytes_of(access.tensor);
      now_ns_ = std::max(now_ns_, state.done_ns);
      arrive(access.tensor);
    }
    TENCACHE_DCHECK(state.place == Place::kResident || state.place == Place::kAbsent);
  }
  advance(now_ns_);
}

void DeviceModel::allocate(uint32_t tensor) {
  TensorState& state = states_[tensor];
  if (state.place != Place::kAbsent) release(tensor);
  make_room(bytes_of(tensor));
  take(bytes_of(tensor));
  state.place = Place::kResident;
  lose_copy(tensor);
  state.last_use = tick_number_;
}

void DeviceModel::use(const TraceAccess& access) {
  states_[access.tensor].last_use = tick_number_;
  if (access.is_write) lose_copy(access.tensor);
}

void DeviceModel::compute(uint64_t ns) {
  now_ns_ += ns;
  advance(now_ns_);
}

void DeviceModel::release(uint32_t tensor) {
  TensorState& state = states_[tensor];
  if (state.place == Place::kEvicting) stay(tensor);
  if (state.place != Place::kAbsent && state.place != Place::kCold) used_bytes_ -= bytes_of(tensor);
  victims_.remove(tensor);
  state.place = Place::kAbsent;
  lose_copy(tensor);
  state.open_move = TensorState::kNone;
}

void DeviceModel::leave_excess() {
  while (used_bytes_ > machine_.budget_bytes + leaving_bytes_) {
    const std::optional<uint32_t> victim = victims_.first(tick_);
    if (!victim) return;
    evict(*victim);
  }
}

// ---- What it is like now -----------------------------------------------------------------------

std::vector<std::pair<DeviceModel::Place, bool>> DeviceModel::places() const {
  std::vector<std::pair<Place, bool>> places;
  places.reserve(states_.size());
  for (const TensorState& state : states_) places.emplace_back(state.place, state.has_copy);
  return places;
}

std::array<uint64_t, 4> DeviceModel::backlogs_ns() const {
  std::array<uint64_t, 4> free_ns = {read_free_ns_, write_free_ns_,
                                     host_ ? host_->read_free_ns() : 0,
                                     host_ ? host_->write_free_ns() : 0};
  for (uint64_t& ns : free_ns) ns -= std::min(ns, now_ns_);
  return free_ns;
}

void DeviceModel::forget_notes() {
  for (TensorState& state : states_) state.open_move = TensorState::kNone;
}

// ---- Moves -------------------------------------------------------------------------------------

// Plays evictions and fetches up to a time until which the program does nothing else.
void DeviceModel::advance(uint64_t until_ns) {
  while (start_next_fetch(until_ns) || finish_next_eviction(until_ns)) {
  }
  mover_ns_ = std::max(mover_ns_, until_ns);
  if (host_) advance_host(until_ns);
}

// Plays the host memory up to a time. Once a tensor is back on the device, its copy is a spare one,
// whenever the tensor will be named.
void DeviceModel::advance_host(uint64_t until_ns) {
  while (!fetches_.empty() && fetches_.front().done_ns <= until_ns) {
    const UnderWay fetch = fetches_.front();
    fetches_.pop_front();
    if (is_on_its_way(fetch)) host_->become_resident(fetch.tensor);
  }
  host_->advance(until_ns);
}

bool DeviceModel::start_next_fetch(uint64_t until_ns) {
  while (!fetch_queue_.empty() && is_outdated(fetch_queue_.front())) fetch_queue_.pop_front();
  if (fetch_queue_.empty()) return false;
  const uint32_t tensor = fetch_queue_.front().tensor;
  if (used_bytes_ + bytes_of(tensor) > machine_.budget_bytes) return false;
  if (std::max(mover_ns_, read_free_ns_) > until_ns) return false;
  fetch_queue_.pop_front();
  start_fetch(tensor, mover_ns_);
  return true;
}

// Whether the tensor was freed, or fetched on demand. It may have left again since.
bool DeviceModel::is_outdated(const FetchRequest& request) const {
  const TensorState& state = states_[request.tensor];
  return state.place != Place::kCold || state.last_use >= request.tick_number;
}

bool DeviceModel::finish_next_eviction(uint64_t until_ns) {
  if (evictions_.empty() || evictions_.front().done_ns > until_ns) return false;
  const UnderWay eviction = evictions_.front();
  evictions_.pop_front();
  mover_ns_ = std::max(mover_ns_, eviction.done_ns);
  TensorState& state = states_[eviction.tensor];
  if (state.place == Place::kEvicting && state.move_number == eviction.move_number) {
    become_cold(eviction.tensor);
    used_bytes_ -= bytes_of(eviction.tensor);
    leaving_bytes_ -= bytes_of(eviction.tensor);
  }
  return true;
}

void DeviceModel::evict(uint32_t tensor) {
  TensorState& state = states_[tensor];
  const uint64_t bytes = bytes_of(tensor);
  victims_.remove(tensor);
  state.open_move = notes_.moves.size();
  notes_.moves.push_back(
      {tensor, uses_.last_use(tensor, tick_), kNoTick, uses_.next_use(tensor, tick_)});
  if (has_copy(tensor)) {
    notes_.bytes_dropped += bytes;
    become_cold(tensor);
    used_bytes_ -= bytes;
    note_migration(tensor, false, now_ns_, now_ns_);
    return;
  }
  notes_.bytes_written += bytes;
  uint64_t& link_free_ns = machine_.is_half_duplex ? read_free_ns_ : write_free_ns_;
  uint64_t begin_ns = std::max(link_free_ns, mover_ns_);
  if (host_) begin_ns = host_->take_room(tensor, begin_ns);
  link_free_ns = begin_ns + machine_.write_ns(bytes);
  note_migration(tensor, false, begin_ns, link_free_ns);
  state.place = Place::kEvicting;
  leaving_bytes_ += bytes;
  state.done_ns = link_free_ns;
  state.move_number = ++number_;
  evictions_.push_back({state.done_ns, tensor, state.move_number});
}

void DeviceModel::start_fetch(uint32_t tensor, uint64_t not_before_ns) {
  TensorState& state = states_[tensor];
  const uint64_t bytes = bytes_of(tensor);
  uint64_t begin_ns = std::max(read_free_ns_, not_before_ns);
  if (host_) {
    advance_host(begin_ns);
    begin_ns = host_->fetch(tensor, begin_ns);
  }
  read_free_ns_ = begin_ns + machine_.read_ns(bytes);
  note_migration(tensor, true, begin_ns, read_free_ns_);
  state.place = Place::kFetching;
  state.done_ns = read_free_ns_;
  state.move_number = ++number_;
  if (host_) fetches_.push_back({state.done_ns, tensor, state.move_number});
  never_awaited_.push_back({state.done_ns, tensor, state.move_number});
  notes_.bytes_read += bytes;
  if (state.open_move != TensorState::kNone) notes_.moves[state.open_move].fetch_at = tick_;
  state.open_move = TensorState::kNone;
  take(bytes);
}

void DeviceModel::note_migration(uint32_t tensor, bool is_fetch, uint64_t begin_ns,
                                 uint64_t end_ns) {
  notes_.migrations.push_back(
      {tensor, is_fetch, static_cast<int64_t>(begin_ns), static_cast<int64_t>(end_ns)});
}

void DeviceModel::take(uint64_t bytes) {
  used_bytes_ += bytes;
  used_most_ = std::max(used_most_, used_bytes_);
}

// Makes the program wait for room: first for evictions under way, then for a victim to leave, then
// for a tensor under way to arrive, which can leave again. Where none of these is left, the budget
// is exceeded.
void DeviceModel::make_room(uint64_t bytes) {
  while (used_bytes_ + bytes > machine_.budget_bytes) {
    if (finish_next_eviction(~uint64_t{0})) {
      now_ns_ = std::max(now_ns_, mover_ns_);
      continue;
    }
    const std::optional<uint32_t> victim = victims_.first(tick_);
    if (victim) {
      evict(*victim);
    } else if (!await_fetch()) {
      return;
    }
  }
}

// Waits for a tensor that was fetched ahead: it can leave again once it has arrived. Returns false
// when none is on the way.
bool DeviceModel::await_fetch() {
  while (!never_awaited_.empty() && !is_on_its_way(never_awaited_.front())) {
    never_awaited_.pop_front();
  }
  const auto first = std::ranges::find_if(never_awaited_, [this](const UnderWay& fetch) {
    return is_on_its_way(fetch) && is_needed_now_[fetch.tensor] == 0;
  });
  if (first == never_awaited_.end()) return false;
  const uint32_t tensor = first->tensor;
  now_ns_ = std::max(now_ns_, first->done_ns);
  arrive(tensor);
  add_victim(tensor);
  return true;
}

bool DeviceModel::is_on_its_way(const UnderWay& fetch) const {
  const TensorState& state = states_[fetch.tensor];
  return state.place == Place::kFetching && state.move_number == fetch.move_number;
}

// ---- States of a tensor ------------------------------------------------------------------------

// Call when the tensor may have become able to leave.
void DeviceModel::add_victim(uint32_t tensor) {
  const TensorState& state = states_[tensor];
  if (state.place != Place::kResident || is_needed_now_[tensor] != 0) return;
  if (!uses_.is_named(tensor)) return;
  if (victim_ == Victim::kFarthestNextUse) {
    victims_.add(tensor, uses_.idle_until(tensor, tick_));
  } else {
    const auto last_use = static_cast<Tick>((state.last_use - 1) % trace_.tick_count());
    victims_.add(tensor, state.last_use == 0 ? kNoTick : last_use);
  }
}

// Calls the tensor's eviction off: it never left.
void DeviceModel::stay(uint32_t tensor) {
  states_[tensor].place = Place::kResident;
  lose_copy(tensor);
  leaving_bytes_ -= bytes_of(tensor);
  add_victim(tensor);
}

bool DeviceModel::has_copy(uint32_t tensor) const {
  return states_[tensor].has_copy && (!host_ || host_->holds(tensor));
}

// From now on the tensor's bytes are only below.
void DeviceModel::become_cold(uint32_t tensor) {
  states_[tensor].place = Place::kCold;
  states_[tensor].has_copy = true;
  if (!host_) return;
  const Tick count = trace_.tick_count();
  const Tick ticks = (uses_.idle_until(tensor, tick_) + count - tick_) % count;
  host_->become_cold(tensor, tick_number_ + (ticks == 0 ? count : ticks));
}

void DeviceModel::arrive(uint32_t tensor) {
  states_[tensor].place = Place::kResident;
  states_[tensor].has_copy = true;
  if (host_) host_->become_resident(tensor);
}

void DeviceModel::lose_copy(uint32_t tensor) {
  states_[tensor].has_copy = false;
  if (host_) host_->forget(tensor);
}

}  // namespace tencache
