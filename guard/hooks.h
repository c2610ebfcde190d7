// SPDX-License-Identifier: Apache-2.0
//
// The hooks that the core has installed, and the addresses of a driver call that are passed to
// them. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "abi/tencache_guard.h"

namespace tencache::guard {

/// The hooks; null until there is a core that uses a GPU.
const tencache_guard_hooks* installed_hooks();

/// The addresses in watched memory that one call may use. They are candidates; the core looks them
/// up.
class Addresses {
 public:
  explicit Addresses(const tencache_arena& watched) : watched_(watched) {}
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  void add(uintptr_t address, uint32_t mode) {
    if (address - watched_.base < watched_.bytes) [[unlikely]]
      append({reinterpret_cast<const void*>(address), mode});
  }
  /// Adds every aligned word of `count` bytes; `place` is where the first byte lies in its block.
  /// An argument passed by value may hold addresses among other things, so each word counts as one.
  void add_words(const void* bytes, size_t count, size_t place, uint32_t mode);

  const tencache_access* data() const { return more_ != nullptr ? more_.get() : some_.data(); }
  uint32_t count() const { return count_; }

 private:
  // Room for an ordinary kernel's addresses. A kernel for lists of tensors may have hundreds.
  static constexpr size_t kSome = 64;

  void append(const tencache_access& access);

  const tencache_arena watched_;
  uint32_t count_ = 0;
  size_t capacity_ = kSome;
  std::array<tencache_access, kSome> some_;
  std::unique_ptr<tencache_access[]> more_;
};

}  // namespace tencache::guard
