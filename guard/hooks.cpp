// SPDX-License-Identifier: Apache-2.0
#include "hooks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace tencache::guard {
namespace {

std::atomic<const tencache_guard_hooks*> g_hooks = nullptr;

}  // namespace

const tencache_guard_hooks* installed_hooks() { return g_hooks.load(std::memory_order_acquire); }

void Addresses::add_words(const void* bytes, size_t count, size_t place, uint32_t mode) {
  const auto* begin = static_cast<const char*>(bytes);
  const size_t first = (sizeof(uintptr_t) - place % sizeof(uintptr_t)) % sizeof(uintptr_t);
  for (size_t at = first; at + sizeof(uintptr_t) <= count; at += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, begin + at, sizeof word);
    add(word, mode);
  }
}

void Addresses::append(const tencache_access& access) {
  if (count_ == capacity_) {
    auto larger = std::make_unique<tencache_access[]>(2 * capacity_);
    std::copy_n(data(), count_, larger.get());
    more_ = std::move(larger);
    capacity_ *= 2;
  }
  (more_ != nullptr ? more_.get() : some_.data())[count_++] = access;
}

}  // namespace tencache::guard

void tencache_guard_install(const tencache_guard_hooks* hooks) {
  tencache::guard::g_hooks.store(hooks, std::memory_order_release);
}
