// SPDX-License-Identifier: Apache-2.0
#include "engine/eviction_writer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/racy_access.h"

namespace tencache {
namespace {

constexpr size_t kRingBytes = kWindowPiecesMax * kPieceBytes;
// Of a huge page. The device reads from huge pages twice as fast as from small ones (5 against 2
// GB/s on a virtual NVMe): a request is then one piece of physical memory and not 256.
constexpr size_t kRingAlignment = size_t{2} << 20;

}  // namespace

Result<std::unique_ptr<BounceRing>> BounceRing::create() {
  // Pages appear as buffers are used, so small transfers need little.
  void* memory = std::aligned_alloc(kRingAlignment, kRingBytes);
  if (memory == nullptr) return status_from_errno(ENOMEM, "memory for writing to the disk");
  madvise(memory, kRingBytes, MADV_HUGEPAGE);
  return std::unique_ptr<BounceRing>(new BounceRing(static_cast<char*>(memory)));
}

BounceRing::~BounceRing() { std::free(memory_); }

Result<std::unique_ptr<BounceRing>> BounceRings::borrow() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<BounceRing> ring = std::move(idle_.back());
      idle_.pop_back();
      return ring;
    }
  }
  return BounceRing::create();
}

void BounceRings::give_back(std::unique_ptr<BounceRing> ring) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(ring));
}

EvictionWriter::EvictionWriter(std::span<const Extent* const> extents, const BounceRing& ring)
    : hashers_(extents.size()) {
  for (size_t index = 0; index < extents.size(); ++index) {
    const Extent* extent = extents[index];
    for (uint64_t done = 0; done < extent->bytes; done += kPieceBytes) {
      const uint64_t bytes = std::min<uint64_t>(kPieceBytes, extent->bytes - done);
      segments_.push_back({ring.buffer(segments_.size()), extent->slot.offset + done, bytes});
      sources_.push_back({index, extent->address + done});
    }
  }
}

bool EvictionWriter::before_submit(size_t segment, uint64_t, size_t bytes) {
  TENCACHE_CHECK(segment < completed_count_ + kWindowPiecesMax && bytes == segments_[segment].bytes,
                 "piece %zu of %zu bytes, %zu complete", segment, bytes, completed_count_);
  const Source& source = sources_[segment];
  char* copy = segments_[segment].memory;
  {
    const RacyReads racy;  // the program may be writing: the proof finds out
    memcpy(copy, source.memory, bytes);
  }
  hashers_[source.extent].append(copy, bytes);
  return true;
}

void EvictionWriter::after_complete(size_t, uint64_t, size_t) { ++completed_count_; }

}  // namespace tencache
