// SPDX-License-Identifier: Apache-2.0
//
// The content hash against the reference code of xxHash, with every kernel and every way of feeding
// it.
#include "tier/content_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "support/content_hash.h"
#include "support/random.h"
#include "tier/content_hash_kernels.h"
#include "tier/io_channel.h"

namespace tencache {
namespace {

ContentHash reference_hash(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.low64, hash.high64};
}

std::vector<char> random_bytes(size_t bytes, uint64_t stream) {
  std::vector<char> data((bytes + 7) / 8 * 8);
  Random(stream).fill(data.data(), data.size());
  data.resize(bytes);
  return data;
}

TEST(ContentHashTest, IsXxh3) {
  // The published value of XXH3-128 for no input, seed 0.
  EXPECT_EQ(content_hash("", 0), (ContentHash{0x6001c324468d497f, 0x99aa06d3014798d8}));
}

TEST(ContentHashTest, EqualsTheReferenceAtAllSizes) {
  const std::vector<char> data = random_bytes(3 << 20, 1);
  std::vector<size_t> sizes;
  for (size_t size = 0; size < 600; ++size) sizes.push_back(size);
  for (size_t size = 1024; size < data.size(); size = size * 3 / 2 + 1) sizes.push_back(size);
  sizes.push_back(data.size());
  for (const size_t size : sizes) {
    ASSERT_EQ(content_hash(data.data(), size), reference_hash(data.data(), size)) << size;
  }
}

TEST(ContentHashTest, PiecesGiveTheHashOfTheWhole) {
  const std::vector<char> data = random_bytes((9 << 20) + 4096, 2);
  ContentHasher hasher;
  for (size_t done = 0; done < data.size(); done += kPieceBytes) {
    hasher.append(data.data() + done, std::min(kPieceBytes, data.size() - done));
  }
  EXPECT_EQ(hasher.finish(), content_hash(data.data(), data.size()));
}

TEST(ContentHashTest, RandomPiecesGiveTheHashOfTheWhole) {
  Random random(3);
  const std::vector<char> data = random_bytes(1 << 20, 4);
  for (int round = 0; round < 50; ++round) {
    ContentHasher hasher;
    size_t done = 0;
    while (done < data.size()) {
      const size_t bytes = std::min<size_t>(data.size() - done, random.between(0, 100'000));
      hasher.append(data.data() + done, bytes);
      done += bytes;
      ASSERT_EQ(hasher.finish(), content_hash(data.data(), done)) << "finish() must not end it";
    }
  }
}

TEST(ContentHashTest, EveryBitCounts) {
  std::vector<char> data = random_bytes(8192, 5);
  const ContentHash before = content_hash(data.data(), data.size());
  for (size_t bit = 0; bit < data.size() * 8; bit += 37) {
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
    ASSERT_NE(content_hash(data.data(), data.size()), before) << bit;
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT_EQ(content_hash(data.data(), data.size()), before);
}

TEST(ContentHashTest, MovesItsState) {
  const std::vector<char> data = random_bytes(5000, 6);
  ContentHasher first;
  first.append(data.data(), 2000);
  ContentHasher second(std::move(first));
  second.append(data.data() + 2000, 1000);
  ContentHasher third;
  third.append("other", 5);
  third = std::move(second);
  third.append(data.data() + 3000, 2000);
  EXPECT_EQ(third.finish(), content_hash(data.data(), data.size()));
}

TEST(ContentHashDeathTest, RefusesAMovedFromHasher) {
  ContentHasher first;
  const ContentHasher second(std::move(first));
  EXPECT_DEATH(first.append("x", 1), "moved from");  // NOLINT(bugprone-use-after-move)
}

#if defined(__x86_64__)
TEST(ContentHashTest, Avx2EqualsTheBaseline) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  const std::vector<char> data = random_bytes(1 << 20, 7);
  for (size_t size = 0; size < data.size(); size = size * 5 / 4 + 1) {
    XXH3_state_t state = {};
    XXH3_128bits_reset(&state);
    append_by_avx2(&state, data.data(), size);
    const XXH128_hash_t hash = XXH3_128bits_digest(&state);
    ASSERT_EQ((ContentHash{hash.low64, hash.high64}), reference_hash(data.data(), size)) << size;
  }
}
#endif

}  // namespace
}  // namespace tencache
