// SPDX-License-Identifier: Apache-2.0
//
// The hooks that the core has installed, and the addresses that a call of the driver names, on
// their way there. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "abi/tencache_guard.h"

namespace tencache::guard {

/// Null as long as there is no core, or none that uses a GPU.
const tencache_guard_hooks* installed_hooks();

/// What one call may use, of the memory that is watched: candidates, which the core looks up.
class Addresses {
 public:
  explicit Addresses(const tencache_arena& watched) : watched_(watched) {}
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  void add(uintptr_t address, uint32_t mode) {
    if (address - watched_.base < watched_.bytes) [[unlikely]]
      append({reinterpret_cast<const void*>(address), mode});
  }
  /// Every aligned word of so many bytes, whose first has this place in its block. What a kernel
  /// gets by value may hold addresses among other things, so each word is taken for one.
  void add_words(const void* bytes, size_t count, size_t place, uint32_t mode);

  const tencache_access* data() const { return more_ != nullptr ? more_.get() : some_.data(); }
  uint32_t count() const { return count_; }

 private:
  // Holds those of an ordinary kernel. A kernel that takes lists has up to some hundred.
  static constexpr size_t kSome = 64;

  void append(const tencache_access& access);

  const tencache_arena watched_;
  uint32_t count_ = 0;
  size_t capacity_ = kSome;
  std::array<tencache_access, kSome> some_;
  std::unique_ptr<tencache_access[]> more_;
};

}  // namespace tencache::guard
