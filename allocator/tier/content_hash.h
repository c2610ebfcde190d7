// SPDX-License-Identifier: Apache-2.0
//
// The content hash of an extent: XXH3, 128 bits (about 25 GB/s a core, not cryptographic). One
// value serves two ends: it is the checksum of a slot's bytes, and it proves that an extent still
// equals its slot, so that the extent can be dropped without a write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tencache {

struct ContentHash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const ContentHash&, const ContentHash&) = default;
};

/// Computes the hash of bytes that are fed piece by piece, in order. A hasher is movable but not
/// copyable, and belongs to one thread.
class ContentHasher {
 public:
  ContentHasher();

  void append(const void* data, size_t bytes);
  ContentHash finish() const;

 private:
  struct FreeState {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, FreeState> state_;  // XXH3_state_t, 64-byte aligned
};

}  // namespace tencache
