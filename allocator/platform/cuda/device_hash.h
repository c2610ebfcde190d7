// SPDX-License-Identifier: Apache-2.0
//
// DeviceHash: 128 bits that stand for the contents of device memory, by position and length. Two
// ranges of the same hash hold the same bytes: that is how a clean copy on the device is proved to
// equal what was copied out of it before it is dropped. The sums are made on the device
// (platform/cuda/device_hash_kernel.h); what the host adds is here.
//
// The hash is four independent passes of 32 bits, each in two levels:
//   1. NH over the 512 bytes of a strip, the keys of the passes moved on by one pair of words
//      (Toeplitz): two strips that differ have equal products in k given passes with a probability
//      of at most 2^-32k (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC: Fast and secure message
//      authentication. CRYPTO 1999).
//   2. Multilinear over the products of all strips, as words of 32 bits with keys of 64, and the
//      length, and a constant: of the sum modulo 2^64 the upper 32 bits are equal for different
//      words with a probability of 2^-32 (Lemire, Kaser: Strongly universal string hashing is fast.
//      The Computer Journal 57, 2014).
// So two different contents have the same hash with a probability of at most (2^-32 + 2^-32)^4 =
// 2^-124, for contents that were chosen without knowledge of the keys, as far as the keys are
// random. They come from Philox4x32-10 under two seeds that each process draws anew, so there are
// no contents that collide in every process. Not for signatures: it is not cryptographic.
//
// Plain values and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "platform/cuda/device_hash_kernel.h"

namespace tencache {

struct DeviceHash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const DeviceHash&, const DeviceHash&) = default;
};

/// Hashes can be compared when they were made with the same seeds.
struct DeviceHashSeeds {
  uint64_t first = 0;
  uint64_t second = 0;
};

/// Fresh ones from the kernel. kUnavailable where it gives none.
Result<DeviceHashSeeds> draw_hash_seeds();

/// The kernel's parameter but for what is hashed and where the sums go.
HashJob make_hash_job(const DeviceHashSeeds& seeds);

/// How many blocks have something to do for so many bytes; one at least.
uint64_t hash_chunk_count(uint64_t bytes);

/// The hash, from what the blocks of one launch have written.
DeviceHash finish_hash(const DeviceHashSeeds& seeds, uint64_t bytes,
                       std::span<const HashSums> blocks);

/// The kernel's source, for NVRTC: the text of device_hash_kernel.h.
const char* device_hash_kernel_text();
inline constexpr char kDeviceHashKernelName[] = "tencache_device_hash";

}  // namespace tencache
