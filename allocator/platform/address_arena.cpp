// SPDX-License-Identifier: Apache-2.0
#include "platform/address_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/racy_access.h"
#include "base/units.h"
#include "platform/host_memory.h"
#include "platform/machine.h"

namespace tencache {
namespace {

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP \
  4  // <linux/mman.h>; the C library's own header may be older than the kernel
#endif
constexpr int kMoveAndKeepSource = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;

char* align_to_granule(char* address) {
  return reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(address), kGranuleBytes));
}

/// Returns OK if a call is done, else what errno says of it.
Status outcome(bool is_done, const char* what, const char* address, uint64_t bytes) {
  const int error_number = errno;
  if (is_done) return Status::ok();
  char text[160];
  snprintf(text, sizeof text, "%s of %s at %p%s", what, format_bytes(bytes).c_str(),
           static_cast<const void*>(address),
           error_number == ENOMEM ? " (raise vm.max_map_count or free memory)" : "");
  return status_from_errno(error_number, text);
}

// Whether the kernel can keep the source of a move: tries to move one page onto the next.
bool probe_keeping_the_source() {
  void* mapped =
      mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  char* pages = static_cast<char*>(mapped);
  const bool can =
      mremap(pages, kPageBytes, kPageBytes, kMoveAndKeepSource, pages + kPageBytes) != MAP_FAILED;
  munmap(mapped, 2 * kPageBytes);
  return can;
}

}  // namespace

Status AddressArena::expect_page_size(uint64_t kernel_page_bytes) {
  if (kernel_page_bytes == kPageBytes) return Status::ok();
  return {StatusCode::kUnavailable,
          "this kernel's memory pages have " + format_bytes(kernel_page_bytes) +
              ", and on DRAM tencache serves only kernels whose pages have " +
              format_bytes(kPageBytes) + "; start the machine with such a kernel"};
}

Result<std::unique_ptr<AddressArena>> AddressArena::reserve(uint64_t bytes, uint64_t least_bytes) {
  TENCACHE_CHECK(bytes > 0 && bytes % kGranuleBytes == 0, "%lu bytes", bytes);
  TENCACHE_RETURN_IF_ERROR(expect_page_size(static_cast<uint64_t>(sysconf(_SC_PAGESIZE))));
  const std::optional<uint64_t> left_bytes = address_bytes_left();
  const uint64_t most_bytes = left_bytes ? std::min(bytes, *left_bytes / 2) : bytes;
  least_bytes = std::max(std::min(least_bytes, bytes), kGranuleBytes);
  uint64_t wish = most_bytes / kGranuleBytes * kGranuleBytes;
  while (wish >= least_bytes) {
    const uint64_t with_slack = wish + kGranuleBytes;
    void* reservation =
        mmap(nullptr, with_slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reservation != MAP_FAILED) {
      char* start = static_cast<char*>(reservation);
      return std::unique_ptr<AddressArena>(
          new AddressArena(start, with_slack, align_to_granule(start), wish));
    }
    if (wish == least_bytes) break;
    wish = std::max(least_bytes, wish / 2 / kGranuleBytes * kGranuleBytes);
  }
  const std::string left = left_bytes ? ", since the limit leaves " + format_bytes(*left_bytes) +
                                            " and tencache takes half of it"
                                      : "";
  return Status(StatusCode::kUnavailable,
                "could not reserve the " + format_bytes(least_bytes) +
                    " of virtual addresses that the budget needs" + left +
                    "; raise the limit on virtual memory (ulimit -v) or lower --device-memory");
}

AddressArena::AddressArena(char* reservation, uint64_t reservation_bytes, char* base,
                           uint64_t bytes)
    : reservation_(reservation),
      reservation_bytes_(reservation_bytes),
      base_(base),
      bytes_(bytes),
      can_keep_source_(probe_keeping_the_source()) {}

AddressArena::~AddressArena() { munmap(reservation_, reservation_bytes_); }

Status AddressArena::commit(char* address, uint64_t bytes) {
  const bool is_done = mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
  TENCACHE_RETURN_IF_ERROR(outcome(is_done, "making memory accessible", address, bytes));
  // Huge pages halve the cost of first touch and of moving a frame; a range without a whole huge
  // page gains nothing from the advice.
  if (bytes >= kGranuleBytes) (void)madvise(address, bytes, MADV_HUGEPAGE);
  return Status::ok();
}

bool AddressArena::decommit(char* address, uint64_t bytes) {
  void* mapped = mmap(address, bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped != MAP_FAILED) return true;
  const int error_number = errno;
  TENCACHE_CHECK(error_number == ENOMEM && madvise(address, bytes, MADV_DONTNEED) == 0,
                 "giving %lu bytes back: errno %d", bytes, error_number);
  return false;
}

Status AddressArena::protect(char* address, uint64_t bytes) {
  return outcome(mprotect(address, bytes, PROT_READ) == 0, "write protection", address, bytes);
}

Status AddressArena::unprotect(char* address, uint64_t bytes) {
  const bool is_done = mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
  return outcome(is_done, "lifting write protection", address, bytes);
}

void AddressArena::read_singly(char* address, uint64_t bytes, bool singly) {
  // A refusal (vm.max_map_count) costs speed only.
  (void)madvise(address, bytes, singly ? MADV_RANDOM : MADV_NORMAL);
}

Status AddressArena::map_cold(char* address, uint64_t bytes, int fd, uint64_t offset) {
  const UnchangedByMapping unchanged;
  void* mapped = mmap(address, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd, static_cast<off_t>(offset));
  return outcome(mapped != MAP_FAILED, "mapping a slot", address, bytes);
}

Result<char*> AddressArena::make_scratch(uint64_t bytes) {
  static_assert(kHugePageBytes == kGranuleBytes, "scratch memory begins at a granule");
  char* const scratch = map_huge_aligned(bytes, MAP_PRIVATE | MAP_NORESERVE);
  TENCACHE_RETURN_IF_ERROR(outcome(scratch != nullptr, "scratch memory", nullptr, bytes));
  return scratch;
}

Status AddressArena::move_onto(char* scratch, char* address, uint64_t bytes) {
  const UnchangedByMapping unchanged;
  void* moved = mremap(scratch, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address);
  return outcome(moved != MAP_FAILED, "moving memory under an extent", address, bytes);
}

Status AddressArena::move_frames(char* source, char* address, uint64_t bytes) {
  const UnchangedByMapping unchanged;
  void* moved = mremap(source, bytes, bytes, kMoveAndKeepSource, address);
  return outcome(moved != MAP_FAILED, "moving memory under an extent", address, bytes);
}

void AddressArena::drop_scratch(char* scratch, uint64_t bytes) { munmap(scratch, bytes); }

}  // namespace tencache
