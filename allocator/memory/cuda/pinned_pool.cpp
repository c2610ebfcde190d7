// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/pinned_pool.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "platform/cuda/driver_use.h"

namespace tencache {

PinnedPool::~PinnedPool() {
  if (!may_call_driver()) return;
  while (poll(Patience::kForOneStream)) {
  }
  MutexLock lock(mutex_);
  TENCACHE_CHECK(live_.empty(), "%zu blocks of pinned memory are still in use", live_.size());
  for (const auto& [number, blocks] : kept_) {
    for (const auto& [bytes, block] : blocks) tier_.release(block);
  }
}

// ---- Allocating ----------------------------------------------------------------------------

Result<void*> PinnedPool::allocate(uint64_t bytes, uint64_t private_pool) {
  if (!may_call_driver()) [[unlikely]] {
    return driver_use_status();
  }
  HostBlock block = private_pool == 0 ? tier_.take(bytes) : take_kept(private_pool, bytes);
  if (!block.is_valid()) [[unlikely]] {
    TENCACHE_RETURN_IF_ERROR(allocate_slow(bytes).move_to(&block));
  }
  MutexLock lock(mutex_);
  live_.emplace(reinterpret_cast<uintptr_t>(block.memory), Live{block, private_pool, {}});
  figures_.bytes.add(block.bytes);
  figures_.blocks.add(1);
  return static_cast<void*>(block.memory);
}

// Takes what was freed in the private pool, else some of the memory that is mapped already.
HostBlock PinnedPool::take_kept(uint64_t private_pool, uint64_t bytes) {
  TENCACHE_CHECK(bytes > 0, "a block of 0 bytes was requested");
  {
    MutexLock lock(mutex_);
    const auto kept = kept_.find(private_pool);
    TENCACHE_CHECK(kept != kept_.end(), "there is no private pool %lu", private_pool);
    const auto found = kept->second.find(bytes);
    if (found != kept->second.end()) {
      const HostBlock block = found->second;
      kept->second.erase(found);
      figures_.kept_bytes -= bytes;
      return block;
    }
  }
  return tier_.take(bytes);
}

TENCACHE_SLOW Result<HostBlock> PinnedPool::allocate_slow(uint64_t bytes) {
  // 1. Blocks that wait may be free by now.
  if (poll(Patience::kForThreads)) {
    if (const HostBlock block = tier_.take(bytes); block.is_valid()) return block;
  }
  // 2. Map more memory.
  Result<HostBlock> made = tier_.allocate(bytes);
  if (made.is_ok()) return made;
  // 3. No more can be had: wait for streams to be done.
  while (bytes <= tier_.budget_bytes() && poll(Patience::kForOneStream)) {
    if (const HostBlock block = tier_.take(bytes); block.is_valid()) return block;
  }
  return refusal(bytes, made.status());
}

Status PinnedPool::refusal(uint64_t bytes, const Status& reason) const {
  const PinnedFigures now = figures();
  std::string message = "Pinned memory: out of memory. " + format_bytes(bytes) +
                        " were asked for, and the program has " + format_bytes(now.bytes.current);
  if (now.waiting_bytes > 0) {
    message += ", of which " + format_bytes(now.waiting_bytes) +
               " are freed but used by streams that cannot be waited for";
  }
  if (now.kept_bytes > 0) {
    message += "; CUDA graphs keep another " + format_bytes(now.kept_bytes);
  }
  return {StatusCode::kOutOfMemory, message + ". " + reason.message()};
}

// ---- Blocks of the program -----------------------------------------------------------------

PinnedPool::LiveBlocks::const_iterator PinnedPool::find(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto behind = live_.upper_bound(at);
  if (behind == live_.begin()) return live_.end();
  const auto found = std::prev(behind);
  return at - found->first < found->second.block.bytes ? found : live_.end();
}

bool PinnedPool::contains(const void* address) const {
  if (!may_call_driver()) return false;
  MutexLock lock(mutex_);
  return find(address) != live_.end();
}

bool PinnedPool::note_use(const void* address, StreamNumbers& gpu, CUstream stream) {
  if (!may_call_driver()) return false;
  const StreamSet streams = gpu.set_of(stream);
  MutexLock lock(mutex_);
  const auto found = find(address);
  if (found == live_.end()) return false;
  StreamUses& uses = live_.find(found->first)->second.uses;
  const auto known = std::ranges::find(uses, &gpu, &StreamUse::gpu);
  if (known == uses.end()) {
    uses.push_back({&gpu, streams});
  } else {
    known->streams |= streams;
  }
  return true;
}

void PinnedPool::count_out(const HostBlock& block) {
  figures_.bytes.remove(block.bytes);
  figures_.blocks.remove(1);
}

void PinnedPool::free(void* address) {
  if (address == nullptr || !may_call_driver()) return;
  Live freed;
  {
    MutexLock lock(mutex_);
    const auto found = live_.find(reinterpret_cast<uintptr_t>(address));
    TENCACHE_CHECK(found != live_.end(),
                   "%p is freed, but no pinned memory in use begins there: freed twice?", address);
    freed = std::move(found->second);
    live_.erase(found);
    const auto kept = kept_.find(freed.private_pool);
    if (kept != kept_.end()) {
      kept->second.emplace(freed.uses.empty() ? freed.block.bytes : 0, freed.block);
      figures_.kept_bytes += freed.block.bytes;
      count_out(freed.block);
      return;
    }
    if (freed.uses.empty()) [[likely]] {
      count_out(freed.block);
    }
  }
  if (freed.uses.empty()) [[likely]] {
    tier_.release(freed.block);
  } else {
    wait_for(std::move(freed));
  }
}

// ---- What waits for streams ----------------------------------------------------------------

TENCACHE_SLOW void PinnedPool::wait_for(Live&& freed) {
  {
    MutexLock lock(mutex_);
    figures_.waiting_bytes += freed.block.bytes;
    ++figures_.waiting_count;
  }
  if (waiting_.add(freed.block, std::move(freed.uses))) poll(Patience::kNone);
}

bool PinnedPool::poll(Patience patience) {
  if (!may_call_driver()) return false;
  return waiting_.poll(patience, [this](const std::vector<HostBlock>& over) { release(over); });
}

void PinnedPool::release(const std::vector<HostBlock>& over) {
  for (const HostBlock& block : over) tier_.release(block);
  MutexLock lock(mutex_);
  for (const HostBlock& block : over) {
    count_out(block);
    figures_.waiting_bytes -= block.bytes;
    --figures_.waiting_count;
  }
}

// ---- Private pools and figures -------------------------------------------------------------

uint64_t PinnedPool::make_private_pool() {
  MutexLock lock(mutex_);
  kept_.try_emplace(++last_private_pool_);
  return last_private_pool_;
}

void PinnedPool::drop_private_pool(uint64_t number) {
  if (!may_call_driver()) return;
  Kept blocks;
  {
    MutexLock lock(mutex_);
    const auto found = kept_.find(number);
    TENCACHE_CHECK(found != kept_.end(), "there is no private pool %lu", number);
    blocks.swap(found->second);
    kept_.erase(found);
    for (const auto& [bytes, block] : blocks) figures_.kept_bytes -= block.bytes;
  }
  for (const auto& [bytes, block] : blocks) tier_.release(block);
}

void PinnedPool::trim() {
  if (!may_call_driver()) return;
  poll();
  tier_.trim();
}

PinnedFigures PinnedPool::figures() const {
  MutexLock lock(mutex_);
  return figures_;
}

void PinnedPool::reset(void (UseCount::*what)()) {
  MutexLock lock(mutex_);
  (figures_.bytes.*what)();
  (figures_.blocks.*what)();
}

std::vector<PinnedView> PinnedPool::blocks() const {
  std::vector<PinnedView> views;
  const auto add = [&](const HostBlock& block, uint64_t private_pool, BlockState state) {
    views.push_back({block.memory, block.bytes, private_pool, state});
  };
  MutexLock lock(mutex_);
  for (const auto& [address, live] : live_) add(live.block, live.private_pool, BlockState::kActive);
  waiting_.visit([&](const HostBlock& block) { add(block, 0, BlockState::kWaiting); });
  for (const auto& [number, blocks] : kept_) {
    for (const auto& [bytes, block] : blocks) add(block, number, BlockState::kFree);
  }
  return views;
}

}  // namespace tencache
