// SPDX-License-Identifier: Apache-2.0
//
// AddressArena: the cpu backend's device memory, i.e. one reserved range of virtual addresses in
// which every extent lives, and the few operations that change what stands behind an address. A
// frame is a run of anonymous pages; "resident" is anonymous memory, "cold" is a private mapping of
// a slot of the spill file at the same address (the program may read and write it, see Note [Cold
// mapping]).
//
// Addresses are handed out by memory/heap; this file only executes. Every operation is one system
// call that either changes the whole range or nothing, so there is never a moment at which an
// address shows wrong bytes. Ranges begin at a multiple of kGranuleBytes (huge pages fit) and have
// a length that is a multiple of kPageBytes. Any thread, no locks.
//
// Note [Cold mapping]: mmap(MAP_FIXED | MAP_PRIVATE) of the slot, readable and writable, replaces
// the anonymous pages in one atomic step. Reads, by the program or by the kernel on its behalf,
// come through the page cache; writes make private copies of single pages, which are found in
// /proc/self/pagemap when the extent is fetched and win over the slot. So an access that nobody
// announced is slow and counted, never fatal and never wrong.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"

namespace tencache {

inline constexpr uint64_t kPageBytes = 4096;
/// Extents begin at multiples of this, a huge page.
inline constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;

class AddressArena {
 public:
  /// Reserves `bytes` of addresses (no memory). REQUIRES: a multiple of kGranuleBytes. Halves the
  /// wish until the kernel grants it (ulimit -v); kUnavailable below 64 GiB or the wish.
  static Result<std::unique_ptr<AddressArena>> reserve(uint64_t bytes);
  ~AddressArena();
  AddressArena(const AddressArena&) = delete;
  AddressArena& operator=(const AddressArena&) = delete;

  char* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  bool contains(const void* address) const {
    return static_cast<uint64_t>(static_cast<const char*>(address) - base_) < bytes_;
  }

  /// Makes a reserved range readable and writable; pages appear, zeroed, when touched.
  Status commit(char* address, uint64_t bytes);
  /// Gives the range's pages back and makes it inaccessible again, whatever stood behind it.
  Status decommit(char* address, uint64_t bytes);
  /// Makes the range read-only: the protected window of an eviction or a merge.
  Status protect(char* address, uint64_t bytes);
  /// Ends the protected window.
  Status unprotect(char* address, uint64_t bytes);
  /// Replaces the range by the slot at `offset` of `fd` (Note [Cold mapping]).
  Status map_cold(char* address, uint64_t bytes, int fd, uint64_t offset);

  /// Fresh zeroed anonymous pages outside the arena, to read a slot into.
  Result<char*> make_scratch(uint64_t bytes);
  /// Moves the scratch pages, or a part of them, onto the range, replacing what was there; that
  /// part of the scratch is gone. The kernel moves what it keeps as one mapping.
  Status move_onto(char* scratch, char* address, uint64_t bytes);
  /// The same from a range of the arena, which stays accessible and is empty then. REQUIRES:
  /// can_keep_source().
  Status move_frames(char* source, char* address, uint64_t bytes);
  /// Whether the kernel can do that (MREMAP_DONTUNMAP, Linux 5.7). Without it the source would be
  /// free for anybody's mapping for a moment.
  bool can_keep_source() const { return can_keep_source_; }
  void drop_scratch(char* scratch, uint64_t bytes);

 private:
  AddressArena(char* reservation, uint64_t reservation_bytes, char* base, uint64_t bytes);

  // Constant after reserve().
  char* reservation_;
  uint64_t reservation_bytes_;
  char* base_;
  uint64_t bytes_;
  bool can_keep_source_;
};

}  // namespace tencache
