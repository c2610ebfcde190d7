// SPDX-License-Identifier: Apache-2.0
//
// The kernel that hashes device memory. NVRTC compiles this very file for the GPU at run time, so
// it includes nothing; the host's compiler compiles it for the suites and the simulated driver.
// device_hash.h defines the hash; its finish_hash() makes it from the partial sums of the blocks.
//
// Layout: the bytes are cut into chunks of 64 KiB; a block of 128 lanes takes one chunk a turn. A
// lane's strip is 32 words of 16 bytes, 2 KiB apart, so that neighbours read neighbouring words. A
// block takes every gridDim-th chunk and writes four sums. Sums of integers modulo 2^64 do not
// depend on the order, so the total does not depend on the shape of the grid.
//
// Cost: by its instructions, the inner loop takes eight multiplications and sixteen additions of 32
// bits for each 16 bytes, and reads the keys straight from the constant bank of the kernel's
// parameters. An SM of a GPU with 4 TB/s has time for some 90 instructions for each 16 bytes, so
// memory is the limit. A hash of this kind ran at 98% of the speed of a plain read on an H200
// (benchmarks/gpu/README.md, E6).
#pragma once

#ifdef __CUDACC_RTC__
#define TENCACHE_ON_DEVICE __device__ __forceinline__
#define TENCACHE_UNROLLED _Pragma("unroll")
#define TENCACHE_MAY_ALIAS
#else
#define TENCACHE_ON_DEVICE inline
#define TENCACHE_UNROLLED
#define TENCACHE_MAY_ALIAS [[gnu::may_alias]]
#endif

namespace tencache {

using HashWord32 = unsigned int;
using HashWord64 = unsigned long long;

constexpr unsigned kHashLanes = 128;      // threads of a block
constexpr unsigned kHashStripWords = 32;  // of 16 bytes, of one lane in one chunk
constexpr unsigned kHashPasses = 4;       // independent hashes of 32 bits each
constexpr unsigned kHashChunkBytes = kHashLanes * kHashStripWords * 16;
// Each pass uses the keys of the one before, shifted by one pair (Toeplitz).
constexpr unsigned kHashStripKeys = kHashStripWords * 4 + (kHashPasses - 1) * 2;

struct HashSums {
  HashWord64 pass[kHashPasses];
};

/// The only parameter of the kernel. `data` is aligned to 16 bytes; `sums` has a place for each
/// block and may be host memory.
struct HashJob {
  const unsigned char* data;
  HashWord64 bytes;
  HashSums* sums;
  HashWord64 seeds[2];
  HashWord32 strip_keys[kHashStripKeys];
};

struct alignas(16) TENCACHE_MAY_ALIAS HashWord128 {
  HashWord32 word[4];
};

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3. SC 2011):
// the four words of one counter under a key of 64 bits.
TENCACHE_ON_DEVICE HashWord128 philox(HashWord128 counter, HashWord64 key) {
  HashWord32 low_key = static_cast<HashWord32>(key);
  HashWord32 high_key = static_cast<HashWord32>(key >> 32);
  TENCACHE_UNROLLED
  for (int round = 0; round < 10; ++round) {
    const HashWord64 first = static_cast<HashWord64>(0xD2511F53u) * counter.word[0];
    const HashWord64 second = static_cast<HashWord64>(0xCD9E8D57u) * counter.word[2];
    counter = {{static_cast<HashWord32>(second >> 32) ^ counter.word[1] ^ low_key,
                static_cast<HashWord32>(second),
                static_cast<HashWord32>(first >> 32) ^ counter.word[3] ^ high_key,
                static_cast<HashWord32>(first)}};
    low_key += 0x9E3779B9u;
    high_key += 0xBB67AE85u;
  }
  return counter;
}

// Four words of key: number `index` of the keys of kind `kind`.
TENCACHE_ON_DEVICE HashWord128 hash_keys(const HashWord64 (&seeds)[2], HashWord64 index,
                                         HashWord32 kind) {
  const HashWord128 counter = {
      {static_cast<HashWord32>(index), static_cast<HashWord32>(index >> 32),
       static_cast<HashWord32>(seeds[1]) ^ kind, static_cast<HashWord32>(seeds[1] >> 32)}};
  return philox(counter, seeds[0]);
}

// Multilinear: the term of a 64-bit value in a sum, under the keys of its position.
TENCACHE_ON_DEVICE HashWord64 hash_term(HashWord64 value, const HashWord128& keys) {
  const HashWord64 low_key = keys.word[0] | static_cast<HashWord64>(keys.word[1]) << 32;
  const HashWord64 high_key = keys.word[2] | static_cast<HashWord64>(keys.word[3]) << 32;
  return low_key * static_cast<HashWord32>(value) + high_key * (value >> 32);
}

// NH: adds one word of a strip to the products of all passes.
TENCACHE_ON_DEVICE void add_word(HashSums& products, const HashWord128& word,
                                 const HashWord32* keys) {
  TENCACHE_UNROLLED
  for (HashWord64 pass = 0; pass < kHashPasses; ++pass) {
    const HashWord32* const own = keys + pass * 2;
    products.pass[pass] += static_cast<HashWord64>(word.word[0] + own[0]) * (word.word[1] + own[1]);
    products.pass[pass] += static_cast<HashWord64>(word.word[2] + own[2]) * (word.word[3] + own[3]);
  }
}

// The word at `offset`; bytes behind the end read as zero.
TENCACHE_ON_DEVICE HashWord128 load_at_end(const HashJob& job, HashWord64 offset) {
  HashWord128 word = {{0, 0, 0, 0}};
  if (offset >= job.bytes) return word;
  const HashWord64 left = job.bytes - offset;
  if (left >= 16) return *reinterpret_cast<const HashWord128*>(job.data + offset);
  TENCACHE_UNROLLED
  for (unsigned byte = 0; byte < 16; ++byte) {
    if (byte < left) {
      word.word[byte / 4] |= static_cast<HashWord32>(job.data[offset + byte]) << (byte % 4 * 8);
    }
  }
  return word;
}

// Adds one lane's strip of one chunk to the sums.
TENCACHE_ON_DEVICE void add_strip(const HashJob& job, HashWord64 chunk, unsigned lane,
                                  HashSums& sums) {
  const HashWord64 begin = chunk * kHashChunkBytes + lane * HashWord64{16};
  if (begin >= job.bytes) return;
  HashSums products = {{0, 0, 0, 0}};
  if ((chunk + 1) * kHashChunkBytes <= job.bytes) {
    const HashWord128* const words = reinterpret_cast<const HashWord128*>(job.data + begin);
    TENCACHE_UNROLLED
    for (HashWord64 index = 0; index < kHashStripWords; ++index) {
      add_word(products, words[index * kHashLanes], job.strip_keys + index * 4);
    }
  } else {
    for (HashWord64 index = 0; index < kHashStripWords; ++index) {
      add_word(products, load_at_end(job, begin + index * kHashLanes * 16),
               job.strip_keys + index * 4);
    }
  }
  TENCACHE_UNROLLED
  for (unsigned pass = 0; pass < kHashPasses; ++pass) {
    // The kind is the pass.
    const HashWord128 keys = hash_keys(job.seeds, chunk * kHashLanes + lane, pass);
    sums.pass[pass] += hash_term(products.pass[pass], keys);
  }
}

// The sums of one lane of block number `block` of `blocks`.
TENCACHE_ON_DEVICE HashSums sum_lane(const HashJob& job, unsigned block, unsigned blocks,
                                     unsigned lane) {
  HashSums sums = {{0, 0, 0, 0}};
  const HashWord64 chunks = (job.bytes + kHashChunkBytes - 1) / kHashChunkBytes;
  for (HashWord64 chunk = block; chunk < chunks; chunk += blocks) {
    add_strip(job, chunk, lane, sums);
  }
  return sums;
}

// One step of adding up the lanes of a block: the lower half adds the upper half to itself.
TENCACHE_ON_DEVICE void fold_lanes(HashSums* lanes, unsigned lane, unsigned half) {
  if (lane >= half) return;
  TENCACHE_UNROLLED
  for (unsigned pass = 0; pass < kHashPasses; ++pass) {
    lanes[lane].pass[pass] += lanes[lane + half].pass[pass];
  }
}

}  // namespace tencache

#ifdef __CUDACC_RTC__

extern "C" __global__ void __launch_bounds__(tencache::kHashLanes)
    tencache_device_hash(const __grid_constant__ tencache::HashJob job) {
  __shared__ tencache::HashSums lanes[tencache::kHashLanes];
  lanes[threadIdx.x] = tencache::sum_lane(job, blockIdx.x, gridDim.x, threadIdx.x);
  for (unsigned half = tencache::kHashLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    tencache::fold_lanes(lanes, threadIdx.x, half);
  }
  if (threadIdx.x == 0) job.sums[blockIdx.x] = lanes[0];
}

#endif
