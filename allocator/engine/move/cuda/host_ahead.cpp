// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/host_ahead.h"

#include <algorithm>
#include <span>

#include "base/service_thread.h"
#include "learn/host_model.h"

namespace tencache {
namespace {

// How many rounds of reading ahead there are at most, each but the first with room made for it: in
// small host memory what is demoted may be needed next.
constexpr int kReadRoundsMax = 8;

}  // namespace

HostAhead::~HostAhead() {
  is_stopping_ = true;
  nudge();
  if (worker_.joinable()) worker_.join();
}

void HostAhead::start(uint64_t headroom_bytes) {
  headroom_bytes_ = headroom_bytes;
  worker_ = start_service_thread("tencache-spill", [this] { work(); });
}

void HostAhead::describe(Machine* machine) const {
  machine->host_bytes = host_.budget_bytes();
  machine->host_headroom_bytes = headroom_bytes_;
}

void HostAhead::nudge() {
  MutexLock lock(mutex_);
  is_nudged_ = true;
  changed_.notify_one();
}

void HostAhead::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!is_nudged_) changed_.wait(mutex_);
      is_nudged_ = false;
    }
    if (is_stopping_) return;
    fetched_bytes_ = 0;
    if (free_bytes() < headroom_bytes_ / 2) make_headroom();
    read();
    copy();
  }
}

// Ends where nothing more can be given back. The next block that is taken starts the next try.
void HostAhead::make_headroom() {
  for (uint64_t free = free_bytes(); free < headroom_bytes_ && !is_stopping_; free = free_bytes()) {
    const MigrationPermit permit(fork_latch_);
    const uint64_t lacking_bytes = headroom_bytes_ - free;
    // A copy over the link costs less than a write.
    if (heap_.drop_spare_copies(lacking_bytes) > 0) continue;
    if (spill_.demote(lacking_bytes).freed_bytes == 0) return;
  }
}

// Reads ahead (Note [Reading ahead]). A slot that cannot be read is left to the op that needs it.
void HostAhead::read() {
  bool lacks_room = true;
  for (int round = 0; lacks_room && !is_stopping_ && round < kReadRoundsMax; ++round) {
    if (round > 0) make_headroom();
    lacks_room = false;
    while (!is_stopping_ && read_batch(&lacks_room)) {
    }
  }
}

bool HostAhead::read_batch(bool* lacks_room) {
  const MigrationPermit permit(fork_latch_);
  const HostSpill::OtherClaim claim(spill_);
  const std::vector<Reading> readings = claim_needed_next(lacks_room);
  return !readings.empty() && read_back(readings);
}

// Claims extents that are needed next and lie on disk alone, as far as there is room.
std::vector<HostAhead::Reading> HostAhead::claim_needed_next(bool* lacks_room) {
  std::vector<HostSpill::ColdExtent> needed_first = spill_.cold_extents();
  std::ranges::sort(needed_first, {}, &HostSpill::ColdExtent::ticks_to_next_use);
  const uint64_t window_bytes = bytes_needed_next(host_.budget_bytes(), headroom_bytes_);
  const uint64_t enough_bytes = spill_.read_batch_bytes();
  std::vector<Reading> readings;
  uint64_t next_bytes = 0;
  uint64_t claimed_bytes = 0;
  for (const HostSpill::ColdExtent& candidate : needed_first) {
    if (candidate.ticks_to_next_use == HostSpill::kUnknown) break;
    CudaExtent* extent = candidate.extent;
    next_bytes += candidate.bytes;
    if (next_bytes > window_bytes || claimed_bytes >= enough_bytes) break;
    if (!extent->claim_cold()) continue;
    if (extent->host_block.is_valid()) {
      heap_.release_cold(extent);
      continue;
    }
    const HostBlock block = take_spare_block(extent->bytes);
    if (!block.is_valid()) {
      heap_.release_cold(extent);
      const size_t later = static_cast<size_t>(&candidate - needed_first.data()) + 1;
      *lacks_room = is_any_in_host(std::span(needed_first).subspan(later));
      break;
    }
    readings.push_back({extent, block});
    claimed_bytes += extent->bytes;
  }
  return readings;
}

// Whether one of the candidates could make room. Only a thread that has claimed an extent may look
// at its block. The extents needed last are the ones that most likely could not, so the look begins
// with those needed first.
bool HostAhead::is_any_in_host(std::span<const HostSpill::ColdExtent> candidates) {
  return std::ranges::any_of(candidates, [this](const HostSpill::ColdExtent& candidate) {
    if (!candidate.extent->claim_cold()) return false;
    const bool is_in_host = candidate.extent->host_block.is_valid();
    heap_.release_cold(candidate.extent);
    return is_in_host;
  });
}

// Returns no block where there is no room. Half of the headroom is left to evictions.
HostBlock HostAhead::take_spare_block(uint64_t bytes) {
  const uint64_t needed_bytes = bytes + headroom_bytes_ / 2;
  const uint64_t free = free_bytes();  // other threads change it
  if (free < needed_bytes) heap_.drop_spare_copies(needed_bytes - free);
  if (free_bytes() < needed_bytes) return {};
  const Result<HostBlock> block = host_.allocate(bytes);
  return block.is_ok() ? block.value() : HostBlock{};
}

// Gives up the claim on each extent as soon as its bytes are there, since its op may wait for it.
// Returns whether all of them arrived.
bool HostAhead::read_back(const std::vector<Reading>& readings) {
  std::vector<SlotRead> reads;
  reads.reserve(readings.size());
  for (const Reading& reading : readings) reads.push_back({reading.extent, reading.block.memory});
  const auto on_read = [&](size_t index) {
    CudaExtent* extent = readings[index].extent;
    extent->host_block = readings[index].block;
    heap_.release_cold(extent);
  };
  const SlotReadResult result = spill_.read_slots(reads, on_read);
  for (const Reading& reading : std::span(readings).subspan(result.done)) {
    host_.release(reading.block);
    heap_.release_cold(reading.extent);
  }
  return result.done == readings.size();
}

// Copies one batch at a time, so that the worker sees in between whether room or bytes are wanted.
// Where a batch copied nothing, the next block that is taken starts the next try. Where the disk is
// full, no block does.
void HostAhead::copy() {
  const uint64_t planned_bytes = spill_.copy_ahead_bytes();
  const uint64_t there_bytes = spill_.disk().used_bytes();
  uint64_t wanted_bytes = planned_bytes;
  bool has_room = true;
  if (there_bytes < planned_bytes) {
    wanted_bytes = std::min(planned_bytes, spill_.disk().quota_bytes());
    const MigrationPermit permit(fork_latch_);
    const HostSpill::OtherClaim claim(spill_);
    has_room = there_bytes < wanted_bytes && spill_.copy(wanted_bytes - there_bytes);
  }
  copy_bytes_.store(has_room ? wanted_bytes : 0, std::memory_order_relaxed);
  if (has_room && spill_.disk().used_bytes() > there_bytes) nudge();
}

}  // namespace tencache
