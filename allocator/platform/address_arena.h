// SPDX-License-Identifier: Apache-2.0
//
// AddressArena: the cpu backend's device memory: one reserved range of virtual addresses in which
// every extent lives, and the few operations that change what stands behind an address. A frame is
// a run of anonymous pages. A resident extent is anonymous memory; a cold one is a private mapping
// of a slot of the spill file at the same address, which the program may read and write (Note [Cold
// mapping]).
//
// memory/cpu_heap.h hands out the addresses; this class only executes. What stands behind an
// address changes in one system call, so no address ever shows wrong bytes. Besides that call there
// is only advice to the kernel, and what decommit() does where mappings are used up. Extents begin
// at a multiple of kGranuleBytes (huge pages fit); every range is whole pages of kPageBytes.
// Threads: any; no locks.
//
// Note [Cold mapping]: mmap(MAP_FIXED | MAP_PRIVATE) of the slot, readable and writable, replaces
// the anonymous pages in one atomic step. Reads, by the program or by the kernel on its behalf, go
// through the page cache. Writes make private copies of single pages; a fetch finds them in
// /proc/self/pagemap, and they win over the slot. So an unannounced access is slow and counted,
// never wrong, and fatal only where the disk fails (platform/bus_errors.h).
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/units.h"

namespace tencache {

/// Extents begin at multiples of this, a huge page.
inline constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;

class AddressArena {
 public:
  /// Reserves `bytes` of addresses, no memory. REQUIRES: both are multiples of kGranuleBytes. Takes
  /// less where the process has a limit (ulimit -v): half of what that leaves, since scratch memory
  /// and the program need addresses, too. Halves the size until the kernel grants it. Returns
  /// kUnavailable below `least_bytes`, and where expect_page_size() says so.
  static Result<std::unique_ptr<AddressArena>> reserve(uint64_t bytes, uint64_t least_bytes);
  /// Returns kUnavailable where the kernel's pages are not of kPageBytes.
  static Status expect_page_size(uint64_t kernel_page_bytes);
  ~AddressArena();
  AddressArena(const AddressArena&) = delete;
  AddressArena& operator=(const AddressArena&) = delete;

  char* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  bool contains(const void* address) const {
    return static_cast<uint64_t>(static_cast<const char*>(address) - base_) < bytes_;
  }

  /// Makes a reserved range readable and writable; pages appear, zeroed, on first touch.
  Status commit(char* address, uint64_t bytes);
  /// Gives the range's pages back and makes it inaccessible again, whatever stood behind it.
  /// Returns false where no mapping is left for that (vm.max_map_count): then the pages went, but
  /// the range stays accessible, and a file that is mapped there stays mapped.
  bool decommit(char* address, uint64_t bytes);
  /// Makes the range read-only, for the protected window of an eviction or a merge.
  Status protect(char* address, uint64_t bytes);
  /// Ends the protected window.
  Status unprotect(char* address, uint64_t bytes);
  /// Slows down first accesses to pages of a cold range: each page is read by itself, without those
  /// behind it. With `singly` false, ends that. Has no effect on a range that is not cold.
  void read_singly(char* address, uint64_t bytes, bool singly);
  /// Replaces the range by the slot at `offset` of `fd` (Note [Cold mapping]).
  Status map_cold(char* address, uint64_t bytes, int fd, uint64_t offset);

  /// Makes fresh zeroed anonymous pages outside the arena, to read a slot into.
  Result<char*> make_scratch(uint64_t bytes);
  /// Moves the scratch pages, or a part of them, onto the range, replacing what was there; that
  /// part of the scratch is gone. The kernel can move in one call only a range of one mapping.
  Status move_onto(char* scratch, char* address, uint64_t bytes);
  /// Moves the pages of a range of the arena likewise; the source stays accessible and is empty
  /// afterwards. REQUIRES: can_keep_source().
  Status move_frames(char* source, char* address, uint64_t bytes);
  /// Whether the kernel has MREMAP_DONTUNMAP (Linux 5.7). Without it the source would for a moment
  /// be free for anybody's mapping.
  bool can_keep_source() const { return can_keep_source_; }
  void drop_scratch(char* scratch, uint64_t bytes);

 private:
  AddressArena(char* reservation, uint64_t reservation_bytes, char* base, uint64_t bytes);

  // All members below are constant after reserve().
  char* reservation_;
  uint64_t reservation_bytes_;
  char* base_;
  uint64_t bytes_;
  bool can_keep_source_;
};

}  // namespace tencache
