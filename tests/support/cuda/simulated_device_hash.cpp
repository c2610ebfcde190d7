// SPDX-License-Identifier: Apache-2.0
//
// The hash kernel, which does whole chunks by AVX2. A chunk is a matrix of words of 16 bytes, with
// a row for each word of a strip and a column for each lane. One vector of 32 bytes holds two
// lanes; their four sums of products for each pass stay in the nearest cache from row to row. Only
// the AVX2 part is compiled for AVX2, and only on x86-64. Included functions have external linkage,
// so the includes come before that part.
#include "support/cuda/simulated_device_hash.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/racy_access.h"
#include "support/cuda/hash_block.h"
#include "support/cuda/simulated_modules.h"

namespace tencache {
namespace {

HashJob hash_job_of(const SimulatedLaunch& launch) {
  HashJob job = {};
  memcpy(&job, launch.values.at(0).data(), sizeof job);
  return job;
}

#if defined(__x86_64__)

constexpr unsigned kRowBytes = kHashLanes * 16;
// The number of rows added to the sums of a lane while these are in registers.
constexpr unsigned kRowsAtOnce = 8;
constexpr int kPhiloxRounds = 10;
static_assert(kHashStripWords % kRowsAtOnce == 0 && kHashLanes % 4 == 0);

// The products of a chunk: two for each lane and pass, still to be added.
struct alignas(32) ChunkProducts {
  uint64_t pass[kHashPasses][kHashLanes * 2];
};

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

__m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

void store(void* to, __m256i vector) { _mm256_storeu_si256(static_cast<__m256i*>(to), vector); }

// Multiplies the lower halves of the 64-bit words.
__m256i multiply(__m256i first, __m256i second) { return _mm256_mul_epu32(first, second); }

__m256i upper_halves(__m256i words) { return _mm256_srli_epi64(words, 32); }

__m256i all_words(uint64_t word) { return _mm256_set1_epi64x(static_cast<long long>(word)); }

// Does add_word() for all lanes of some rows.
void add_rows(const HashJob& job, const unsigned char* chunk, unsigned first_row,
              ChunkProducts& products) {
  __m256i keys[kRowsAtOnce][kHashPasses];
  for (unsigned row = 0; row < kRowsAtOnce; ++row) {
    for (unsigned pass = 0; pass < kHashPasses; ++pass) {
      const HashWord32* const own = job.strip_keys + (first_row + row) * 4 + pass * 2;
      keys[row][pass] =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(own)));
    }
  }
  for (unsigned lane = 0; lane < kHashLanes; lane += 2) {
    __m256i sums[kHashPasses];
    for (unsigned pass = 0; pass < kHashPasses; ++pass) {
      sums[pass] = load(&products.pass[pass][lane * 2]);
    }
    for (unsigned row = 0; row < kRowsAtOnce; ++row) {
      const __m256i words = load(chunk + (first_row + row) * kRowBytes + lane * 16);
      for (unsigned pass = 0; pass < kHashPasses; ++pass) {
        const __m256i keyed = _mm256_add_epi32(words, keys[row][pass]);
        sums[pass] = _mm256_add_epi64(sums[pass], multiply(keyed, upper_halves(keyed)));
      }
    }
    for (unsigned pass = 0; pass < kHashPasses; ++pass) {
      store(&products.pass[pass][lane * 2], sums[pass]);
    }
  }
}

// Multiplies 64-bit keys, given by their halves, by 32-bit factors.
__m256i times(__m256i low, __m256i high, __m256i factors) {
  return _mm256_add_epi64(multiply(low, factors), _mm256_slli_epi64(multiply(high, factors), 32));
}

// The keys of Philox's rounds.
struct RoundKeys {
  __m256i low[kPhiloxRounds];
  __m256i high[kPhiloxRounds];
};

RoundKeys round_keys(uint64_t key) {
  RoundKeys keys;
  auto low = static_cast<uint32_t>(key);
  auto high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.low[round] = all_words(low);
    keys.high[round] = all_words(high);
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return keys;
}

// Returns hash_term(value, hash_keys(seeds, index, kind)) for four values and their indices.
// multiply() does not look at the upper halves of the counters, so they hold anything.
__m256i terms_of(const RoundKeys& keys, uint64_t second_seed, unsigned kind, __m256i values,
                 __m256i indices) {
  __m256i counter[4] = {indices, upper_halves(indices),
                        all_words(static_cast<uint32_t>(second_seed) ^ kind),
                        all_words(second_seed >> 32)};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const __m256i first = multiply(all_words(0xD2511F53u), counter[0]);
    const __m256i second = multiply(all_words(0xCD9E8D57u), counter[2]);
    counter[0] =
        _mm256_xor_si256(_mm256_xor_si256(upper_halves(second), counter[1]), keys.low[round]);
    counter[1] = second;
    counter[2] =
        _mm256_xor_si256(_mm256_xor_si256(upper_halves(first), counter[3]), keys.high[round]);
    counter[3] = first;
  }
  return _mm256_add_epi64(times(counter[0], counter[1], values),
                          times(counter[2], counter[3], upper_halves(values)));
}

// Adds what add_strip() adds for all lanes of a whole chunk.
void add_chunk(const HashJob& job, uint64_t chunk, HashSums& sums) {
  ChunkProducts products = {};
  const unsigned char* const data = job.data + chunk * kHashChunkBytes;
  for (unsigned row = 0; row < kHashStripWords; row += kRowsAtOnce) {
    add_rows(job, data, row, products);
  }
  const RoundKeys keys = round_keys(job.seeds[0]);
  for (unsigned pass = 0; pass < kHashPasses; ++pass) {
    __m256i terms = _mm256_setzero_si256();
    for (unsigned lane = 0; lane < kHashLanes; lane += 4) {
      // Each vector holds two lanes: their values come out in the order of lanes 0, 2, 1 and 3.
      const __m256i first = load(&products.pass[pass][lane * 2]);
      const __m256i second = load(&products.pass[pass][lane * 2 + 4]);
      const __m256i values = _mm256_add_epi64(_mm256_unpacklo_epi64(first, second),
                                              _mm256_unpackhi_epi64(first, second));
      const __m256i indices =
          _mm256_add_epi64(all_words(chunk * kHashLanes + lane), _mm256_set_epi64x(3, 1, 2, 0));
      terms = _mm256_add_epi64(terms, terms_of(keys, job.seeds[1], pass, values, indices));
    }
    uint64_t words[4];
    store(words, terms);
    sums.pass[pass] += words[0] + words[1] + words[2] + words[3];
  }
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

// Does the same as run_hash_block(), with AVX2 for whole chunks.
void run_hash_block_avx2(const HashJob& job, unsigned block, unsigned blocks) {
  HashSums sums = {};
  for (uint64_t chunk = block; chunk * kHashChunkBytes < job.bytes; chunk += blocks) {
    if ((chunk + 1) * kHashChunkBytes <= job.bytes) {
      add_chunk(job, chunk, sums);
    } else {
      for (unsigned lane = 0; lane < kHashLanes; ++lane) add_strip(job, chunk, lane, sums);
    }
  }
  job.sums[block] = sums;
}

#endif  // defined(__x86_64__)

}  // namespace

void run_hash_block_fast(const HashJob& job, unsigned block, unsigned blocks) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    run_hash_block_avx2(job, block, blocks);
    return;
  }
#endif
  run_hash_block(job, block, blocks);
}

void add_hash_kernel(SimulatedDriver& driver, bool reads_may_race) {
  driver.add_kernel(
      kDeviceHashKernelName,
      {.parameter_bytes = {sizeof(HashJob)},
       .ranges =
           [](const SimulatedLaunch& launch) {
             const HashJob job = hash_job_of(launch);
             return SimulatedKernel::Ranges{
                 {{reinterpret_cast<CUdeviceptr>(job.data), job.bytes, false}},
                 {{reinterpret_cast<CUdeviceptr>(job.sums), launch.blocks * sizeof(HashSums)}},
                 {}};
           },
       .run =
           [reads_may_race](const SimulatedLaunch& launch) {
             std::optional<RacyReads> racy;
             if (reads_may_race) racy.emplace();
             TENCACHE_CHECK(launch.threads == kHashLanes, "%u threads", launch.threads);
             const HashJob job = hash_job_of(launch);
             for (unsigned block = 0; block < launch.blocks; ++block) {
               run_hash_block_fast(job, block, launch.blocks);
             }
           }});
}

}  // namespace tencache
