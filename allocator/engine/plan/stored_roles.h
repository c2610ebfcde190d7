// SPDX-License-Identifier: Apache-2.0
//
// StoredRoles: finds out, tick by tick, which extents of this run stand for the tensors of a stored
// period that are always there (learn/period.h). An extent stands for a tensor from the tick on
// that names it where the period names the tensor, if it has the tensor's size and stands for no
// other one. From then on that place must name this very extent, until the program frees it.
//
// Such a guess can be wrong. If the cursor gives up its place soon, what was found there is
// forgotten; if nothing fits for a whole period, everything is. One extent is kept for each tensor,
// so a long run keeps no more than a short one.
//
// Threads: those of the cursor, under its lock. Every op passes here, so comparing and following
// allocate nothing but the note of an extent that was found.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/plan/noted_extent.h"
#include "learn/period.h"
#include "memory/extent.h"

namespace tencache {

class StoredRoles {
 public:
  /// How to judge a tick whose tensors have no extent yet: it agrees if the sizes do (kMayBeIt), or
  /// only if another of its extents is known (kBesideKnown).
  enum class Unknown : uint8_t { kMayBeIt, kBesideKnown };

  explicit StoredRoles(std::shared_ptr<const Period> period);

  /// Whether an op is the one at `tick`, as Period::agrees() tells it of extents that are known.
  bool agrees(Tick tick, uint64_t digest, std::span<Extent* const> extents, Unknown unknown) const;
  /// The tensor for which the extent stands, or nullopt.
  std::optional<uint32_t> tensor_of(uint64_t extent_id) const;
  /// Whether no extent stands for any tensor.
  bool is_blank() const { return found_count_ == 0; }

  /// Call when the program made a tick while the cursor has no place.
  void see(uint64_t digest, std::span<Extent* const> extents);
  /// Whether the extents of the last kBefore ticks seen may be those that the period names before
  /// `tick`, and one of these ticks or `tick` itself names an extent that is always there. The
  /// caller has compared the digests, but another program may have the same ones.
  bool fits_seen(Tick tick) const;
  /// Whether the kBefore ticks seen last are the period's first ones, and the tick before them
  /// belongs to something else. The program then comes to its first step. REQUIRES: the ticks seen
  /// last fit before `tick`; this looks only at the number of `tick`.
  bool has_begun_at(Tick tick) const;
  /// Forgets the ticks that were seen: the next one does not follow them.
  void forget_seen() { seen_count_ = 0; }
  /// Call when the cursor takes a place of this period: the program makes `tick` now. The ticks
  /// seen last came before it.
  void take_place(Tick tick);
  /// Call when the program made `tick`, and it agreed.
  void follow(Tick tick, std::span<Extent* const> extents);
  /// Whether a tick that was not expected may be what a program does only in its first repetition:
  /// it makes the state that it then keeps. Allows a few such ticks for each tensor that had no
  /// extent at first.
  bool passes_over(std::span<Extent* const> extents);
  /// Call when the cursor has given up its place in this period.
  void give_up();

  /// Period::extent_ids with the extents that are known by now.
  std::vector<uint64_t> extent_ids() const;

 private:
  // How many ticks before the one at which a place is taken identify the place, too.
  static constexpr size_t kBefore = 3;

  struct Found : NotedExtent {
    uint64_t place = 0;  // the number of the cursor's place at which it was found
  };
  struct SeenTick {
    uint64_t digest = 0;
    std::vector<NotedExtent> extents;
  };

  uint64_t known_id(uint32_t tensor) const;
  bool may_be(const NotedExtent& extent, uint32_t tensor) const;
  /// `Entry` is Extent*, of an op that is open, or NotedExtent.
  template <typename Entry>
  bool agrees_with(Tick tick, std::span<const Entry> extents, Unknown unknown) const;
  template <typename Entry>
  void bind(Tick tick, std::span<const Entry> extents);
  /// How many of the ticks that were seen last are kept.
  size_t seen_count() const { return std::min<size_t>(seen_count_, seen_.size()); }
  /// One of the ticks that are kept; the newest has age 1.
  const SeenTick& seen(size_t age) const { return seen_[(seen_count_ - age) % seen_.size()]; }
  Tick before(Tick tick, size_t age) const;
  bool is_held() const;
  void unbind(uint32_t tensor);
  void forget_all();

  std::shared_ptr<const Period> period_;
  std::vector<Found> found_;                          // by tensor
  std::unordered_map<uint64_t, uint32_t> tensor_of_;  // by extent
  size_t unknown_count_ = 0;                          // tensors without an extent, at first
  size_t found_count_ = 0;                            // of them
  // The ticks that were seen last: a ring, whose entries are kept for their capacity.
  std::array<SeenTick, kBefore + 1> seen_;
  uint64_t seen_count_ = 0;  // without a place
  uint64_t ticks_without_place_ = 0;
  uint64_t places_taken_ = 0;
  uint64_t ticks_held_ = 0;  // followed since the place was taken
  uint64_t passes_left_ = 0;
};

}  // namespace tencache
