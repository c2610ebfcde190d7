// SPDX-License-Identifier: Apache-2.0
#include "engine/eviction_writer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/racy_access.h"

namespace tencache {
namespace {

constexpr size_t kRingBytes = kWindowPiecesMax * kPieceBytes;

}  // namespace

Result<std::unique_ptr<BounceRing>> BounceRing::create() {
  // Pages appear as buffers are used, so small transfers need little.
  void* memory =
      mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return status_from_errno(errno, "memory for writing to the disk");
  return std::unique_ptr<BounceRing>(new BounceRing(static_cast<char*>(memory)));
}

BounceRing::~BounceRing() { munmap(memory_, kRingBytes); }

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
