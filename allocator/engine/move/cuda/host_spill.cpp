// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/host_spill.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "engine/move/move_request.h"
#include "engine/move/take_slot.h"
#include "tier/content_hash.h"

namespace tencache {
namespace {

// The target duration of a batch, which keeps the disk busy and bounds the wait, and a cap on its
// target bytes.
constexpr double kBatchS = 20e-3;
constexpr uint64_t kBatchBytesMax = 32 * kMiB;
// At most this many batches are tried. One that was called off may free nothing, and says nothing
// about the next one.
constexpr int kTriesMax = 8;
// The speed of a disk that was not measured.
constexpr double kUnknownDiskBytesPerS = 2e9;

/// A batch has one extent at least, and more until they have this many bytes.
uint64_t batch_bytes(const MoveRate& speed) {
  return std::min(kBatchBytesMax,
                  static_cast<uint64_t>(speed.bytes_per_s(kUnknownDiskBytesPerS) * kBatchS));
}

}  // namespace

/// Hashes what is written, and calls the transfer off as soon as an extent of the batch is wanted.
class HostSpill::Writer final : public PieceObserver {
 public:
  explicit Writer(const std::vector<Demotion>& demotions)
      : demotions_(demotions), hashers_(demotions.size()) {
    segments_.reserve(demotions.size());
    for (const Demotion& demotion : demotions) {
      const CudaExtent* extent = demotion.extent;
      TENCACHE_DCHECK(demotion.slot.is_valid() && !extent->slot.is_valid());
      TENCACHE_DCHECK(extent->host_block.is_valid() && extent->has(kFlagBusy));
      segments_.push_back({extent->host_block.memory, demotion.slot.offset, extent->bytes});
    }
  }

  std::span<const IoSegment> segments() const { return segments_; }
  size_t complete_count() const { return complete_count_; }
  ContentHash hash(size_t index) const { return hashers_[index].finish(); }

  bool before_submit(size_t segment, uint64_t, char* memory, size_t bytes) override {
    const bool is_called_off = std::ranges::any_of(demotions_, [](const Demotion& demotion) {
      return is_wanted_since(*demotion.extent, demotion.claimed_at);
    });
    if (is_called_off) return false;
    hashers_[segment].append(memory, bytes);
    return true;
  }
  void after_complete(size_t segment, uint64_t offset, size_t bytes) override {
    const IoSegment& whole = segments_[segment];
    if (offset + bytes == whole.offset + whole.bytes) complete_count_ = segment + 1;
  }

 private:
  const std::vector<Demotion>& demotions_;
  std::vector<IoSegment> segments_;
  std::vector<ContentHasher> hashers_;
  size_t complete_count_ = 0;
};

HostSpill::OtherClaim::OtherClaim(HostSpill& spill) : spill_(spill) {
  MutexLock lock(spill_.mutex_);
  spill_.is_claimed_ = true;
}

HostSpill::OtherClaim::~OtherClaim() {
  MutexLock lock(spill_.mutex_);
  spill_.is_claimed_ = false;
  ++spill_.other_claims_;
  spill_.changed_.notify_all();
}

HostSpill::Outcome HostSpill::demote(uint64_t bytes) {
  uint64_t other_claims = 0;
  {
    MutexLock lock(mutex_);
    // A demotion that is under way may have found nothing before this thread's extents were cold.
    // Only one that begins after this call shows that nothing can go.
    const uint64_t ended_to_show = demotions_ + 2;
    while (is_demoting_) {
      for (const uint64_t ended = demotions_; demotions_ == ended;) changed_.wait(mutex_);
      const bool may_go = last_outcome_.freed_bytes > 0 || last_outcome_.was_called_off;
      if (may_go || demotions_ >= ended_to_show) return last_outcome_;
    }
    is_demoting_ = true;
    other_claims = other_claims_;
  }
  Outcome outcome = demote_some(bytes);
  // Extents that were claimed for something else could not be demoted, and can give their blocks
  // back now.
  if (outcome.freed_bytes == 0 && await_other_claim(other_claims)) outcome = demote_some(bytes);
  MutexLock lock(mutex_);
  last_outcome_ = outcome;
  is_demoting_ = false;
  ++demotions_;
  changed_.notify_all();
  return outcome;
}

// Waits for the end of the claim that is alive, if any. Returns whether any claim has ended since
// `ended` of them had.
bool HostSpill::await_other_claim(uint64_t ended) {
  MutexLock lock(mutex_);
  const uint64_t awaited = other_claims_ + (is_claimed_ ? 1 : 0);
  while (other_claims_ < awaited) changed_.wait(mutex_);
  return other_claims_ > ended;
}

HostSpill::Outcome HostSpill::demote_some(uint64_t bytes) {
  Outcome outcome = {.freed_bytes = 0, .was_called_off = true};
  for (int tries = 0; outcome.freed_bytes == 0 && outcome.was_called_off && tries < kTriesMax;
       ++tries) {
    outcome = demote_batch(bytes);
  }
  return outcome;
}

HostSpill::Outcome HostSpill::demote_batch(uint64_t bytes) {
  uint64_t freed_bytes = 0;
  // Phase 1: claim.
  std::vector<Demotion> demotions = claim(bytes, /*keeps_blocks=*/false, &freed_bytes);
  // Phase 2: slots.
  take_slots(demotions);
  // Phases 3 and 4: bytes, then blocks.
  Outcome outcome = demotions.empty() ? Outcome{} : write(demotions, false);
  outcome.freed_bytes += freed_bytes;
  return outcome;
}

void HostSpill::set_next_uses(const NextUses* next_uses) {
  MutexLock lock(plan_mutex_);
  next_uses_ = next_uses;
}

std::vector<HostSpill::ColdExtent> HostSpill::cold_extents() {
  std::unordered_map<const Extent*, uint64_t> next_uses;
  {
    MutexLock lock(plan_mutex_);
    if (next_uses_ != nullptr) next_uses = next_uses_->next_uses();
  }
  std::vector<ColdExtent> cold;
  for (const ListedExtent& listed : heap_.extents()) {
    const uint64_t word = listed.extent->load();
    if (Extent::state_of(word) != ExtentState::kCold || (word & kFlagBusy) != 0) continue;
    const auto known = next_uses.find(listed.extent);
    cold.push_back({static_cast<CudaExtent*>(listed.extent), listed.bytes,
                    known != next_uses.end() ? known->second : kUnknown,
                    listed.extent->last_use_at.load(std::memory_order_relaxed)});
  }
  return cold;
}

// Claims extents in host memory that have no slot, the coldest first, and a batch at most. Those
// that have a slot give their blocks back. Where all keep their blocks, only those are claimed that
// a plan needs.
std::vector<HostSpill::Demotion> HostSpill::claim(uint64_t bytes, bool keeps_blocks,
                                                  uint64_t* freed_bytes) {
  bytes = std::min(bytes, batch_bytes(write_speed_));
  std::vector<ColdExtent> coldest_first = cold_extents();
  std::ranges::sort(coldest_first, leaves_before<ColdExtent>);
  std::vector<Demotion> demotions;
  uint64_t claimed_bytes = 0;
  for (const ColdExtent& candidate : coldest_first) {
    if (*freed_bytes + claimed_bytes >= bytes) break;
    if (keeps_blocks && candidate.ticks_to_next_use == kUnknown) continue;
    CudaExtent* extent = candidate.extent;
    const uint64_t claimed_at = timestamp();
    if (!extent->claim_cold()) continue;
    const uint64_t block_bytes = extent->host_block.bytes;
    if (extent->host_block.is_valid() && !extent->slot.is_valid()) {
      claimed_bytes += block_bytes;
      demotions.push_back({extent, claimed_at});
      continue;
    }
    if (!keeps_blocks) {
      heap_.copies().release_block(extent);
      *freed_bytes += block_bytes;
    }
    heap_.release_cold(extent);
  }
  return demotions;
}

void HostSpill::take_slots(std::vector<Demotion>& demotions) {
  std::erase_if(demotions, [&](Demotion& demotion) {
    const Status status = take_slot(disk_, heap_, demotion.extent->bytes).move_to(&demotion.slot);
    if (status.is_ok()) return false;
    warn(status);
    give_up(demotion);
    return true;
  });
}

// Where a write fails, no slot of its batch is trusted: the error may concern any of them.
HostSpill::Outcome HostSpill::write(const std::vector<Demotion>& demotions, bool keeps_blocks) {
  Writer writer(demotions);
  const uint64_t begin_ns = now_ns();
  const TransferResult transfer = disk_.write(writer.segments(), &writer);
  // A write that fails may have taken any time, which says nothing about the speed.
  if (transfer.status.is_ok()) write_speed_.add(transfer.bytes, now_ns() - begin_ns);
  add(ledger_.stats.disk_written_bytes, transfer.bytes);
  if (!transfer.status.is_ok()) warn(transfer.status);
  const size_t done = transfer.status.is_ok() ? writer.complete_count() : 0;
  Outcome outcome = {.freed_bytes = 0, .was_called_off = transfer.cancelled};
  for (size_t index = 0; index < demotions.size(); ++index) {
    if (index >= done) {
      give_up(demotions[index]);
      continue;
    }
    CudaExtent* extent = demotions[index].extent;
    extent->slot = demotions[index].slot;
    extent->slot_hash = writer.hash(index);
    ledger_.log_move(MoveKind::kDemote, extent->id, extent->bytes, demotions[index].claimed_at);
    if (!keeps_blocks) {
      outcome.freed_bytes += extent->host_block.bytes;
      heap_.copies().release_block(extent);
    }
    heap_.release_cold(extent);
  }
  return outcome;
}

void HostSpill::give_up(const Demotion& demotion) {
  if (demotion.slot.is_valid()) disk_.release(demotion.slot);
  heap_.release_cold(demotion.extent);
}

void HostSpill::warn(const Status& failure) {
  if (has_warned_.exchange(true)) return;
  TENCACHE_LOG_WARNING(
      "cold tensors cannot go from host memory to disk: %s; they stay where they are, and what "
      "finds no room in host memory stays on the GPU",
      failure.clause().c_str());
}

void HostSpill::describe(Machine* machine) const {
  machine->disk_read_bytes_per_s = read_speed_.bytes_per_s(kUnknownDiskBytesPerS);
  machine->disk_write_bytes_per_s = write_speed_.bytes_per_s(kUnknownDiskBytesPerS);
}

SlotReadResult HostSpill::read_slots(std::span<const SlotRead> reads,
                                     const std::function<void(size_t index)>& on_read) {
  const uint64_t begin = timestamp();
  const uint64_t begin_ns = now_ns();
  uint64_t bytes = 0;
  const SlotReadResult result = tencache::read_slots(
      disk_, reads,
      [&](size_t index) {
        const Extent& extent = *reads[index].extent;
        bytes += extent.bytes;  // before on_read, which may give the extent away
        ledger_.log_move(MoveKind::kReadBack, extent.id, extent.bytes, begin);
        on_read(index);
      },
      ledger_.stats);
  if (result.status.is_ok()) read_speed_.add(bytes, now_ns() - begin_ns);
  return result;
}

uint64_t HostSpill::read_batch_bytes() const { return batch_bytes(read_speed_); }

uint64_t HostSpill::copy_ahead_bytes() {
  MutexLock lock(plan_mutex_);
  return next_uses_ == nullptr ? 0 : next_uses_->copy_ahead_bytes();
}

bool HostSpill::copy(uint64_t bytes) {
  uint64_t freed_bytes = 0;  // stays 0, because the blocks stay
  std::vector<Demotion> copies = claim(bytes, /*keeps_blocks=*/true, &freed_bytes);
  bool has_room = true;
  std::erase_if(copies, [&](Demotion& copy) {
    has_room = has_room && disk_.allocate_ahead(copy.extent->bytes).move_to(&copy.slot).is_ok();
    if (!has_room) give_up(copy);
    return !has_room;
  });
  if (!copies.empty()) write(copies, true);
  return has_room;
}

}  // namespace tencache
