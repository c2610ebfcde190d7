// SPDX-License-Identifier: Apache-2.0
#include "tier/bounce_ring.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/units.h"
#include "platform/host_memory.h"

namespace tencache {

Result<std::unique_ptr<BounceRing>> BounceRing::create(size_t pieces) {
  TENCACHE_CHECK(pieces > 0);
  const size_t bytes = pieces * kPieceBytes;
  char* memory = map_huge_aligned(bytes);
  if (memory == nullptr) {
    return status_from_errno(errno, "cannot map " + format_bytes(bytes) + " of buffers for writes");
  }
  // The call is only advice: a refusal costs time at forks.
  (void)madvise(memory, bytes, MADV_DONTFORK);
  return std::unique_ptr<BounceRing>(new BounceRing(memory, pieces));
}

bool has_segment_without_memory(std::span<const IoSegment> segments) {
  return std::any_of(segments.begin(), segments.end(), [](const IoSegment& segment) {
    return segment.memory == nullptr && segment.bytes > 0;
  });
}

}  // namespace tencache
