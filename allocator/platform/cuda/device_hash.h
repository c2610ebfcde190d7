// SPDX-License-Identifier: Apache-2.0
//
// DeviceHash: 128 bits that stand for the contents of device memory, by position and length. Two
// ranges of the same hash hold the same bytes (but for a chance of 2^-124, see below). So it proves
// that a clean copy on the device equals what was copied out of it, before the copy is dropped. The
// device makes the sums (platform/cuda/device_hash_kernel.h); this file has the host's part.
//
// The hash is four independent passes of 32 bits, each in two levels:
//   1. NH over the 512 bytes of a strip. Each pass shifts the keys by one pair of words (Toeplitz).
//      Two strips that differ have equal products in k given passes with a probability of at most
//      2^-32k (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC: Fast and secure message
//      authentication. CRYPTO 1999).
//   2. Multilinear over the products of all strips, as words of 32 bits with keys of 64, and the
//      length, and a constant. The upper 32 bits of the sum modulo 2^64 are equal for different
//      words with a probability of 2^-32 (Lemire, Kaser: Strongly universal string hashing is fast.
//      The Computer Journal 57, 2014).
// So two different contents have the same hash with a probability of at most (2^-32 + 2^-32)^4 =
// 2^-124, if the contents were chosen without knowledge of the keys and the keys are random. The
// keys come from Philox4x32-10 under two seeds that each process draws anew, so no contents collide
// in every process. The hash is not for signatures: it is not cryptographic.
//
// Plain values and pure functions. Threads: any.
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

/// The seeds of the keys. Hashes can be compared if they were made with the same seeds.
struct DeviceHashSeeds {
  uint64_t first = 0;
  uint64_t second = 0;
};

/// Draws fresh seeds from the kernel. Returns kUnavailable where it gives none.
Result<DeviceHashSeeds> draw_hash_seeds();

/// The kernel's parameter, without the range to hash and the place of the sums.
HashJob make_hash_job(const DeviceHashSeeds& seeds);

/// The number of blocks that have work for this many bytes. It is at least one.
uint64_t hash_chunk_count(uint64_t bytes);

/// Finishes the hash from the sums that the blocks of one launch have written.
DeviceHash finish_hash(const DeviceHashSeeds& seeds, uint64_t bytes,
                       std::span<const HashSums> blocks);

/// The kernel's source, which is the text of device_hash_kernel.h, and the kernel's name in it, for
/// NVRTC.
const char* device_hash_kernel_text();
inline constexpr char kDeviceHashKernelName[] = "tencache_device_hash";

}  // namespace tencache
