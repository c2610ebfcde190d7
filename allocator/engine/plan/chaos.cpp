// SPDX-License-Identifier: Apache-2.0
#include "engine/plan/chaos.h"

#include "base/stats.h"
#include "engine/plan/evictor.h"

namespace tencache {
namespace {

// splitmix64: one number of a sequence, by its index, so that several threads draw from one
// sequence without a lock.
double uniform_draw(uint64_t seed, uint64_t index) {
  uint64_t value = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  value ^= value >> 31;
  return static_cast<double>(value >> 11) * 0x1.0p-53;
}

}  // namespace

void Chaos::on_outermost_close() {
  const uint64_t draw = draws_.fetch_add(1, std::memory_order_relaxed);
  if (uniform_draw(config_.seed, draw) >= config_.probability) return;
  if (parts_.hooks->before_pass) parts_.hooks->before_pass();
  add(parts_.stats->chaos_evictions, parts_.evictor->evict_all());
}

}  // namespace tencache
