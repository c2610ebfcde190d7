// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/device_hash.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "platform/cuda/device_hash_kernel_text.h"

namespace tencache {
namespace {

// Kinds of keys after those of the passes, which are 0 to 3. A kind changes three bits of the
// counter, so no two kinds share a counter.
constexpr HashWord32 kStripKeyKind = 4;
constexpr HashWord32 kLengthKeyKind = 5;
constexpr HashWord32 kConstantKeyKind = 6;
static_assert(kHashPasses == 4 && sizeof(HashSums) == 32);

uint32_t upper_half(HashWord64 sum) { return static_cast<uint32_t>(sum >> 32); }

}  // namespace

Result<DeviceHashSeeds> draw_hash_seeds() {
  DeviceHashSeeds seeds;
  // getrandom() gives so few bytes completely or not at all.
  if (getrandom(&seeds, sizeof seeds, 0) == static_cast<ssize_t>(sizeof seeds)) return seeds;
  return Status(
      StatusCode::kUnavailable,
      status_from_errno(errno, "Cannot get random numbers for hashing from the kernel").message());
}

HashJob make_hash_job(const DeviceHashSeeds& seeds) {
  HashJob job = {};
  job.seeds[0] = seeds.first;
  job.seeds[1] = seeds.second;
  for (unsigned index = 0; index < kHashStripKeys; ++index) {
    job.strip_keys[index] = hash_keys(job.seeds, index / 4, kStripKeyKind).word[index % 4];
  }
  return job;
}

uint64_t hash_chunk_count(uint64_t bytes) {
  const uint64_t chunks = bytes / kHashChunkBytes + (bytes % kHashChunkBytes != 0 ? 1 : 0);
  return std::max<uint64_t>(chunks, 1);
}

DeviceHash finish_hash(const DeviceHashSeeds& seeds, uint64_t bytes,
                       std::span<const HashSums> blocks) {
  const HashWord64 words[2] = {seeds.first, seeds.second};
  HashSums total = {};
  for (unsigned pass = 0; pass < kHashPasses; ++pass) {
    const HashWord128 constant = hash_keys(words, pass, kConstantKeyKind);
    total.pass[pass] = constant.word[0] | static_cast<HashWord64>(constant.word[1]) << 32;
    total.pass[pass] += hash_term(bytes, hash_keys(words, pass, kLengthKeyKind));
    for (const HashSums& sums : blocks) total.pass[pass] += sums.pass[pass];
  }
  return {upper_half(total.pass[0]) | uint64_t{upper_half(total.pass[1])} << 32,
          upper_half(total.pass[2]) | uint64_t{upper_half(total.pass[3])} << 32};
}

const char* device_hash_kernel_text() { return kDeviceHashKernelText; }

}  // namespace tencache
