// SPDX-License-Identifier: Apache-2.0
#include "engine/slot_reader.h"

#include <vector>

#include "base/check.h"
#include "tier/content_hash.h"

namespace tencache {
namespace {

// A read that fails may succeed when it is repeated (a path of the device resets); a hash that does
// not match never gets better.
constexpr int kReadTriesMax = 3;

/// Hashes what has arrived, piece by piece, while later pieces are in flight, and hands on each
/// segment as soon as all of it is there.
class HashingReader final : public PieceObserver {
 public:
  HashingReader(std::span<const IoSegment> segments,
                std::function<void(size_t segment, const ContentHash& hash)> on_segment)
      : segments_(segments), hashers_(segments.size()), on_segment_(std::move(on_segment)) {}

  bool before_submit(size_t, uint64_t, char*, size_t) override { return true; }
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
    const IoSegment& whole = segments_[segment];
    hashers_[segment].append(whole.memory_at(offset), bytes);
    if (offset + bytes == whole.offset + whole.bytes) {
      on_segment_(segment, hashers_[segment].finish());
    }
  }

 private:
  std::span<const IoSegment> segments_;
  std::vector<ContentHasher> hashers_;
  std::function<void(size_t segment, const ContentHash& hash)> on_segment_;
};

void verify(const DiskTier& disk, const Extent& extent, const ContentHash& hash) {
  if (hash == extent.slot_hash) return;
  fatal(
      "the spill file in %s returned other bytes than were written: extent %llu at %p, %llu "
      "bytes at file offset %llu. The program is stopped so that it does not go on with wrong "
      "numbers; check the disk or choose another one with --spill-dir",
      disk.directory().c_str(), static_cast<unsigned long long>(extent.id),
      static_cast<void*>(extent.address), static_cast<unsigned long long>(extent.bytes),
      static_cast<unsigned long long>(extent.slot.offset));
}

}  // namespace

SlotReadResult read_slots(DiskTier& disk, std::span<const SlotRead> reads,
                          const std::function<void(size_t index)>& on_read, Stats& stats) {
  SlotReadResult result;
  for (int tries = 1; result.done < reads.size() && tries <= kReadTriesMax; ++tries) {
    const size_t first = result.done;
    std::vector<IoSegment> segments;
    segments.reserve(reads.size() - first);
    for (const SlotRead& read : reads.subspan(first)) {
      segments.push_back({read.memory, read.extent->slot.offset, read.extent->bytes});
    }
    HashingReader reader(segments, [&](size_t segment, const ContentHash& hash) {
      verify(disk, *reads[first + segment].extent, hash);
      on_read(first + segment);
      result.done = first + segment + 1;
    });
    const TransferResult transfer = disk.read(segments, &reader);
    add(stats.disk_read_bytes, transfer.bytes);
    result.status = transfer.status;
  }
  return result;
}

void end_for_unreadable_slots(const DiskTier& disk, const Status& reason) {
  fatal(
      "tensors cannot be read back from the spill file in %s: %s. The program is stopped so that "
      "it does not go on with wrong numbers; check the disk or choose another one with --spill-dir",
      disk.directory().c_str(), reason.clause().c_str());
}

}  // namespace tencache
