// SPDX-License-Identifier: Apache-2.0
//
// Extent: one large allocation. Its address never changes while it lives; one atomic word says
// where its bytes are, who uses it and what is known about it. Heaps recycle Extent objects and
// never destroy them, so a stale pointer may always be read.
//
//   state machine (the verb on each arrow is the method that takes it):
//
//     Vacant --commit--> Resident --retire--> Cached --revive--> Resident
//     Resident --claim_for_eviction--> Evicting --seal--> Sealing --become_cold--> Cold
//     Evicting, Sealing --abandon_eviction--> Resident      Sealing --unseal--> Evicting
//     Cold --claim_for_fetch--> Fetching --begin_merge--> Merging --become_resident--> Resident
//     Fetching --become_arriving--> Arriving --settle--> Resident        (cuda)
//     Fetching, Merging --abandon_fetch--> Cold
//     Evicting, Arriving --retire--> Cached     (freed while its bytes move: the mover notices)
//     Cold --retire--> Vacant    Cached --claim_for_trim--> Vacant --cancel_trim--> Cached
//     Cold --claim_cold--> Cold and busy --release_cold--> Cold                   (cuda)
//     Cold and busy --retire--> Vacant     (freed meanwhile: release_cold returns false)
//
// Invariants
//   1. On the cpu backend, the pages are anonymous and writable in Resident, Evicting and Cached
//      (private pages of a slot's mapping, if the program overwrote all of a cold extent).
//      In Cold and Fetching a slot is mapped, writable (private). In Sealing and Merging, the
//      protected windows, a pin waits for the end, and so does a write while pages are compared or
//      replaced. On cuda a frame is mapped in every state but Vacant, Cold, Fetching and the end of
//      Sealing. In Arriving the bytes are on their way, and a stream that uses them waits for their
//      mark first.
//   2. seal() refuses while pins > 0, so no extent becomes cold under an op that found it usable. A
//      pin that is taken in Sealing waits for the end of that state, and fetches the extent if it
//      became cold.
//   3. `busy` is held by the one thread that migrates, demotes or recycles the extent. That thread
//      owns the copy below. While nobody is busy, the heap owns it; whoever wants to look at it
//      takes `busy` first.
//   4. On cuda the copy below is a block of host memory, a slot, or both with the same bytes: a
//      slot belongs to an extent only once it is written. A cold extent has at least one of them.
//
// Threads: any thread changes the word with the methods below, all of them lock-free but retire(),
// which may wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/check.h"
#include "memory/extent_word.h"
#include "memory/intrusive_list.h"
#include "platform/stream_set.h"
#include "tier/content_hash.h"
#include "tier/disk_tier.h"

namespace tencache {

/// How retire() left an extent that the program has freed, and who ends its life.
enum class Retired : uint8_t {
  kCached,         // it keeps its memory, for the heap to reuse
  kVacant,         // it was cold; the caller has it busy and must end it
  kLeftToClaimer,  // the thread of claim_cold() ends it when release_cold() returns false
};

class Extent : public ExtentWord {
 public:
  // The backend's heap writes these four. `address` and `bytes` are constant while the extent is
  // not Vacant.
  char* address = nullptr;
  uint64_t bytes = 0;                        // multiple of kPageBytes
  std::atomic<uint64_t> id{0};               // a new one for every allocation; read by anyone
  std::atomic<uint64_t> requested_bytes{0};  // written with the id; read by anyone

  /// When an op last used it, or a plan wanted it back, as a timestamp() (base/clock.h). Any thread
  /// that pins, unpins or requests the extent writes this time. The time decides which victims
  /// leave first, and tells an eviction whether the extent was used since the claim.
  std::atomic<uint64_t> last_use_at{0};

  /// The streams whose queued work may use it. The set grows while the extent is in use; see
  /// note_streams().
  std::atomic<StreamSet> used_by{kNoStreams};

  // The copy below, owned as invariant 3 says. slot_hash is the hash of the slot's bytes.
  Slot slot;
  ContentHash slot_hash;
  std::atomic<bool> has_copy_below{false};  // anyone may read it, as a guess
  // On the cpu: pages that the program wrote while the extent is cold (memory/cpu_heap.h).
  std::atomic<uint64_t> unannounced_bytes{0};
  uint32_t mapping_count = 1;  // on the cpu: kernel mappings of its pages; owned like the copy
  // On the cpu: pages behind its end, up to a granule (memory/cpu_heap_cuts.cpp). Whoever is busy
  // with it changes them, with the heap's mutex_ held unless it is Vacant.
  uint64_t padding_bytes = 0;

  // On the cpu, two flags about writes that no op announced. They are owned like the copy, and
  // anyone may read them as a guess. The first tells whether there were such writes while the
  // extent was cold, in this life; the second whether all its pages are private ones of its slot's
  // mapping (invariant 1).
  std::atomic<bool> is_written_unannounced{false};
  std::atomic<bool> is_file_mapped{false};

  /// On the cpu: whether blocks are cut from it (memory/slabs.h). The flag does not change while a
  /// block is used.
  std::atomic<bool> is_slab{false};
  /// On the cpu: the thread that allocated it, as pthread_self() tells. Readers take it as a guess.
  std::atomic<uint64_t> allocated_by{0};

  // Links of the lists of cached extents in CpuHeap or CudaHeap, guarded by that heap's mutex_.
  ListHook<Extent> age_hook;
  ListHook<Extent> size_hook;
  uint64_t retired_at = 0;
  bool is_in_runs = false;  // on cuda, while it is in the lists: in CachedRuns, too
  bool is_rest = false;     // on the cpu: what was left when others took pages of it; while cached

  /// On the cpu: pages behind its address.
  uint64_t held_bytes() const { return bytes + padding_bytes; }

  /// Call before unpin(), so that a thread that sees no pin sees the streams.
  void note_streams(StreamSet streams) {
    if ((used_by.load(std::memory_order_relaxed) & streams) != streams) {
      used_by.fetch_or(streams, std::memory_order_relaxed);
    }
  }

  /// A guess, for choosing victims: there is a copy below, and no op announced a write since.
  bool is_presumed_clean() const {
    return has_copy_below.load(std::memory_order_relaxed) && !has(kFlagDirty);
  }

  bool claim_for_eviction();
  /// Whether the extent was not freed since the claim. A thread that frees it later sees what this
  /// thread did before the call.
  bool reaffirm_eviction();
  bool seal();
  void unseal();
  void become_cold();
  /// Makes it Resident again, or leaves it Cached if it was freed meanwhile. Gives up `busy`.
  void abandon_eviction();
  bool claim_for_fetch();
  void begin_merge();
  void become_resident();
  /// The thread that fetched it stays busy with it until the bytes are there.
  void become_arriving();
  /// Call when the bytes are there, or when the extent was freed and nobody wants them. Gives up
  /// `busy`.
  void settle();
  void abandon_fetch();

  /// Takes `busy` of a cold extent, whose copy is then written to disk, read from it, or given up.
  bool claim_cold();
  /// Gives up `busy`. Returns false, and stays busy, if the extent was freed meanwhile; the caller
  /// must then end it.
  bool release_cold();

  /// The program frees it. Waits while the extent is Sealing, Fetching or Merging. Aborts when it
  /// was freed before.
  Retired retire();
  void revive();
  bool claim_for_trim();
  /// Makes it Cached again, because its memory, or what is left of it, is kept after all.
  void cancel_trim();
  /// Takes `busy` of a resident extent without changing its state. Returns false when another
  /// thread has it.
  bool try_take_busy();
  void release_busy();
  void become_vacant();
  void commit();

 private:
  using enum ExtentState;

  void call_off_sealing();
  struct Change;
  bool transition(const Change& change);
  /// Makes a transition that cannot be refused; aborts if it is.
  void must(const Change& change);
};

/// Whether somebody has asked for an extent since it was claimed (claim_cold()): an op, a plan's
/// request, a free.
inline bool is_wanted_since(const Extent& extent, uint64_t claimed_at) {
  const uint64_t word = extent.load();
  return Extent::pins_of(word) > 0 || Extent::state_of(word) != ExtentState::kCold ||
         extent.last_use_at.load(std::memory_order_relaxed) > claimed_at;
}

}  // namespace tencache
