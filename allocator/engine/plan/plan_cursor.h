// SPDX-License-Identifier: Apache-2.0
//
// PlanCursor: knows where in which plan the program is. The gate tells it every tick, i.e. every op
// that names an extent. The cursor compares the tick with the one that the plan expects, and while
// they agree gives the plan's requests: fetches when a tick begins (FetchTime), evictions after the
// tick's outermost op has closed.
//
// A tick agrees when the op does (TickDigest) and every extent that is always there is the very
// same one. An extent that is allocated in the period stands for the tensor at its place among the
// accesses, whatever its size. By those sizes the cursor chooses, among the plans of a kind, the
// one that fits.
//
// Missing and extra ticks are passed over: an expert without tokens, a branch that is not taken.
// The chunks of a list op may be cut at other places, because such an expert has no gradient. Then
// what they name tells the place. When the last ticks fit exactly one other place of the plan, the
// cursor goes on there. When ticks differ too often, or fit a place of another kind, it gives up
// its place: it requests nothing and the engine is reactive. It then looks the last ticks up in all
// plans until exactly one place fits. Where several places of one plan fit for longer, the program
// goes round in a loop within the plan, more or less often than when it was recorded. Then the last
// of them is taken that the program had reached.
//
// The extents of a stored period, which an earlier run has recorded, are found on the way
// (engine/plan/stored_roles.h).
//
// Threads: any. mutex_ guards the place in the plan and the extents that were found for it; a
// LearnedPlan never changes. mutex_ is held while fetches are requested, so that they arrive in the
// order of the ticks, or of the closes; it is taken before the locks of whoever receives them.
// Evictions are requested without it, because that may call a GPU's driver; the times of the
// requests show which are outdated.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/move/move_request.h"
#include "engine/move/next_uses.h"
#include "engine/plan/learned_plan.h"
#include "engine/plan/noted_extent.h"
#include "engine/plan/period_times.h"
#include "engine/plan/stored_roles.h"
#include "memory/heap.h"

namespace tencache {

/// How well plans were followed: the present one, the last one, and all of them.
struct Following {
  uint64_t kind = 0;                    // 0: none is followed now
  uint64_t periods = 0;                 // whole ones in a row
  uint64_t periods_ever = 0;            // whole ones of all plans
  uint64_t last_period_kind = 0;        // of the last whole one
  uint64_t last_period_born_bytes = 0;  // and the sizes that it was made for
  PeriodTimes last_times;               // of that plan and these sizes
  uint64_t ticks_followed = 0;          // of all plans, since the start
  uint64_t ticks_seen = 0;
  uint64_t stored_ticks_followed = 0;  // of a stored period, until this run has shown its own
  uint64_t lost = 0;                   // how often the place in a plan was given up
};

/// When the cursor gives the fetches that may begin at the start of an op, but are for later ops.
enum class FetchTime : uint8_t {
  kAtOpen,   // the op computes while it is open
  kAtClose,  // the op is only queued while it is open; what it allocates comes first
};

/// What carries out the moves that the cursor's place in a plan calls for. All calls but evict()
/// come with the cursor's lock held.
class PlanSink {
 public:
  virtual ~PlanSink() = default;
  virtual void evict(std::span<const MoveRequest> requests) = 0;
  virtual void fetch(std::span<const MoveRequest> requests) = 0;
  /// Call when requested fetches are not expected any more.
  virtual void forget_fetches() = 0;
  /// Call when a whole period was followed.
  virtual void on_period() = 0;
};

class PlanCursor final : public NextUses {
 public:
  /// The sink outlives the cursor.
  explicit PlanCursor(PlanSink& sink, FetchTime fetch_time = FetchTime::kAtOpen)
      : sink_(sink), fetch_time_(fetch_time) {}

  /// Whether there is a plan to follow, or one is expected. If not, on_tick() may be left out.
  bool is_active() const { return is_active_.load(std::memory_order_relaxed); }
  /// Tells that there will be a plan of a stored period. Call before the first tick, so that the
  /// cursor knows which tick is the first.
  void expect_plan() { is_active_.store(true, std::memory_order_relaxed); }

  /// Call when an op has opened and pinned these extents, in order. `digest` covers the op and
  /// which of its accesses write. The op may be one chunk of a list op
  /// (engine/plan/upcoming_uses.h). Returns whether it is the op that a plan expected.
  bool on_tick(uint64_t digest, std::span<Extent* const> extents, bool is_chunk = false)
      TENCACHE_EXCLUDES(mutex_);
  /// Call when no op is open on the calling thread any more.
  void on_outermost_close() {
    if (has_pending_.load(std::memory_order_relaxed)) give_pending();
  }

  /// Replaces all plans. A plan being followed continues with its replacement, of the same number,
  /// where that has the same ops. `extents` are those of the heap: what is always there can be
  /// requested before it is named.
  void install(const std::vector<LearnedKind>& kinds, const std::vector<ListedExtent>& extents = {})
      TENCACHE_EXCLUDES(mutex_);

  Following following() const TENCACHE_EXCLUDES(mutex_);

  /// Period::extent_ids of a stored kind, as far as they are known by now. Returns none for any
  /// other kind.
  std::vector<uint64_t> found_extents(uint64_t kind) const TENCACHE_EXCLUDES(mutex_);

  /// Returns an empty map while the place in the plans is lost.
  std::unordered_map<const Extent*, uint64_t> next_uses() const override TENCACHE_EXCLUDES(mutex_);
  uint64_t copy_ahead_bytes() const override TENCACHE_EXCLUDES(mutex_);

 private:
  static constexpr size_t kGram = 4;           // ticks that identify a place
  static constexpr size_t kSizedAccesses = 8;  // from which today's sizes are known

  struct SizedAccess {
    uint32_t tensor = 0;
    uint64_t bytes = 0;
  };
  /// A kind, its plan for today's sizes, and the extents that stand for its tensors.
  struct BoundPlan {
    LearnedKind kind;
    size_t chosen = 0;                  // among the kind's plans
    std::vector<NotedExtent> bindings;  // by tensor; null while none stands for it
    std::optional<StoredRoles> roles;   // of a stored kind
    std::vector<bool> has_own_size;     // by tensor: whether its size tells the plans apart
    // The tensors that exist throughout, by extent id. There are none for a stored kind, whose
    // roles know them.
    std::unordered_map<uint64_t, uint32_t> known_tensors;
    // The newest accesses to tensors whose sizes tell the plans apart, a ring.
    std::array<SizedAccess, kSizedAccesses> sized_accesses = {};
    size_t sized_access_count = 0;

    const LearnedPlan& plan() const { return *kind.plans[chosen]; }
    std::optional<uint32_t> known_tensor(uint64_t extent_id) const;
  };
  struct Place {
    uint32_t bound_plan = 0;
    Tick tick = 0;
  };
  /// Requests of the ops that are open on a thread.
  struct Pending {
    std::vector<MoveRequest> fetches;
    std::vector<MoveRequest> evictions;
  };

  using Unknown = StoredRoles::Unknown;
  bool agrees(const BoundPlan& bound_plan, Tick tick, uint64_t digest,
              std::span<Extent* const> extents, Unknown unknown = Unknown::kBesideKnown) const
      TENCACHE_REQUIRES(mutex_);
  bool follow(uint64_t digest, std::span<Extent* const> extents, bool is_chunk)
      TENCACHE_REQUIRES(mutex_);
  void follow_chunk(std::span<Extent* const> extents) TENCACHE_REQUIRES(mutex_);
  void pass_over(Tick count) TENCACHE_REQUIRES(mutex_);
  std::optional<Place> place_of(uint64_t digest, std::span<Extent* const> extents) const
      TENCACHE_REQUIRES(mutex_);
  std::vector<Place> places_of(uint64_t digest, std::span<Extent* const> extents,
                               Unknown unknown = Unknown::kBesideKnown) const
      TENCACHE_REQUIRES(mutex_);
  std::optional<Place> stored_place_of(uint64_t digest, std::span<Extent* const> extents) const
      TENCACHE_REQUIRES(mutex_);
  std::optional<Tick> tick_ahead(uint64_t digest, std::span<Extent* const> extents) const
      TENCACHE_REQUIRES(mutex_);
  void find_place(uint64_t digest, std::span<Extent* const> extents) TENCACHE_REQUIRES(mutex_);
  void take_place(const Place& place, std::span<Extent* const> extents) TENCACHE_REQUIRES(mutex_);
  std::optional<Place> place_in_loop(uint64_t digest, std::span<Extent* const> extents)
      TENCACHE_REQUIRES(mutex_);
  void keep_candidates(uint64_t digest, std::span<Extent* const> extents) TENCACHE_REQUIRES(mutex_);
  bool note_sizes(Tick tick, std::span<Extent* const> extents) TENCACHE_REQUIRES(mutex_);
  void choose_plan() TENCACHE_REQUIRES(mutex_);
  void step_on(Tick tick, std::span<Extent* const> extents) TENCACHE_REQUIRES(mutex_);
  void catch_up(bool with_evictions) TENCACHE_REQUIRES(mutex_);
  void end_period() TENCACHE_REQUIRES(mutex_);
  void get_lost() TENCACHE_REQUIRES(mutex_);
  void give_up_place() TENCACHE_REQUIRES(mutex_);
  using Places = std::unordered_map<uint64_t, std::vector<Place>>;  // by gram
  static Places index_places(const std::vector<LearnedKind>& kinds);
  using ExtentsById = std::unordered_map<uint64_t, NotedExtent>;
  static BoundPlan bind(const LearnedKind& kind, const ExtentsById& extents);
  static size_t place_of_size(const LearnedKind& kind, uint64_t born_bytes);
  static void take_bindings(BoundPlan* old, BoundPlan* bound_plan);
  void append_fetches_of(Tick tick) TENCACHE_REQUIRES(mutex_);
  void append_requests(std::span<const uint32_t> tensors, std::vector<MoveRequest>* requests)
      TENCACHE_REQUIRES(mutex_);
  void append_evictions(std::span<const uint32_t> tensors) TENCACHE_REQUIRES(mutex_);
  Pending& pending_of_thread() TENCACHE_REQUIRES(mutex_);
  void give_fetches(std::span<Extent* const> extents) TENCACHE_REQUIRES(mutex_);
  void give_held_fetches() TENCACHE_REQUIRES(mutex_);
  uint64_t gram() const TENCACHE_REQUIRES(mutex_);
  void give_pending() TENCACHE_EXCLUDES(mutex_);

  PlanSink& sink_;
  const FetchTime fetch_time_;
  std::atomic<bool> is_active_{false};
  std::atomic<bool> has_pending_{false};

  mutable Mutex mutex_;
  std::vector<BoundPlan> bound_plans_ TENCACHE_GUARDED_BY(mutex_);
  Places places_ TENCACHE_GUARDED_BY(mutex_);
  BoundPlan* current_ TENCACHE_GUARDED_BY(mutex_) = nullptr;  // null: lost
  Tick position_ TENCACHE_GUARDED_BY(mutex_) = 0;             // expected next
  uint32_t doubt_ TENCACHE_GUARDED_BY(mutex_) = 0;            // that this is the right plan
  bool is_surprised_ TENCACHE_GUARDED_BY(mutex_) = false;     // the last tick was not expected
  bool has_gone_down_ TENCACHE_GUARDED_BY(mutex_) = false;    // to a smaller plan, in this period
  bool is_replaced_ TENCACHE_GUARDED_BY(mutex_) = false;      // the plan; catch_up() is still due
  // Places that fit the last ticks; each is of the tick expected next there. The count is of the
  // ticks that all of them have fitted and that name an extent that is always there.
  std::vector<Place> candidates_ TENCACHE_GUARDED_BY(mutex_);
  uint32_t candidate_ticks_ TENCACHE_GUARDED_BY(mutex_) = 0;
  uint64_t last_plan_ TENCACHE_GUARDED_BY(mutex_) = 0;  // the plan that was followed last
  bool is_whole_ TENCACHE_GUARDED_BY(mutex_) = false;   // this period was followed from its start
  uint64_t period_begin_ns_ TENCACHE_GUARDED_BY(mutex_) = 0;
  std::array<uint64_t, kGram> history_ TENCACHE_GUARDED_BY(mutex_) = {};
  uint64_t history_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  Following following_ TENCACHE_GUARDED_BY(mutex_);
  std::unordered_map<std::thread::id, Pending> pending_ TENCACHE_GUARDED_BY(mutex_);  // by thread
  std::vector<MoveRequest> fetches_ TENCACHE_GUARDED_BY(mutex_);  // kept for its capacity
};

}  // namespace tencache
