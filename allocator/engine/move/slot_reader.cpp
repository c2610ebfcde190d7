// SPDX-License-Identifier: Apache-2.0
#include "engine/move/slot_reader.h"

#include <vector>

#include "base/check.h"
#include "tier/content_hash.h"

namespace tencache {
namespace {

// A read that fails may succeed when it is repeated (a path of the device resets). A hash that does
// not match never gets better.
constexpr int kReadTriesMax = 3;

/// Hashes the pieces that have arrived while later ones are in flight, and hands on each segment as
/// soon as all of it is there.
class HashingReader final : public PieceObserver {
 public:
  HashingReader(std::span<const SlotRead> reads, const NextRead& next_read,
                std::function<void(size_t segment, const ContentHash& hash)> on_segment)
      : next_read_(next_read), on_segment_(std::move(on_segment)) {
    for (const SlotRead& read : reads) add(read);
  }

  /// A copy: the list grows while they are read.
  std::vector<IoSegment> segments() const { return segments_; }

  bool before_submit(size_t, uint64_t, char*, size_t) override { return true; }
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
    const IoSegment& whole = segments_[segment];
    hashers_[segment].append(whole.memory_at(offset), bytes);
    if (offset + bytes == whole.offset + whole.bytes) {
      on_segment_(segment, hashers_[segment].finish());
    }
  }
  bool next_segment(IoSegment* segment) override {
    SlotRead read;
    if (next_read_ == nullptr || !next_read_(&read)) return false;
    add(read);
    *segment = segments_.back();
    return true;
  }

 private:
  void add(const SlotRead& read) {
    segments_.push_back({read.memory, read.extent->slot.offset, read.extent->bytes});
    hashers_.emplace_back();
  }

  std::vector<IoSegment> segments_;
  std::vector<ContentHasher> hashers_;
  const NextRead& next_read_;
  std::function<void(size_t segment, const ContentHash& hash)> on_segment_;
};

void verify(const DiskTier& disk, const Extent& extent, const ContentHash& hash) {
  if (hash != extent.slot_hash) end_for_other_bytes(disk, extent);
}

}  // namespace

SlotReadResult read_slots(DiskTier& disk, std::span<const SlotRead> first_reads,
                          const std::function<void(size_t index)>& on_read, Stats& stats,
                          const NextRead& next_read) {
  SlotReadResult result;
  std::vector<SlotRead> reads(first_reads.begin(), first_reads.end());
  const NextRead note_next = [&](SlotRead* read) {
    if (next_read == nullptr || !next_read(read)) return false;
    reads.push_back(*read);
    return true;
  };
  for (int tries = 1; result.done < reads.size() && tries <= kReadTriesMax; ++tries) {
    const size_t first = result.done;
    HashingReader reader(std::span<const SlotRead>(reads).subspan(first), note_next,
                         [&](size_t segment, const ContentHash& hash) {
                           verify(disk, *reads[first + segment].extent, hash);
                           on_read(first + segment);
                           result.done = first + segment + 1;
                         });
    const TransferResult transfer = disk.read(reader.segments(), &reader);
    add(stats.disk_read_bytes, transfer.bytes);
    result.status = transfer.status;
  }
  return result;
}

void end_for_other_bytes(const DiskTier& disk, const Extent& extent) {
  fatal(
      "the spill file in %s returned other bytes than were written: extent %llu at %p, %llu "
      "bytes at file offset %llu. The program is stopped so that it does not go on with wrong "
      "numbers; check the disk or choose another one with --spill-dir",
      disk.shown_directory().c_str(), static_cast<unsigned long long>(extent.id),
      static_cast<void*>(extent.address), static_cast<unsigned long long>(extent.bytes),
      static_cast<unsigned long long>(extent.slot.offset));
}

void end_for_unreadable_slots(const DiskTier& disk, const Status& reason) {
  fatal(
      "tensors cannot be read back from the spill file in %s: %s. The program is stopped so that "
      "it does not go on with wrong numbers; check the disk or choose another one with --spill-dir",
      disk.shown_directory().c_str(), reason.clause().c_str());
}

}  // namespace tencache
