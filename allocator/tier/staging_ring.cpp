// SPDX-License-Identifier: Apache-2.0
#include "tier/staging_ring.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "tier/io_channel.h"

namespace tencache {

Result<std::unique_ptr<StagingRing>> StagingRing::create(const StagingRingConfig& config) {
  TENCACHE_CHECK(config.buffer_count > 0);
  TENCACHE_CHECK(config.buffer_bytes > 0);
  StagingRingConfig rounded = config;
  rounded.buffer_bytes = round_up(config.buffer_bytes, kIoAlignment);
  const uint64_t bytes = rounded.buffer_bytes * rounded.buffer_count;
  Result<HostMemory> memory = HostMemory::map({bytes, config.node, 1});
  if (!memory.is_ok()) return memory.status();
  std::string pin_refusal = "There is no device to pin memory for.";
  if (config.pinner != nullptr) {
    pin_refusal = config.pinner->pin(memory.value().data(), bytes).message();
    if (!pin_refusal.empty()) {
      TENCACHE_LOG_WARNING("%s Copies go through pageable buffers, at a fraction of the speed.",
                           pin_refusal.c_str());
    }
  }
  return std::unique_ptr<StagingRing>(
      new StagingRing(std::move(memory).value(), rounded, std::move(pin_refusal)));
}

StagingRing::StagingRing(HostMemory memory, const StagingRingConfig& config,
                         std::string pin_refusal)
    : memory_(std::move(memory)),
      config_(config),
      pin_refusal_(std::move(pin_refusal)),
      owner_pid_(getpid()) {
  for (unsigned i = config_.buffer_count; i > 0; --i) {
    free_.push_back(memory_.data() + (i - 1) * config_.buffer_bytes);
  }
}

StagingRing::~StagingRing() {
  if (getpid() != owner_pid_) return;
  TENCACHE_DCHECK(free_.size() == config_.buffer_count, "%zu of %u buffers are free", free_.size(),
                  config_.buffer_count);
  if (is_pinned()) config_.pinner->unpin(memory_.data(), memory_.bytes());
}

StagingBuffer StagingRing::take_free() {
  char* const memory = free_.back();
  free_.pop_back();
  return {memory, config_.buffer_bytes};
}

StagingBuffer StagingRing::acquire() {
  MutexLock lock(mutex_);
  while (free_.empty()) released_.wait(mutex_);
  return take_free();
}

std::optional<StagingBuffer> StagingRing::try_acquire() {
  MutexLock lock(mutex_);
  if (free_.empty()) return std::nullopt;
  return take_free();
}

void StagingRing::release(const StagingBuffer& buffer) {
  const auto offset = static_cast<uint64_t>(buffer.memory - memory_.data());
  TENCACHE_CHECK(offset < memory_.bytes() && offset % config_.buffer_bytes == 0,
                 "%p is not a buffer of this ring", static_cast<const void*>(buffer.memory));
  MutexLock lock(mutex_);
  TENCACHE_CHECK(std::find(free_.begin(), free_.end(), buffer.memory) == free_.end(),
                 "buffer %p released twice", static_cast<const void*>(buffer.memory));
  free_.push_back(buffer.memory);
  released_.notify_one();
}

}  // namespace tencache
