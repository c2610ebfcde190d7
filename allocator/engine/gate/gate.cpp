// SPDX-License-Identifier: Apache-2.0
#include "engine/gate/gate.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "engine/plan/chaos.h"
#include "engine/plan/learner.h"
#include "engine/plan/neighbours.h"
#include "engine/plan/prefetcher.h"
#include "engine/plan/upcoming_uses.h"
#include "learn/tick_digest.h"

namespace tencache {
namespace {

// The first capacities of a thread's lists. They suffice for an ordinary op with all that it names,
// so that nothing grows.
constexpr size_t kPinsReserved = 256;
constexpr size_t kOpenOpsReserved = 64;
// Up to this many pins are searched one by one.
constexpr size_t kPinsSearched = 32;
// The learner is told after this many events, well before the ring is full.
constexpr uint64_t kEventsPerTelling = kRingEvents / 32;

std::atomic<uint64_t> g_generation{0};
// The generations of the gates that are alive; 0 marks a free place. There is no lock, because
// threads end in forked children, too.
std::array<std::atomic<uint64_t>, Gate::kGatesMax> g_alive = {};

size_t take_place(uint64_t generation) {
  for (size_t place = 0; place < g_alive.size(); ++place) {
    uint64_t nobody = 0;
    if (g_alive.at(place).compare_exchange_strong(nobody, generation)) return place;
  }
  TENCACHE_CHECK(false, "there are more than %zu gates", Gate::kGatesMax);
  return 0;
}

}  // namespace

struct Gate::ThreadOps {
  struct OpenOp {
    uint32_t op = 0;
    size_t pin_count_before = 0;
    StreamSet streams_before = kNoStreams;
  };

  uint64_t generation = 0;  // of the gate that this state belongs to
  size_t place = 0;
  Gate* gate = nullptr;       // may be gone: see is_alive()
  ThreadOps* next = nullptr;  // the thread's state for another gate
  uint32_t op_depth = 0;      // how many ops are open
  std::vector<OpenOp> open_ops;
  std::vector<Extent*> pins;        // of what open ops name, a stack; of each op the slabs last
  std::vector<Extent*> slabs;       // of the op that is being opened
  std::vector<Extent*> inner_pins;  // allocated since the outermost op opened
  EventRing* ring = nullptr;
  // Pins and inner pins, sorted: a copy for has_announced(), and the ring's event count when the
  // copy was made.
  std::vector<const Extent*> sorted_pins;
  uint64_t sorted_at_events = 0;
  size_t next_announced = 0;  // index of the pin behind the one that has_announced() found last
  uint64_t events_told = 0;   // the ring's event count when the learner was last nudged
  StreamSet open_streams = kNoStreams;
  OpTiming::ThreadState timing;
  Wait wait_for_room;                   // while it is going on
  StreamSet room_streams = kNoStreams;  // whose work will fill that room
  uint32_t room_waits = 0;              // how many such waits are open, each within the one before

  void record(EventKind kind, uint64_t at, uint32_t op, const Extent* extent) const {
    ring->append({at, extent != nullptr ? extent->id.load() : 0,
                  extent != nullptr ? extent->bytes : 0, op, kind});
  }
};

namespace {

// The hot path reads a plain pointer, without the guard of a thread-local with a destructor. The
// pointer heads a list; the state for the gate that the thread passed last comes first.
__attribute__((tls_model("initial-exec"))) thread_local void* t_ops = nullptr;

}  // namespace

// The destructor of the thread-specific key. It runs after the thread's C++ thread-locals, which
// may free tensors, are destroyed, and runs again for a state that was made meanwhile.
void Gate::end_thread(void* /*first_state*/) {
  auto* state = static_cast<ThreadOps*>(std::exchange(t_ops, nullptr));
  while (state != nullptr) {
    const std::unique_ptr<ThreadOps> ops(std::exchange(state, state->next));
    // If the state is not alive, its gate is gone, and the ring with it, or this is a forked child,
    // in which another thread of the parent may hold the recorder's lock for ever.
    if (!is_alive(*ops)) continue;
    ops->gate->recorder_.release_ring(ops->ring);
    ops->gate->timing_.drop(ops->timing);
  }
}

bool Gate::is_alive(const ThreadOps& ops) {
  return g_alive.at(ops.place).load(std::memory_order_acquire) == ops.generation;
}

pthread_key_t Gate::thread_key() {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    const int error_number = pthread_key_create(&made, &Gate::end_thread);
    TENCACHE_CHECK(error_number == 0, "errno %d", error_number);
    return made;
  }();
  return key;
}

Gate::Gate(const Parts& parts)
    : generation_(g_generation.fetch_add(1) + 1),
      place_(take_place(generation_)),
      heap_(*parts.heap),
      mover_(parts.mover),
      cursor_(parts.cursor),
      prefetcher_(parts.prefetcher),
      upcoming_(parts.upcoming),
      neighbours_(parts.neighbours),
      learner_(parts.learner),
      chaos_(parts.chaos),
      recorder_(*parts.recorder),
      stats_(*parts.stats),
      timing_(parts.op_timer),
      waits_(parts.wait_timer, *parts.stats) {}

Gate::~Gate() { g_alive.at(place_).store(0, std::memory_order_release); }

void Gate::become_passive() {
  is_passive_.store(true, std::memory_order_relaxed);
  // No state of this gate counts as alive from now on. The place stays taken, because this gate's
  // destructor frees it.
  g_alive.at(place_).store(~generation_, std::memory_order_release);
}

inline Gate::ThreadOps& Gate::thread_ops() {
  auto* ops = static_cast<ThreadOps*>(t_ops);
  if (ops != nullptr && ops->generation == generation_) [[likely]] {
    return *ops;
  }
  return thread_ops_slow();
}

TENCACHE_SLOW Gate::ThreadOps& Gate::thread_ops_slow() {
  auto* first = static_cast<ThreadOps*>(t_ops);
  ThreadOps** link = &first;
  while (*link != nullptr && (*link)->generation != generation_) {
    if (is_alive(**link)) {
      link = &(*link)->next;
    } else {
      delete std::exchange(*link, (*link)->next);
    }
  }
  ThreadOps* own = *link;
  if (own != nullptr) {
    *link = own->next;
  } else {
    own = make_thread_ops();
  }
  own->next = first;
  t_ops = own;
  pthread_setspecific(thread_key(), t_ops);
  return *own;
}

Gate::ThreadOps* Gate::make_thread_ops() {
  auto ops = std::make_unique<ThreadOps>();
  ops->generation = generation_;
  ops->place = place_;
  ops->gate = this;
  ops->open_ops.reserve(kOpenOpsReserved);
  ops->pins.reserve(kPinsReserved);
  ops->slabs.reserve(kPinsReserved);
  ops->inner_pins.reserve(kPinsReserved);
  ops->ring = recorder_.acquire_ring();
  ops->events_told = ops->ring->count();
  return ops.release();
}

// Returns whether a plan expected this op.
inline bool Gate::tell_cursor(const ThreadOps& thread, size_t first_pin, uint64_t digest,
                              bool is_chunk) {
  if (cursor_ == nullptr || !cursor_->is_active()) return false;
  const std::span<Extent* const> extents = std::span(thread.pins).subspan(first_pin);
  const bool is_foreseen = cursor_->on_tick(digest, extents, is_chunk);
  if (is_foreseen && neighbours_ != nullptr && neighbours_->is_active()) [[unlikely]] {
    neighbours_->clear();
  }
  return is_foreseen;
}

TENCACHE_HOT void Gate::open(uint32_t op, std::span<const Access> accesses, StreamSet streams) {
  if (is_passive_.load(std::memory_order_relaxed)) return;
  ThreadOps& thread = thread_ops();
  const uint64_t now = timestamp();
  const size_t first_pin = thread.pins.size();
  thread.open_ops.push_back({op, first_pin, thread.open_streams});
  thread.open_streams |= streams;
  ++thread.op_depth;
  thread.record(EventKind::kOpBegin, now, op, nullptr);
  thread.ring->count_op();
  bool all_usable = true;
  TickDigest digest(op);
  uint64_t named_bytes = 0;
  for (const Access& access : accesses) {
    Extent* extent = heap_.find(access.address);
    if (extent == nullptr) continue;
    if (access.mode == AccessMode::kName) {
      if (!extent->has(kFlagSeen)) note_seen(extent, now);
      continue;
    }
    const uint64_t word = extent->pin();
    extent->last_use_at.store(now, std::memory_order_relaxed);
    extent->note_streams(streams);
    const bool writes = is_write(access.mode);
    const uint64_t flags = kFlagSeen | (writes ? kFlagDirty : 0);
    if ((word & flags) != flags) extent->set_flags(flags);
    if (extent->is_slab.load(std::memory_order_relaxed)) [[unlikely]] {
      thread.slabs.push_back(extent);
    } else {
      thread.pins.push_back(extent);
      thread.record(writes ? EventKind::kWrite : EventKind::kRead, now, op, extent);
      digest.add(writes);
      named_bytes += extent->bytes;
    }
    const bool is_usable = Extent::usable_in(Extent::state_of(word));
    if (is_usable && (word & kFlagAhead) != 0) [[unlikely]]
      note_early(extent);
    all_usable &= is_usable;
  }
  const bool is_tick = thread.pins.size() > first_pin;
  if (is_tick) timing_.on_tick(thread.timing, streams);
  const bool is_chunk = is_tick && upcoming_ != nullptr && upcoming_->is_active();
  const bool is_foreseen = is_tick && tell_cursor(thread, first_pin, digest.value(), is_chunk);
  if (!thread.slabs.empty()) [[unlikely]] {
    thread.pins.insert(thread.pins.end(), thread.slabs.begin(), thread.slabs.end());
    thread.slabs.clear();
  }
  if (!all_usable) [[unlikely]] {
    fetch_slow(thread, first_pin, streams, is_foreseen || is_chunk);
  }
  if (is_chunk) [[unlikely]] {
    upcoming_->on_tick(std::span(thread.pins).subspan(first_pin), is_foreseen);
  }
  if (is_tick) {
    timing_.begin_if_wanted(thread.timing, TickDigest::with_size(digest.value(), named_bytes), now,
                            op, thread.open_ops.size(), streams);
  }
}

// A view does not use the extent, but something may have used it before any gate looked. So the
// extent counts as seen, and as used now. Its last use never moves back.
TENCACHE_SLOW void Gate::note_seen(Extent* extent, uint64_t now) {
  raise_to(extent->last_use_at, now);
  extent->set_flags(kFlagSeen);
}

// Fetches what the op pins and cannot use yet. Where neither a plan nor a list op has told what
// comes next, `neighbours_` guesses it.
TENCACHE_SLOW void Gate::fetch_slow(ThreadOps& thread, size_t first_pin, StreamSet streams,
                                    bool is_expected) {
  std::vector<Extent*> missing;
  for (size_t index = first_pin; index < thread.pins.size(); ++index) {
    Extent* extent = thread.pins[index];
    if (!Extent::usable_in(extent->state())) {
      // An extent is listed once, however many views the op names: a fetch is counted for each in
      // the list.
      if (std::ranges::find(missing, extent) == missing.end()) missing.push_back(extent);
    } else if (extent->has(kFlagAhead)) {
      note_early(extent);  // it has landed since it was pinned
    }
  }
  fetch(missing, streams);
  if (!is_expected && neighbours_ != nullptr) neighbours_->on_late(missing);
}

TENCACHE_SLOW void Gate::note_early(Extent* extent) {
  mover_->ledger().count_early(extent);
  if (neighbours_ != nullptr && neighbours_->is_active()) neighbours_->on_early(extent);
}

void Gate::fetch(const std::vector<Extent*>& missing, StreamSet streams) {
  if (missing.empty()) return;
  Wait wait = begin_wait(streams);
  if (prefetcher_ != nullptr) {
    // A plan may have requested these extents, in the order in which the device needs them. As long
    // as the device is busy, this thread leaves them to the prefetcher.
    mover_->wait_while_ahead(streams, [&] { return prefetcher_->has_requests_for(missing); });
  }
  mover_->fetch(missing, streams, &wait.device_wait);
  end_wait(wait);
}

Gate::Wait Gate::begin_wait(StreamSet streams) {
  const uint64_t begin_ns = now_ns();
  const std::optional<OpTiming::Cut> cut = timing_.cut(thread_ops().timing, streams);
  return {begin_ns, waits_.begin(streams), cut};
}

void Gate::end_wait(const Wait& wait) {
  const uint64_t ns = now_ns() - wait.begin_ns;
  add(stats_.thread_wait_ns, ns);
  waits_.end(wait.device_wait, ns);
  ThreadOps& thread = thread_ops();
  thread.ring->append({timestamp(), 0, ns, 0, EventKind::kWait});
  timing_.go_on(thread.timing, wait.cut);
}

TENCACHE_HOT void Gate::close() {
  if (is_passive_.load(std::memory_order_relaxed)) return;
  ThreadOps& thread = thread_ops();
  TENCACHE_CHECK(!thread.open_ops.empty(), "the gate was closed more often than opened");
  const ThreadOps::OpenOp closed = thread.open_ops.back();
  thread.open_ops.pop_back();
  thread.open_streams = closed.streams_before;
  const uint64_t now = timestamp();
  timing_.on_close(thread.timing, thread.open_ops.size() + 1);
  unpin_down_to(thread.pins, closed.pin_count_before, now);
  thread.record(EventKind::kOpEnd, now, closed.op, nullptr);
  // The learner is told inside an op that opens very many others, too: they would fill the ring
  // before that op closes.
  if (thread.ring->count() - thread.events_told >= kEventsPerTelling) [[unlikely]] {
    thread.events_told = thread.ring->count();
    if (learner_ != nullptr) learner_->nudge();
  }
  if (--thread.op_depth > 0) return;
  unpin_down_to(thread.inner_pins, 0, now);
  if (cursor_ != nullptr) cursor_->on_outermost_close();
  if (heap_.budget().needs_attention()) heap_.call_attention();
  if (chaos_ != nullptr) chaos_->on_outermost_close();
}

inline void Gate::unpin_down_to(std::vector<Extent*>& pins, size_t count, uint64_t now) {
  while (pins.size() > count) {
    Extent* extent = pins.back();
    pins.pop_back();
    // Another thread may have used the extent later and unpinned it before us.
    raise_to(extent->last_use_at, now);
    extent->unpin();
  }
}

TENCACHE_HOT void Gate::on_allocate(Extent* extent) {
  if (is_passive_.load(std::memory_order_relaxed)) return;
  ThreadOps& thread = thread_ops();
  const uint64_t now = timestamp();
  extent->last_use_at.store(now, std::memory_order_relaxed);
  thread.record(EventKind::kAllocate, now, 0, extent);
  if (thread.op_depth == 0) return;
  extent->pin();
  thread.inner_pins.push_back(extent);
}

void Gate::on_allocate_block(Extent* slab) {
  if (is_passive_.load(std::memory_order_relaxed)) return;
  ThreadOps& thread = thread_ops();
  raise_to(slab->last_use_at, timestamp());
  if (thread.op_depth == 0) return;
  const uint64_t word = slab->pin();
  thread.inner_pins.push_back(slab);
  if (!Extent::usable_in(Extent::state_of(word))) fetch({slab}, kNoStreams);
}

// Takes the extent off the list; returns whether it was there. Mostly the newest go first. The
// search is bounded: what it misses stays pinned until the op closes.
inline bool Gate::take_off(std::vector<Extent*>& pins, const Extent* extent) {
  const size_t end = pins.size() - std::min(pins.size(), kPinsReserved);
  for (size_t index = pins.size(); index > end; --index) {
    if (pins[index - 1] != extent) continue;
    pins.erase(pins.begin() + static_cast<ptrdiff_t>(index - 1));
    return true;
  }
  return false;
}

// What an op on the cpu frees of its own allocations is over, and the op may run for long after
// that; unpinned, the pages can serve others meanwhile. On a GPU the op's kernels may still be
// queued, and whoever took the pages would wait for them.
TENCACHE_HOT bool Gate::on_free(const Extent* extent) {
  if (is_passive_.load(std::memory_order_relaxed)) return false;
  ThreadOps& thread = thread_ops();
  thread.record(EventKind::kFree, timestamp(), 0, extent);
  if (recorder_.has_names()) [[unlikely]] {
    recorder_.end_name(extent->id);
  }
  return !thread.inner_pins.empty() && heap_.can_use_any_cached() &&
         take_off(thread.inner_pins, extent);
}

void Gate::on_step() {
  if (is_passive_.load(std::memory_order_relaxed)) return;
  thread_ops().record(EventKind::kStep, timestamp(), 0, nullptr);
  add(stats_.steps, 1);
  if (learner_ != nullptr) learner_->nudge();
}

void Gate::begin_wait_for_room(StreamSet streams) {
  if (is_passive_.load(std::memory_order_relaxed)) return;
  ThreadOps& thread = thread_ops();
  if (thread.room_waits++ > 0) return;
  thread.room_streams = streams;
  thread.wait_for_room = begin_wait(streams);
}

void Gate::end_wait_for_room() {
  if (is_passive_.load(std::memory_order_relaxed)) return;
  ThreadOps& thread = thread_ops();
  if (--thread.room_waits == 0) end_wait(thread.wait_for_room);
}

void Gate::let_fetches_go_first() {
  if (is_passive_.load(std::memory_order_relaxed) || prefetcher_ == nullptr) return;
  const ThreadOps& thread = thread_ops();
  // A fetch that wants room opens no such wait. It has let others go first, and now holds them up.
  if (thread.room_waits == 0) return;
  mover_->wait_while_ahead(thread.room_streams, [this] { return prefetcher_->has_requests(); });
}

Hold* Gate::hold(std::span<const Access> accesses, bool and_inner, StreamSet streams) {
  if (is_passive_.load(std::memory_order_relaxed)) return nullptr;
  auto hold = std::make_unique<Hold>();
  std::vector<Extent*> missing;
  for (const Access& access : accesses) {
    Extent* extent = heap_.find(access.address);
    if (extent == nullptr || access.mode == AccessMode::kName) continue;
    const uint64_t word = extent->pin();
    extent->note_streams(streams);
    if (!Extent::usable_in(Extent::state_of(word))) {
      missing.push_back(extent);
    } else if (extent->has(kFlagAhead)) {
      note_early(extent);
    }
    hold->extents.push_back(extent);
  }
  if (and_inner) {
    for (Extent* extent : thread_ops().inner_pins) {
      // An inner extent stays pinned from its allocation on, so it is usable unless it was freed.
      if (Extent::usable_in(Extent::state_of(extent->pin()))) {
        extent->note_streams(streams);
        hold->extents.push_back(extent);
      } else {
        extent->unpin();
      }
    }
  }
  fetch(missing, streams);
  if (neighbours_ != nullptr) neighbours_->on_late(missing);
  return hold->extents.empty() ? nullptr : hold.release();
}

void Gate::unhold(Hold* hold) {
  const std::unique_ptr<Hold> owned(hold);
  if (owned == nullptr || is_passive_.load(std::memory_order_relaxed)) return;
  const uint64_t now = timestamp();
  unpin_down_to(owned->extents, 0, now);
}

uint64_t Gate::keep_resident(std::span<const Access> accesses) {
  uint64_t count = 0;
  for (const Access& access : accesses) {
    Extent* extent = heap_.find(access.address);
    if (extent == nullptr || extent->has(kFlagKeepResident)) continue;
    extent->set_flags(kFlagKeepResident);
    ++count;
  }
  return count;
}

TENCACHE_HOT bool Gate::has_announced(const Extent* extent) {
  if (is_passive_.load(std::memory_order_relaxed)) return true;
  ThreadOps& thread = thread_ops();
  // A kernel mostly takes its arguments in the order in which its op has named them.
  const std::vector<Extent*>& pins = thread.pins;
  const size_t next = thread.next_announced < pins.size() ? thread.next_announced : 0;
  if (next < pins.size() && pins[next] == extent) {
    thread.next_announced = next + 1;
    return true;
  }
  if (pins.size() + thread.inner_pins.size() > kPinsSearched) return is_among_many(thread, extent);
  const auto found = std::ranges::find(pins, extent);
  if (found != pins.end()) {
    thread.next_announced = static_cast<size_t>(found - pins.begin()) + 1;
    return true;
  }
  return std::ranges::find(thread.inner_pins, extent) != thread.inner_pins.end();
}

StreamSet Gate::open_streams() {
  return is_passive_.load(std::memory_order_relaxed) ? kNoStreams : thread_ops().open_streams;
}

// An op on lists launches many kernels with many addresses each, so this searches a sorted copy.
// Every change of the pins is an event of the ring or, for a block of a slab, changes their number.
// So these two counts tell when the copy is stale.
TENCACHE_SLOW bool Gate::is_among_many(ThreadOps& thread, const Extent* extent) {
  std::vector<const Extent*>& sorted = thread.sorted_pins;
  const size_t count = thread.pins.size() + thread.inner_pins.size();
  if (thread.sorted_at_events != thread.ring->count() || sorted.size() != count) {
    sorted.assign(thread.pins.begin(), thread.pins.end());
    sorted.insert(sorted.end(), thread.inner_pins.begin(), thread.inner_pins.end());
    std::ranges::sort(sorted);
    thread.sorted_at_events = thread.ring->count();
  }
  return std::ranges::binary_search(sorted, extent);
}

std::string Gate::current_op() const {
  const auto* thread = static_cast<const ThreadOps*>(t_ops);
  while (thread != nullptr && thread->generation != generation_) thread = thread->next;
  if (thread == nullptr) return "";
  return thread->open_ops.empty() ? "" : recorder_.op_name(thread->open_ops.back().op);
}

}  // namespace tencache
