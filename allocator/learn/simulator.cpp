// SPDX-License-Identifier: Apache-2.0
#include "learn/simulator.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <utility>

#include "base/check.h"
#include "learn/host_model.h"
#include "learn/victim_order.h"

namespace tencache {
namespace {

// Periods that are replayed before the measured one. The state is steady when a period ends as it
// began.
constexpr int kWarmUpPeriods = 2;

enum class Place : uint8_t { kAbsent, kResident, kEvicting, kCold, kFetching };

struct TensorState {
  Place place = Place::kAbsent;
  bool has_copy = false;     // the tier below holds its bytes
  uint64_t done_ns = 0;      // end of the eviction or fetch under way
  uint64_t move_number = 0;  // tells a move that was called off from the one after it
  uint64_t last_use = 0;     // ticks since the begin of the simulation
  size_t open_move = kNone;  // its move in Simulation::moves that still lacks the return

  static constexpr size_t kNone = ~size_t{0};
};

// The ticks at which a tensor's room is wanted again, or given up: its uses and its end.
std::vector<std::vector<Tick>> ends_of_idleness(const Trace& trace,
                                                std::vector<std::vector<Tick>> uses) {
  for (uint32_t tensor = 0; tensor < uses.size(); ++tensor) {
    if (trace.tensors[tensor].is_persistent()) continue;
    std::vector<Tick>& ticks = uses[tensor];
    const Tick freed_at = trace.tensors[tensor].freed_at;
    const auto place = std::lower_bound(ticks.begin(), ticks.end(), freed_at);
    if (place == ticks.end() || *place != freed_at) ticks.insert(place, freed_at);
  }
  return uses;
}

class Replay {
 public:
  Replay(const Trace& trace, const Plan& plan, const Machine& machine);
  Simulation run();

 private:
  struct UnderWay {
    uint64_t done_ns;
    uint32_t tensor;
    uint64_t move_number;
    bool operator>(const UnderWay& other) const { return done_ns > other.done_ns; }
  };

  void begin_life();
  void begin_period();
  void run_tick(Tick tick);
  void start_planned_fetches(Tick tick);
  void advance(uint64_t until_ns);
  bool finish_next_eviction(uint64_t until_ns);
  bool start_next_fetch(uint64_t until_ns);
  void make_room(uint64_t bytes);
  bool await_fetch();
  void may_leave(uint32_t tensor);
  void need_now(uint32_t tensor);
  void need_no_longer(uint32_t tensor);
  void evict(uint32_t tensor, Tick last_use);
  void start_fetch(uint32_t tensor, uint64_t not_before_ns);
  void allocate(uint32_t tensor);
  void release(uint32_t tensor);
  void require(const TraceOp& op);
  Tick next_use(uint32_t tensor) const;
  Tick idle_until(uint32_t tensor) const;
  void note_migration(uint32_t tensor, bool is_fetch, uint64_t begin_ns, uint64_t end_ns);
  void take(uint64_t bytes);
  void leave_excess();
  Tick last_use_of(uint32_t tensor) const;
  void stay(uint32_t tensor);
  bool has_copy(uint32_t tensor) const;
  std::array<uint64_t, 4> backlogs_ns() const;
  void become_cold(uint32_t tensor);
  void advance_host(uint64_t until_ns);
  void arrive(uint32_t tensor);
  void lose_copy(uint32_t tensor);

  const Trace& trace_;
  const Machine& machine_;
  const Victim victim_;
  const std::vector<std::vector<Tick>> uses_;
  std::vector<std::vector<uint32_t>> evictions_after_;  // by tick
  std::vector<std::vector<uint32_t>> fetches_at_;
  std::vector<std::vector<uint32_t>> born_at_;
  std::vector<std::vector<uint32_t>> freed_at_;

  std::vector<TensorState> states_;
  std::priority_queue<UnderWay, std::vector<UnderWay>, std::greater<>> evictions_;
  std::deque<UnderWay> fetches_;  // below them is a host; some may have ended
  std::deque<uint32_t> fetch_queue_;
  std::vector<bool> is_needed_now_;
  std::optional<HostModel> host_;
  VictimOrder victims_;        // resident tensors that are not needed now
  uint64_t now_ns_ = 0;        // of the program
  uint64_t mover_ns_ = 0;      // up to which evictions and fetches have been played
  uint64_t read_free_ns_ = 0;  // when the link is free
  uint64_t write_free_ns_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t used_most_ = 0;
  uint64_t leaving_bytes_ = 0;  // the part of used_bytes_ that is being evicted
  uint64_t number_ = 0;
  uint64_t tick_number_ = 0;
  Tick tick_ = 0;
  Simulation result_;
};

Replay::Replay(const Trace& trace, const Plan& plan, const Machine& machine)
    : trace_(trace),
      machine_(machine),
      victim_(plan.otherwise),
      uses_(uses_by_tensor(trace)),
      evictions_after_(trace.tick_count()),
      fetches_at_(trace.tick_count()),
      born_at_(trace.tick_count()),
      freed_at_(trace.tick_count()),
      states_(trace.tensors.size()),
      is_needed_now_(trace.tensors.size(), false),
      victims_(ends_of_idleness(trace, uses_), trace.tick_count(), plan.otherwise) {
  if (machine.host_bytes > 0) host_.emplace(trace, machine, plan.copy_ahead_bytes);
  // Of the fetches that may start at the same op, the one that is needed first goes first.
  std::vector<const PlannedMove*> returning;
  for (const PlannedMove& move : plan.moves) {
    evictions_after_[move.evict_after].push_back(move.tensor);
    if (move.fetch_at != kNoTick) returning.push_back(&move);
  }
  const Tick count = trace.tick_count();
  std::stable_sort(returning.begin(), returning.end(),
                   [count](const PlannedMove* left, const PlannedMove* right) {
                     const auto lead = [count](const PlannedMove* move) {
                       return (move->needed_at + count - move->fetch_at) % count;
                     };
                     return lead(left) < lead(right);
                   });
  for (const PlannedMove* move : returning) fetches_at_[move->fetch_at].push_back(move->tensor);
  for (uint32_t tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (trace.tensors[tensor].is_persistent()) continue;
    born_at_[trace.tensors[tensor].allocated_at].push_back(tensor);
    freed_at_[trace.tensors[tensor].freed_at].push_back(tensor);
  }
}

Simulation Replay::run() {
  begin_life();
  std::vector<TensorState> begin_states;
  std::array<uint64_t, 4> begin_backlogs_ns = {};
  for (int period = 0; period <= kWarmUpPeriods; ++period) {
    const uint64_t begin_ns = now_ns_;
    begin_states = states_;
    begin_backlogs_ns = backlogs_ns();
    begin_period();
    for (Tick tick = 0; tick < trace_.tick_count(); ++tick) run_tick(tick);
    result_.step_ns = now_ns_ - begin_ns;
    for (uint64_t& begin : result_.begin_ns) begin -= begin_ns;
    if (period < kWarmUpPeriods) continue;
    for (Migration& migration : result_.migrations) {
      migration.begin_ns -= static_cast<int64_t>(begin_ns);
      migration.end_ns -= static_cast<int64_t>(begin_ns);
    }
  }
  if (host_) {
    result_.disk_bytes_read = host_->bytes_read();
    result_.disk_bytes_written = host_->bytes_written();
  }
  result_.compute_ns = trace_.compute_ns();
  result_.work_ns = machine_.work_ns(result_.bytes_read, result_.bytes_written,
                                     result_.bytes_written + result_.bytes_dropped);
  result_.step_ns += result_.work_ns;
  result_.is_steady = std::ranges::equal(states_, begin_states, [](const auto& a, const auto& b) {
    return a.place == b.place && a.has_copy == b.has_copy;
  });
  result_.is_steady &= std::ranges::equal(backlogs_ns(), begin_backlogs_ns, std::less_equal<>());
  return result_;
}

// How far each link is behind the program: what it carries for this period after its end.
std::array<uint64_t, 4> Replay::backlogs_ns() const {
  std::array<uint64_t, 4> free_ns = {read_free_ns_, write_free_ns_,
                                     host_ ? host_->read_free_ns() : 0,
                                     host_ ? host_->write_free_ns() : 0};
  for (uint64_t& ns : free_ns) ns -= std::min(ns, now_ns_);
  return free_ns;
}

// Before the first period, persistent tensors are on the device while they fit, else have a copy.
void Replay::begin_life() {
  tick_ = trace_.tick_count() - 1;
  used_bytes_ = trace_.fixed_bytes;
  for (uint32_t tensor = 0; tensor < states_.size(); ++tensor) {
    if (!trace_.tensors[tensor].is_persistent()) continue;
    const uint64_t bytes = trace_.tensors[tensor].bytes;
    const bool is_fixed = uses_[tensor].empty();  // never named: it cannot leave
    if (is_fixed || used_bytes_ + bytes <= machine_.budget_bytes) {
      states_[tensor].place = Place::kResident;
      used_bytes_ += bytes;
      may_leave(tensor);
    } else {
      if (host_) (void)host_->take_room(tensor, 0);
      become_cold(tensor);
    }
  }
}

// Forgets what was measured, except for migrations that are still under way.
void Replay::begin_period() {
  std::vector<Migration> under_way = std::move(result_.migrations);
  std::erase_if(under_way, [this](const Migration& migration) {
    return migration.end_ns <= static_cast<int64_t>(now_ns_);
  });
  result_ = {};
  result_.migrations = std::move(under_way);
  for (TensorState& state : states_) state.open_move = TensorState::kNone;
  if (host_) host_->forget_traffic();
}

void Replay::run_tick(Tick tick) {
  const TraceOp& op = trace_.ops[tick];
  tick_ = tick;
  ++tick_number_;
  const uint64_t arrived_ns = now_ns_;
  used_most_ = used_bytes_;
  for (const TraceAccess& access : op.accesses) need_now(access.tensor);
  for (const uint32_t tensor : born_at_[tick]) need_now(tensor);
  start_planned_fetches(tick);
  advance(now_ns_);
  require(op);
  for (const uint32_t tensor : born_at_[tick]) allocate(tensor);
  result_.begin_ns.push_back(now_ns_);
  result_.stall_ns.push_back(now_ns_ - arrived_ns);
  for (const TraceAccess& access : op.accesses) {
    states_[access.tensor].last_use = tick_number_;
    if (access.is_write) lose_copy(access.tensor);
  }
  now_ns_ += op.compute_ns;
  advance(now_ns_);
  for (const TraceAccess& access : op.accesses) need_no_longer(access.tensor);
  for (const uint32_t tensor : born_at_[tick]) need_no_longer(tensor);
  for (const uint32_t tensor : freed_at_[tick]) release(tensor);
  for (const uint32_t tensor : evictions_after_[tick]) {
    if (states_[tensor].place == Place::kResident) evict(tensor, last_use_of(tensor));
  }
  leave_excess();
  result_.used_bytes.push_back(used_most_);
  if (used_most_ > machine_.budget_bytes) {
    result_.over_budget_bytes =
        std::max(result_.over_budget_bytes, used_most_ - machine_.budget_bytes);
  }
}

void Replay::need_now(uint32_t tensor) {
  is_needed_now_[tensor] = true;
  victims_.remove(tensor);
}

void Replay::need_no_longer(uint32_t tensor) {
  is_needed_now_[tensor] = false;
  may_leave(tensor);
}

void Replay::start_planned_fetches(Tick tick) {
  for (const uint32_t tensor : fetches_at_[tick]) {
    TensorState& state = states_[tensor];
    if (state.place == Place::kEvicting) {
      stay(tensor);
    } else if (state.place == Place::kCold) {
      fetch_queue_.push_back(tensor);
    }
  }
}

// Plays evictions and fetches up to a time until which the program does nothing else.
void Replay::advance(uint64_t until_ns) {
  while (start_next_fetch(until_ns) || finish_next_eviction(until_ns)) {
  }
  mover_ns_ = std::max(mover_ns_, until_ns);
  if (host_) advance_host(until_ns);
}

// The copy of a tensor is a spare one once it is back on the device, whenever it will be named.
void Replay::advance_host(uint64_t until_ns) {
  while (!fetches_.empty() && fetches_.front().done_ns <= until_ns) {
    const UnderWay fetch = fetches_.front();
    fetches_.pop_front();
    const TensorState& state = states_[fetch.tensor];
    if (state.place == Place::kFetching && state.move_number == fetch.move_number) {
      host_->become_resident(fetch.tensor);
    }
  }
  host_->advance(until_ns);
}

bool Replay::start_next_fetch(uint64_t until_ns) {
  while (!fetch_queue_.empty() && states_[fetch_queue_.front()].place != Place::kCold) {
    fetch_queue_.pop_front();  // freed, or fetched on demand
  }
  if (fetch_queue_.empty()) return false;
  const uint32_t tensor = fetch_queue_.front();
  if (used_bytes_ + trace_.tensors[tensor].bytes > machine_.budget_bytes) return false;
  if (std::max(mover_ns_, read_free_ns_) > until_ns) return false;
  fetch_queue_.pop_front();
  start_fetch(tensor, mover_ns_);
  return true;
}

bool Replay::finish_next_eviction(uint64_t until_ns) {
  if (evictions_.empty() || evictions_.top().done_ns > until_ns) return false;
  const UnderWay eviction = evictions_.top();
  evictions_.pop();
  mover_ns_ = std::max(mover_ns_, eviction.done_ns);
  TensorState& state = states_[eviction.tensor];
  if (state.place == Place::kEvicting && state.move_number == eviction.move_number) {
    become_cold(eviction.tensor);
    used_bytes_ -= trace_.tensors[eviction.tensor].bytes;
    leaving_bytes_ -= trace_.tensors[eviction.tensor].bytes;
  }
  return true;
}

void Replay::evict(uint32_t tensor, Tick last_use) {
  TensorState& state = states_[tensor];
  const uint64_t bytes = trace_.tensors[tensor].bytes;
  victims_.remove(tensor);
  state.open_move = result_.moves.size();
  result_.moves.push_back({tensor, last_use, kNoTick, next_use(tensor)});
  if (has_copy(tensor)) {
    result_.bytes_dropped += bytes;
    become_cold(tensor);
    used_bytes_ -= bytes;
    note_migration(tensor, false, now_ns_, now_ns_);
    return;
  }
  result_.bytes_written += bytes;
  uint64_t& link_free_ns = machine_.is_half_duplex ? read_free_ns_ : write_free_ns_;
  uint64_t begin_ns = std::max(link_free_ns, mover_ns_);
  if (host_) begin_ns = host_->take_room(tensor, begin_ns);
  link_free_ns = begin_ns + machine_.write_ns(bytes);
  note_migration(tensor, false, begin_ns, link_free_ns);
  state.place = Place::kEvicting;
  leaving_bytes_ += bytes;
  state.done_ns = link_free_ns;
  state.move_number = ++number_;
  evictions_.push({state.done_ns, tensor, state.move_number});
}

void Replay::start_fetch(uint32_t tensor, uint64_t not_before_ns) {
  TensorState& state = states_[tensor];
  const uint64_t bytes = trace_.tensors[tensor].bytes;
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
  result_.bytes_read += bytes;
  if (state.open_move != TensorState::kNone) result_.moves[state.open_move].fetch_at = tick_;
  state.open_move = TensorState::kNone;
  take(bytes);
}

void Replay::note_migration(uint32_t tensor, bool is_fetch, uint64_t begin_ns, uint64_t end_ns) {
  result_.migrations.push_back(
      {tensor, is_fetch, static_cast<int64_t>(begin_ns), static_cast<int64_t>(end_ns)});
}

void Replay::take(uint64_t bytes) {
  used_bytes_ += bytes;
  used_most_ = std::max(used_most_, used_bytes_);
}

// What an op needed beyond the budget leaves once the op has ended, while the program goes on.
void Replay::leave_excess() {
  while (used_bytes_ > machine_.budget_bytes + leaving_bytes_) {
    const std::optional<uint32_t> victim = victims_.first(tick_);
    if (!victim) return;
    evict(*victim, last_use_of(*victim));
  }
}

Tick Replay::last_use_of(uint32_t tensor) const {
  const std::vector<Tick>& uses = uses_[tensor];
  const auto later = std::upper_bound(uses.begin(), uses.end(), tick_);
  return later == uses.begin() ? uses.back() : *(later - 1);
}

// Makes the program wait: first for evictions under way, then for a victim to leave. Where nothing
// can leave, the budget is exceeded.
void Replay::make_room(uint64_t bytes) {
  while (used_bytes_ + bytes > machine_.budget_bytes) {
    if (finish_next_eviction(~uint64_t{0})) {
      now_ns_ = std::max(now_ns_, mover_ns_);
      continue;
    }
    const std::optional<uint32_t> victim = victims_.first(tick_);
    if (victim) {
      evict(*victim, last_use_of(*victim));
    } else if (!await_fetch()) {
      return;
    }
  }
}

// A tensor that was fetched ahead can leave again once it has arrived. False when none is on the
// way.
bool Replay::await_fetch() {
  std::optional<uint32_t> first;
  for (uint32_t tensor = 0; tensor < states_.size(); ++tensor) {
    if (states_[tensor].place != Place::kFetching || is_needed_now_[tensor]) continue;
    if (!first || states_[tensor].done_ns < states_[*first].done_ns) first = tensor;
  }
  if (!first) return false;
  now_ns_ = std::max(now_ns_, states_[*first].done_ns);
  arrive(*first);
  may_leave(*first);
  return true;
}

// Called when the tensor may have become able to leave.
void Replay::may_leave(uint32_t tensor) {
  const TensorState& state = states_[tensor];
  if (state.place != Place::kResident || is_needed_now_[tensor] || uses_[tensor].empty()) return;
  if (victim_ == Victim::kFarthestNextUse) {
    victims_.add(tensor, idle_until(tensor));
  } else {
    const auto last_use = static_cast<Tick>((state.last_use - 1) % trace_.tick_count());
    victims_.add(tensor, state.last_use == 0 ? kNoTick : last_use);
  }
}

Tick Replay::next_use(uint32_t tensor) const {
  const std::vector<Tick>& uses = uses_[tensor];
  const TraceTensor& life = trace_.tensors[tensor];
  const auto later = std::upper_bound(uses.begin(), uses.end(), tick_);
  const Tick next = later == uses.end() ? uses.front() : *later;
  // The op that names it next may do so in its next life.
  return !life.is_persistent() && next == life.allocated_at ? kNoTick : next;
}

// Until when its room could serve others: until its next use, or its end if there is none.
Tick Replay::idle_until(uint32_t tensor) const {
  const Tick next = next_use(tensor);
  return next == kNoTick ? trace_.tensors[tensor].freed_at : next;
}

void Replay::require(const TraceOp& op) {
  for (const TraceAccess& access : op.accesses) {
    TensorState& state = states_[access.tensor];
    if (state.place == Place::kEvicting) stay(access.tensor);
    if (state.place != Place::kCold) continue;
    const uint64_t bytes = trace_.tensors[access.tensor].bytes;
    make_room(bytes);
    start_fetch(access.tensor, now_ns_);
  }
  for (const TraceAccess& access : op.accesses) {
    TensorState& state = states_[access.tensor];
    if (state.place == Place::kFetching) {
      if (state.done_ns > now_ns_ + machine_.wait_resolution_ns) {
        result_.bytes_late += trace_.tensors[access.tensor].bytes;
      }
      now_ns_ = std::max(now_ns_, state.done_ns);
      arrive(access.tensor);
    }
    TENCACHE_DCHECK(state.place == Place::kResident || state.place == Place::kAbsent);
  }
  advance(now_ns_);
}

void Replay::allocate(uint32_t tensor) {
  TensorState& state = states_[tensor];
  if (state.place != Place::kAbsent) release(tensor);
  make_room(trace_.tensors[tensor].bytes);
  take(trace_.tensors[tensor].bytes);
  state.place = Place::kResident;
  lose_copy(tensor);
  state.last_use = tick_number_;
}

// Calls the tensor's eviction off: it never left.
void Replay::stay(uint32_t tensor) {
  states_[tensor].place = Place::kResident;
  lose_copy(tensor);
  leaving_bytes_ -= trace_.tensors[tensor].bytes;
  may_leave(tensor);
}

bool Replay::has_copy(uint32_t tensor) const {
  return states_[tensor].has_copy && (!host_ || host_->holds(tensor));
}

// From now on its bytes are only below.
void Replay::become_cold(uint32_t tensor) {
  states_[tensor].place = Place::kCold;
  states_[tensor].has_copy = true;
  if (!host_) return;
  const Tick count = trace_.tick_count();
  const Tick ticks = (idle_until(tensor) + count - tick_) % count;
  host_->become_cold(tensor, tick_number_ + (ticks == 0 ? count : ticks));
}

void Replay::arrive(uint32_t tensor) {
  states_[tensor].place = Place::kResident;
  states_[tensor].has_copy = true;
  if (host_) host_->become_resident(tensor);
}

void Replay::lose_copy(uint32_t tensor) {
  states_[tensor].has_copy = false;
  if (host_) host_->forget(tensor);
}

void Replay::release(uint32_t tensor) {
  TensorState& state = states_[tensor];
  if (state.place == Place::kEvicting) stay(tensor);
  if (state.place != Place::kAbsent && state.place != Place::kCold) {
    used_bytes_ -= trace_.tensors[tensor].bytes;
  }
  victims_.remove(tensor);
  state.place = Place::kAbsent;
  lose_copy(tensor);
  state.open_move = TensorState::kNone;
}

uint64_t bytes_moved(const Simulation& simulation) {
  return simulation.bytes_read + simulation.bytes_written + simulation.disk_bytes_read +
         simulation.disk_bytes_written;
}

}  // namespace

bool is_better(const Simulation& left, const Simulation& right) {
  if (left.over_budget_bytes != right.over_budget_bytes) {
    return left.over_budget_bytes < right.over_budget_bytes;
  }
  const uint64_t unit = left.compute_ns / kStepParts + 1;
  if (left.step_ns / unit != right.step_ns / unit) return left.step_ns < right.step_ns;
  if (left.bytes_late != right.bytes_late) return left.bytes_late < right.bytes_late;
  return bytes_moved(left) < bytes_moved(right);
}

Simulation simulate(const Trace& trace, const Plan& plan, const Machine& machine) {
  return Replay(trace, plan, machine).run();
}

}  // namespace tencache
