// SPDX-License-Identifier: Apache-2.0
#include "tier/host_tier.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "platform/machine.h"

namespace tencache {
namespace {

// No memory is mapped if that leaves the machine or its cgroup less than this: the program has more
// to allocate, and the kernel would kill it.
constexpr uint64_t kLeftBytesMin = 128 * kMiB;

}  // namespace

HostTier::HostTier(HostTierConfig config)
    : config_(std::move(config)), owner_pid_(getpid()), ranges_(0) {}

Result<std::unique_ptr<HostTier>> HostTier::create(HostTierConfig config) {
  TENCACHE_CHECK(config.threads > 0);
  if (config.budget_bytes < kIoAlignment) {
    return Status(StatusCode::kInvalidArgument, "The budget of host memory is " +
                                                    format_bytes(config.budget_bytes) +
                                                    ", which holds nothing. " + config.remedy);
  }
  config.budget_bytes -= config.budget_bytes % kIoAlignment;
  config.chunk_bytes = round_up(std::max(config.chunk_bytes, kIoAlignment), kIoAlignment);
  if (!config.memory_factory) config.memory_factory = &HostMemory::map;
  if (!config.bytes_left) config.bytes_left = [] { return bytes_left(probe_memory()); };
  return std::unique_ptr<HostTier>(new HostTier(std::move(config)));
}

HostTier::~HostTier() {
  if (getpid() != owner_pid_) return;
  MutexLock lock(mutex_);
  for (const Chunk& chunk : chunks_) {
    if (chunk.is_pinned) config_.pinner->unpin(chunk.memory.data(), chunk.memory.bytes());
  }
}

// ---- Blocks --------------------------------------------------------------------------------

Result<HostBlock> HostTier::allocate(uint64_t bytes) {
  TENCACHE_CHECK(bytes > 0, "a block of 0 bytes was requested");
  if (getpid() != owner_pid_) return refused_in_child();
  {
    MutexLock lock(mutex_);
    if (bytes > config_.budget_bytes) return budget_exhausted(bytes);
    if (const HostBlock block = take_block(bytes); block.is_valid()) return block;
  }
  return grow_and_take(bytes);
}

HostBlock HostTier::take(uint64_t bytes) {
  TENCACHE_CHECK(bytes > 0, "a block of 0 bytes was requested");
  if (getpid() != owner_pid_ || bytes > config_.budget_bytes) return {};
  MutexLock lock(mutex_);
  return take_block(bytes);
}

void HostTier::release(const HostBlock& block) {
  TENCACHE_CHECK(block.is_valid(), "an invalid block was released");
  if (getpid() != owner_pid_) return;
  if (block.is_beyond_budget()) return release_beyond_budget(block);
  MutexLock lock(mutex_);
  ranges_.free(block.offset / kIoAlignment, block.capacity_bytes() / kIoAlignment);
  TENCACHE_CHECK(stats_.asked_bytes >= block.bytes && stats_.block_count > 0,
                 "a block of %lu bytes was released of %lu", block.bytes, stats_.asked_bytes);
  stats_.asked_bytes -= block.bytes;
  --stats_.block_count;
}

bool HostTier::may_grow(uint64_t bytes) const {
  if (bytes > config_.budget_bytes) return false;
  MutexLock lock(mutex_);
  return !was_growth_refused_ && may_map(round_up(bytes, kIoAlignment));
}

bool HostTier::may_map(uint64_t bytes) const {
  const uint64_t room_bytes = config_.budget_bytes - stats_.chunk_bytes;
  if (bytes <= room_bytes) return true;
  // If all unused bytes of the chunks would not be enough, no walk over the chunks is needed.
  const uint64_t unused_bytes = stats_.chunk_bytes - ranges_.used() * kIoAlignment;
  return bytes <= room_bytes + unused_bytes && bytes <= room_bytes + free_chunk_bytes();
}

uint64_t HostTier::free_chunk_bytes() const {
  uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) {
    const uint64_t chunk_bytes = chunk.memory.bytes();
    if (ranges_.is_free_range(chunk.first_unit, chunk_bytes / kIoAlignment)) bytes += chunk_bytes;
  }
  return bytes;
}

Result<HostBlock> HostTier::allocate_beyond_budget(uint64_t bytes) {
  TENCACHE_CHECK(bytes > 0, "a block of 0 bytes was requested");
  if (getpid() != owner_pid_) return refused_in_child();
  MutexLock grow_lock(grow_mutex_);
  Result<HostMemory> memory = make_memory(round_up(bytes, kIoAlignment));
  if (!memory.is_ok()) return memory.status();
  char* const data = memory.value().data();
  MutexLock lock(mutex_);
  stats_.beyond_bytes += bytes;
  stats_.peak_beyond_bytes = std::max(stats_.peak_beyond_bytes, stats_.beyond_bytes);
  beyond_budget_.emplace(data, std::move(memory).value());
  return HostBlock{data, bytes, HostBlock::kBeyondBudget, false};
}

void HostTier::release_beyond_budget(const HostBlock& block) {
  // `released` outlives `lock`, so the memory is unmapped after the lock is released.
  std::map<const char*, HostMemory>::node_type released;
  MutexLock lock(mutex_);
  released = beyond_budget_.extract(block.memory);
  TENCACHE_CHECK(!released.empty(), "%p is not a block beyond the budget",
                 static_cast<const void*>(block.memory));
  stats_.beyond_bytes -= block.bytes;
}

Status HostTier::refused_in_child() const {
  return {StatusCode::kFailedPrecondition,
          "A forked process has no host tier: the memory belongs to process " +
              std::to_string(owner_pid_) + "."};
}

HostBlock HostTier::take_block(uint64_t bytes) {
  const std::optional<uint64_t> unit =
      ranges_.allocate(round_up(bytes, kIoAlignment) / kIoAlignment);
  if (!unit) return {};
  const Chunk& chunk = chunk_of(*unit);
  stats_.asked_bytes += bytes;
  stats_.peak_asked_bytes = std::max(stats_.peak_asked_bytes, stats_.asked_bytes);
  ++stats_.block_count;
  return {chunk.memory.data() + (*unit - chunk.first_unit) * kIoAlignment, bytes,
          *unit * kIoAlignment, chunk.is_pinned};
}

const HostTier::Chunk& HostTier::chunk_of(uint64_t unit) const {
  const auto behind =
      std::upper_bound(chunks_.begin(), chunks_.end(), unit,
                       [](uint64_t value, const Chunk& chunk) { return value < chunk.first_unit; });
  TENCACHE_CHECK(behind != chunks_.begin(), "unit %lu is in no chunk", unit);
  return *std::prev(behind);
}

Status HostTier::budget_exhausted(uint64_t bytes) const {
  std::string message = "The host tier has no room for " + format_bytes(bytes) + ": " +
                        format_bytes(stats_.asked_bytes) + " of its budget of " +
                        format_bytes(config_.budget_bytes) + " are in use, " +
                        format_bytes(config_.budget_bytes - stats_.chunk_bytes) +
                        " can still be mapped and the largest free piece is " +
                        format_bytes(ranges_.largest_free() * kIoAlignment) + ". " + config_.remedy;
  return {StatusCode::kNoSpace, std::move(message)};
}

// ---- Growing -------------------------------------------------------------------------------

Result<HostBlock> HostTier::grow_and_take(uint64_t bytes) {
  MutexLock grow_lock(grow_mutex_);
  const uint64_t enough_bytes = round_up(bytes, kIoAlignment);
  uint64_t wanted_bytes = 0;
  while (wanted_bytes == 0) {
    uint64_t lacking_bytes = 0;
    {
      MutexLock lock(mutex_);
      // Another thread may have grown the tier, or released a block, while this one waited.
      if (const HostBlock block = take_block(bytes); block.is_valid()) return block;
      if (!may_map(enough_bytes)) return budget_exhausted(bytes);
      const uint64_t room_bytes = config_.budget_bytes - stats_.chunk_bytes;
      lacking_bytes = enough_bytes - std::min(enough_bytes, room_bytes);
      if (lacking_bytes == 0) {
        wanted_bytes = next_chunk_bytes(enough_bytes, room_bytes);
        stats_.chunk_bytes += wanted_bytes;
      }
    }
    if (lacking_bytes > 0) trim(lacking_bytes);
  }
  Result<Chunk> chunk = make_chunk(wanted_bytes, enough_bytes);
  if (!chunk.is_ok() && may_trim(enough_bytes)) {
    trim(enough_bytes);
    chunk = make_chunk(enough_bytes, enough_bytes);
  }
  MutexLock lock(mutex_);
  stats_.chunk_bytes -= wanted_bytes;
  was_growth_refused_ = !chunk.is_ok();
  if (!chunk.is_ok()) return chunk.status();
  Chunk& made = chunk.value();
  made.first_unit = ranges_.grow_behind_border(made.memory.bytes() / kIoAlignment);
  stats_.chunk_bytes += made.memory.bytes();
  stats_.pinned_bytes += made.is_pinned ? made.memory.bytes() : 0;
  stats_.mapped_bytes.add(made.memory.bytes());
  stats_.mapped_chunks.add(1);
  chunks_.push_back(std::move(made));
  return take_block(bytes);  // nobody could take from the new chunk before
}

bool HostTier::may_trim(uint64_t bytes) const {
  MutexLock lock(mutex_);
  return free_chunk_bytes() >= bytes;
}

uint64_t HostTier::next_chunk_bytes(uint64_t block_bytes, uint64_t room_bytes) const {
  uint64_t wanted_bytes = config_.chunk_bytes;
  if (config_.first_chunk_bytes > 0) {
    wanted_bytes = std::min(wanted_bytes, std::max(config_.first_chunk_bytes, stats_.chunk_bytes));
  }
  const uint64_t most_bytes = std::min(wanted_bytes, room_bytes);
  return std::max(block_bytes, most_bytes - most_bytes % block_bytes);
}

Result<HostTier::Chunk> HostTier::make_chunk(uint64_t wanted_bytes, uint64_t enough_bytes) {
  Result<HostMemory> memory = make_memory(wanted_bytes);
  if (!memory.is_ok() && enough_bytes < wanted_bytes) memory = make_memory(enough_bytes);
  if (!memory.is_ok()) return memory.status();
  const bool is_pinned = pin(memory.value());
  return Chunk{std::move(memory).value(), 0, is_pinned};
}

Result<HostMemory> HostTier::make_memory(uint64_t bytes) {
  const uint64_t left_bytes = config_.bytes_left();
  if (left_bytes < kLeftBytesMin || bytes > left_bytes - kLeftBytesMin) {
    return Status(StatusCode::kNoSpace,
                  "The host tier cannot grow by " + format_bytes(bytes) + ": the machine or its " +
                      "container has " + format_bytes(left_bytes) + " left, of which " +
                      format_bytes(kLeftBytesMin) +
                      " are kept free. Free memory, or raise the container's limit.");
  }
  Result<HostMemory> memory = config_.memory_factory({bytes, config_.node, config_.threads});
  TENCACHE_CHECK(!memory.is_ok() || memory.value().bytes() == bytes);
  return memory;
}

bool HostTier::pin(const HostMemory& memory) {
  if (config_.pinner == nullptr) return false;
  const Status pinned = config_.pinner->pin(memory.data(), memory.bytes());
  if (!pinned.is_ok() && !refusal_is_logged_) {
    refusal_is_logged_ = true;
    TENCACHE_LOG_WARNING(
        "%s The host tier uses it as pageable memory: copies between it and the GPU go through "
        "small buffers and are slower. Raise the limit of locked memory (ulimit -l) or of the "
        "container, or lower the budget of host memory.",
        pinned.message().c_str());
  }
  return pinned.is_ok();
}

uint64_t HostTier::trim(uint64_t bytes) {
  if (getpid() != owner_pid_) return 0;
  std::vector<Chunk> gone;
  uint64_t gone_bytes = 0;
  uint64_t pinned_bytes = 0;
  {
    MutexLock lock(mutex_);
    std::vector<Chunk> left;
    for (Chunk& chunk : chunks_) {
      const uint64_t chunk_bytes = chunk.memory.bytes();
      const bool goes =
          gone_bytes < bytes && ranges_.retire(chunk.first_unit, chunk_bytes / kIoAlignment);
      gone_bytes += goes ? chunk_bytes : 0;
      pinned_bytes += goes && chunk.is_pinned ? chunk_bytes : 0;
      (goes ? gone : left).push_back(std::move(chunk));
    }
    chunks_.swap(left);
    stats_.pinned_bytes -= pinned_bytes;
    stats_.mapped_bytes.remove(gone_bytes);
    stats_.mapped_chunks.remove(gone.size());
  }
  for (const Chunk& chunk : gone) {
    if (chunk.is_pinned) config_.pinner->unpin(chunk.memory.data(), chunk.memory.bytes());
  }
  gone.clear();
  // The chunks have counted until now, so that nobody mapped others in their place too early.
  MutexLock lock(mutex_);
  stats_.chunk_bytes -= gone_bytes;
  return gone_bytes;
}

// ---- Use -----------------------------------------------------------------------------------

HostTierStats HostTier::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void HostTier::reset_peaks() {
  MutexLock lock(mutex_);
  stats_.peak_asked_bytes = stats_.asked_bytes;
  stats_.peak_beyond_bytes = stats_.beyond_bytes;
  stats_.mapped_bytes.reset_peak();
  stats_.mapped_chunks.reset_peak();
}

void HostTier::reset_totals() {
  MutexLock lock(mutex_);
  stats_.mapped_bytes.reset_totals();
  stats_.mapped_chunks.reset_totals();
}

bool HostTier::is_valid() const {
  MutexLock lock(mutex_);
  uint64_t chunk_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t next_unit = 1;  // a border stands in front of each chunk
  for (const Chunk& chunk : chunks_) {
    if (chunk.first_unit < next_unit) return false;
    chunk_bytes += chunk.memory.bytes();
    pinned_bytes += chunk.is_pinned ? chunk.memory.bytes() : 0;
    next_unit = chunk.first_unit + chunk.memory.bytes() / kIoAlignment + 1;
  }
  return ranges_.is_valid() && chunk_bytes <= stats_.chunk_bytes &&
         stats_.chunk_bytes <= config_.budget_bytes && pinned_bytes == stats_.pinned_bytes &&
         chunks_.size() == stats_.mapped_chunks.current &&
         stats_.asked_bytes <= ranges_.used() * kIoAlignment &&
         ranges_.used() * kIoAlignment <= chunk_bytes;
}

}  // namespace tencache
