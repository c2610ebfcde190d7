// SPDX-License-Identifier: Apache-2.0
#include "engine/move/disk/eviction_writer.h"

#include <cstring>

#include "base/racy_access.h"

namespace tencache {

EvictionWriter::EvictionWriter(std::span<const Extent* const> extents)
    : extents_(extents), hashers_(extents.size()) {
  segments_.reserve(extents.size());
  for (const Extent* extent : extents) {
    segments_.push_back({nullptr, extent->slot.offset, extent->bytes});
  }
}

bool EvictionWriter::before_submit(size_t segment, uint64_t offset, char* memory, size_t bytes) {
  const char* source = extents_[segment]->address + (offset - segments_[segment].offset);
  {
    const RacyReads racy;  // the program may be writing: the proof finds out
    memcpy(memory, source, bytes);
  }
  hashers_[segment].append(memory, bytes);
  return true;
}

}  // namespace tencache
