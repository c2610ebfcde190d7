// SPDX-License-Identifier: Apache-2.0
#include "engine/move/slot_reader.h"

#include <vector>

#include "base/check.h"
#include "tier/content_hash.h"

namespace tencache {
namespace {

// A read that fails is tried this often in all, since it may succeed when it is repeated (a path of
// the device resets). A hash that does not match never gets better.
constexpr int kReadTriesMax = 3;

/// Watches one try to read the slots that are not done yet: hashes the pieces that have arrived
/// while later ones are in flight, and hands on each slot's bytes as soon as all of them are there
/// and proved.
class HashingReader final : public PieceObserver {
 public:
  using OnRead = std::function<void(size_t index)>;

  HashingReader(const DiskTier& disk, std::vector<SlotRead>* reads, size_t done,
                const OnRead& on_read, const NextRead& next_read)
      : disk_(disk),
        reads_(reads),
        first_(done),
        done_(done),
        on_read_(on_read),
        next_read_(next_read) {
    for (size_t index = first_; index < reads_->size(); ++index) add((*reads_)[index]);
  }

  size_t done() const { return done_; }
  /// Returns a copy: the list grows while its segments are read.
  std::vector<IoSegment> segments() const { return segments_; }

  bool before_submit(size_t, uint64_t, char*, size_t) override { return true; }
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
    const IoSegment& whole = segments_[segment];
    hashers_[segment].append(whole.memory_at(offset), bytes);
    if (offset + bytes == whole.offset + whole.bytes) hand_on(segment);
  }
  bool next_segment(IoSegment* segment) override {
    SlotRead read;
    if (next_read_ == nullptr || !next_read_(&read)) return false;
    reads_->push_back(read);
    add(read);
    *segment = segments_.back();
    return true;
  }

 private:
  void add(const SlotRead& read) {
    segments_.push_back({read.memory, read.extent->slot.offset, read.extent->bytes});
    hashers_.emplace_back();
  }
  void hand_on(size_t segment) {
    const Extent& extent = *(*reads_)[first_ + segment].extent;
    if (hashers_[segment].finish() != extent.slot_hash) end_for_other_bytes(disk_, extent);
    on_read_(first_ + segment);
    done_ = first_ + segment + 1;
  }

  const DiskTier& disk_;
  std::vector<SlotRead>* const reads_;
  const size_t first_;  // the index in reads_ of segment 0
  size_t done_;
  const OnRead& on_read_;
  const NextRead& next_read_;
  std::vector<IoSegment> segments_;
  std::vector<ContentHasher> hashers_;
};

}  // namespace

SlotReadResult read_slots(DiskTier& disk, std::span<const SlotRead> first_reads,
                          const std::function<void(size_t index)>& on_read, Stats& stats,
                          const NextRead& next_read) {
  SlotReadResult result;
  std::vector<SlotRead> reads(first_reads.begin(), first_reads.end());
  for (int tries = 1; result.done < reads.size() && tries <= kReadTriesMax; ++tries) {
    HashingReader reader(disk, &reads, result.done, on_read, next_read);
    const TransferResult transfer = disk.read(reader.segments(), &reader);
    add(stats.disk_read_bytes, transfer.bytes);
    result.done = reader.done();
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
