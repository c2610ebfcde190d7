// SPDX-License-Identifier: Apache-2.0
#include "tier/bounce_ring.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/units.h"

namespace tencache {
namespace {

constexpr size_t kHugePageBytes = 2 * kMiB;

/// `bytes` of fresh memory that begins with a huge page; null with errno set when there is none.
char* map_aligned(size_t bytes) {
  const size_t mapped_bytes = bytes + kHugePageBytes;
  void* mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<char*>(mapped);
  const size_t before_bytes = round_up(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) -
                              reinterpret_cast<uintptr_t>(begin);
  if (before_bytes > 0) munmap(begin, before_bytes);
  munmap(begin + before_bytes + bytes, kHugePageBytes - before_bytes);
  return begin + before_bytes;
}

}  // namespace

Result<std::unique_ptr<BounceRing>> BounceRing::create(size_t pieces) {
  TENCACHE_CHECK(pieces > 0);
  const size_t bytes = pieces * kPieceBytes;
  char* memory = map_aligned(bytes);
  if (memory == nullptr) {
    return status_from_errno(errno, "no " + format_bytes(bytes) + " of memory to write from");
  }
  // Advice: a refusal costs time, of writes or of forks.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  (void)madvise(memory, bytes, MADV_DONTFORK);
  return std::unique_ptr<BounceRing>(new BounceRing(memory, pieces));
}

BounceRing::~BounceRing() { munmap(memory_, pieces_ * kPieceBytes); }

bool has_segment_without_memory(std::span<const IoSegment> segments) {
  return std::any_of(segments.begin(), segments.end(), [](const IoSegment& segment) {
    return segment.memory == nullptr && segment.bytes > 0;
  });
}

}  // namespace tencache
