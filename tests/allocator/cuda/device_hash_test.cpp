// SPDX-License-Identifier: Apache-2.0
//
// The hash of device memory, run by the host from the text that NVRTC compiles for the device. It
// equals a plain reference for every length near the borders. It does not depend on the shape of
// the grid or the order of the blocks. Every difference changes each of its four words.
// Expectations on 32 bits fail by chance in about one run in a million.
#include "platform/cuda/device_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/units.h"
#include "support/cuda/hash_block.h"
#include "support/cuda/simulated_device_hash.h"
#include "support/random.h"

namespace tencache {
namespace {

constexpr DeviceHashSeeds kSeeds = {0x0123456789abcdef, 0xfedcba9876543210};

// Memory that begins at a multiple of 16 and ends with its last byte, so that AddressSanitizer sees
// a read beyond the end.
class Bytes {
 public:
  explicit Bytes(uint64_t bytes) : bytes_(bytes), memory_(new (std::align_val_t{16}) char[bytes]) {
    memset(memory_, 0, bytes);
  }
  ~Bytes() { ::operator delete[](memory_, std::align_val_t{16}); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  char* data() const { return memory_; }
  uint64_t size() const { return bytes_; }

 private:
  const uint64_t bytes_;
  char* const memory_;
};

// Fills the memory with words that are all different, unlike Random::fill().
void fill(const Bytes& bytes, Random& random) {
  for (uint64_t done = 0; done < bytes.size(); done += 8) {
    const uint64_t word = random.next();
    memcpy(bytes.data() + done, &word, std::min<uint64_t>(8, bytes.size() - done));
  }
}

// Hashes the blocks in the order of `order`, which names each once.
DeviceHash hash_in_order(const void* data, uint64_t bytes, const std::vector<unsigned>& order,
                         const DeviceHashSeeds& seeds = kSeeds) {
  std::vector<HashSums> sums(order.size());
  HashJob job = make_hash_job(seeds);
  job.data = static_cast<const unsigned char*>(data);
  job.bytes = bytes;
  job.sums = sums.data();
  for (const unsigned block : order) {
    run_hash_block(job, block, static_cast<unsigned>(order.size()));
  }
  return finish_hash(seeds, bytes, sums);
}

DeviceHash hash_of(const void* data, uint64_t bytes, unsigned blocks = 1,
                   const DeviceHashSeeds& seeds = kSeeds) {
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  return hash_in_order(data, bytes, order, seeds);
}

DeviceHash hash_of(const Bytes& bytes) { return hash_of(bytes.data(), bytes.size()); }

// ---- A plain reference ---------------------------------------------------------------------

// Computes Philox as in the paper, one word after another.
std::vector<uint32_t> reference_philox(std::vector<uint32_t> counter, uint64_t key) {
  auto low = static_cast<uint32_t>(key);
  auto high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ low, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ high, static_cast<uint32_t>(product0)};
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return counter;
}

std::vector<uint32_t> reference_keys(const DeviceHashSeeds& seeds, uint64_t index, uint32_t kind) {
  return reference_philox(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(seeds.second) ^ kind, static_cast<uint32_t>(seeds.second >> 32)},
      seeds.first);
}

uint64_t reference_term(uint64_t value, const std::vector<uint32_t>& keys) {
  const uint64_t key0 = (uint64_t{keys[1]} << 32) + keys[0];
  const uint64_t key1 = (uint64_t{keys[3]} << 32) + keys[2];
  return key0 * (value & 0xffffffff) + key1 * (value >> 32);
}

// Computes the four words of the hash by its definition: pads the memory with zeros and walks over
// all words of all strips.
DeviceHash reference_hash(const char* data, uint64_t bytes, const DeviceHashSeeds& seeds) {
  std::vector<uint32_t> strip_keys;
  for (uint64_t index = 0; index < 34; ++index) {
    for (const uint32_t key : reference_keys(seeds, index, 4)) strip_keys.push_back(key);
  }
  const uint64_t chunk_count = (bytes + 65535) / 65536;
  std::vector<uint32_t> words(chunk_count * 65536 / 4);
  if (bytes > 0) memcpy(words.data(), data, bytes);
  uint32_t result[4];
  for (uint32_t pass = 0; pass < 4; ++pass) {
    const std::vector<uint32_t> constant = reference_keys(seeds, pass, 6);
    uint64_t sum = constant[0] + (uint64_t{constant[1]} << 32);
    sum += reference_term(bytes, reference_keys(seeds, pass, 5));
    for (uint64_t strip = 0; strip < chunk_count * 128; ++strip) {
      const uint64_t first = strip / 128 * 65536 / 4 + strip % 128 * 4;
      if (first * 4 >= bytes) continue;
      uint64_t product = 0;
      for (uint64_t row = 0; row < 32; ++row) {
        for (uint64_t pair = 0; pair < 2; ++pair) {
          const uint64_t word = first + row * 128 * 4 + pair * 2;
          const uint64_t key = row * 4 + pair * 2 + pass * 2;
          const uint32_t left = words[word] + strip_keys[key];
          const uint32_t right = words[word + 1] + strip_keys[key + 1];
          product += uint64_t{left} * right;
        }
      }
      sum += reference_term(product, reference_keys(seeds, strip, pass));
    }
    result[pass] = static_cast<uint32_t>(sum >> 32);
  }
  return {result[0] | uint64_t{result[1]} << 32, result[2] | uint64_t{result[3]} << 32};
}

// ---- Its value -----------------------------------------------------------------------------

// The known answers that come with Random123.
TEST(DeviceHashTest, KeysAreThoseOfPhilox) {
  const struct {
    HashWord128 counter;
    HashWord64 key;
    HashWord128 answer;
  } known[] = {
      {{{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       0xffffffffffffffff,
       {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0x299f31d0a4093822,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const auto& [counter, key, answer] : known) {
    const HashWord128 keys = philox(counter, key);
    for (int word = 0; word < 4; ++word) EXPECT_EQ(keys.word[word], answer.word[word]);
  }
}

// The simulated driver runs the fast version instead of the kernel.
TEST(DeviceHashTest, TheFastOneEqualsTheKernelInEveryBlock) {
  Random random;
  const Bytes all(7 * kHashChunkBytes);
  fill(all, random);
  memset(all.data() + kHashChunkBytes, 0xFF, kHashChunkBytes);  // sums that overflow
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{kHashChunkBytes} - 1, uint64_t{kHashChunkBytes},
        uint64_t{kHashChunkBytes} + 17, 6 * uint64_t{kHashChunkBytes} + 12345, all.size()}) {
    HashJob job = make_hash_job({random.between(0, UINT64_MAX), random.between(0, UINT64_MAX)});
    const Bytes bytes(length);
    if (length > 0) memcpy(bytes.data(), all.data(), length);
    job.data = reinterpret_cast<const unsigned char*>(bytes.data());
    job.bytes = length;
    for (const unsigned blocks : {1u, 3u, 9u}) {
      std::vector<HashSums> expected(blocks);
      std::vector<HashSums> sums(blocks);
      for (unsigned block = 0; block < blocks; ++block) {
        job.sums = expected.data();
        run_hash_block(job, block, blocks);
        job.sums = sums.data();
        run_hash_block_fast(job, block, blocks);
      }
      EXPECT_EQ(memcmp(sums.data(), expected.data(), blocks * sizeof(HashSums)), 0)
          << length << " bytes in " << blocks << " blocks";
    }
  }
}

TEST(DeviceHashTest, EqualsThePlainReferenceAtEveryLength) {
  Random random;
  std::vector<uint64_t> lengths;
  for (uint64_t length = 0; length <= 70; ++length) lengths.push_back(length);
  for (const uint64_t border : {uint64_t{2048}, uint64_t{65536}, uint64_t{131072}}) {
    for (uint64_t length = border - 33; length <= border + 33; ++length) lengths.push_back(length);
  }
  lengths.push_back(500 * 1000);
  Bytes all(500 * 1000);
  fill(all, random);
  for (const uint64_t length : lengths) {
    Bytes bytes(length);
    if (length > 0)
      memcpy(bytes.data(), all.data() + random.between(0, 400), length - length / 400);
    const DeviceHashSeeds seeds = {random.between(0, UINT64_MAX), random.between(0, UINT64_MAX)};
    EXPECT_EQ(hash_of(bytes.data(), length, 2, seeds), reference_hash(bytes.data(), length, seeds))
        << length << " bytes";
  }
}

TEST(DeviceHashTest, DependsOnNoShapeOfTheGridAndNoOrderOfBlocks) {
  Random random;
  Bytes bytes(20 * kHashChunkBytes + 1234);
  fill(bytes, random);
  const DeviceHash expected = hash_of(bytes);
  EXPECT_EQ(hash_of(bytes), expected);
  for (const unsigned blocks : {2u, 3u, 7u, 20u, 21u, 22u, 64u}) {
    std::vector<unsigned> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    for (size_t index = order.size() - 1; index > 0; --index) {
      std::swap(order[index], order[random.between(0, index)]);
    }
    EXPECT_EQ(hash_in_order(bytes.data(), bytes.size(), order), expected) << blocks << " blocks";
  }
}

TEST(DeviceHashTest, ChunksOfALengthAreCounted) {
  EXPECT_EQ(hash_chunk_count(0), 1u);
  EXPECT_EQ(hash_chunk_count(1), 1u);
  EXPECT_EQ(hash_chunk_count(kHashChunkBytes), 1u);
  EXPECT_EQ(hash_chunk_count(kHashChunkBytes + 1), 2u);
  EXPECT_EQ(hash_chunk_count(UINT64_MAX), UINT64_MAX / kHashChunkBytes + 1);
}

// ---- Changes -------------------------------------------------------------------------------

// Expects that none of the four passes takes one content for the other.
void expect_all_words_differ(const DeviceHash& left, const DeviceHash& right) {
  EXPECT_NE(static_cast<uint32_t>(left.low), static_cast<uint32_t>(right.low));
  EXPECT_NE(left.low >> 32, right.low >> 32);
  EXPECT_NE(static_cast<uint32_t>(left.high), static_cast<uint32_t>(right.high));
  EXPECT_NE(left.high >> 32, right.high >> 32);
}

TEST(DeviceHashTest, EveryBitChangesEveryWordOfIt) {
  Random random;
  Bytes bytes(kHashChunkBytes + 3000);
  fill(bytes, random);
  const DeviceHash before = hash_of(bytes);
  for (int round = 0; round < 500; ++round) {
    const uint64_t at = random.between(0, bytes.size() - 1);
    const auto bit = static_cast<char>(1 << random.between(0, 7));
    bytes.data()[at] = static_cast<char>(bytes.data()[at] ^ bit);
    SCOPED_TRACE("byte " + std::to_string(at));
    expect_all_words_differ(hash_of(bytes), before);
    bytes.data()[at] = static_cast<char>(bytes.data()[at] ^ bit);
  }
  EXPECT_EQ(hash_of(bytes), before);
}

TEST(DeviceHashTest, AChangeOfOneBitChangesHalfOfTheHash) {
  Random random;
  Bytes bytes(4096);
  constexpr int kRounds = 1000;
  int changed_bits = 0;
  for (int round = 0; round < kRounds; ++round) {
    fill(bytes, random);
    const DeviceHash before = hash_of(bytes);
    const uint64_t at = random.between(0, bytes.size() - 1);
    bytes.data()[at] = static_cast<char>(bytes.data()[at] ^ 1);
    const DeviceHash after = hash_of(bytes);
    changed_bits += __builtin_popcountll(before.low ^ after.low) +
                    __builtin_popcountll(before.high ^ after.high);
  }
  // 64 of 128 bits change, with a standard deviation of 5.7 / sqrt(1000) over the rounds.
  EXPECT_NEAR(changed_bits / double{kRounds}, 64, 1.5);
}

TEST(DeviceHashTest, PositionMatters) {
  Random random;
  Bytes bytes(3 * kHashChunkBytes);
  fill(bytes, random);
  const DeviceHash before = hash_of(bytes);
  // Neighbours, words of one strip, the same place in two chunks, and random places.
  std::vector<std::pair<uint64_t, uint64_t>> places = {
      {0, 16}, {0, 2048}, {2048, 4096}, {0, kHashChunkBytes}, {kHashChunkBytes, 131072}};
  for (int round = 0; round < 200; ++round) {
    places.emplace_back(random.between(0, bytes.size() / 16 - 1) * 16,
                        random.between(0, bytes.size() / 16 - 1) * 16);
  }
  for (const auto& [left, right] : places) {
    if (left == right) continue;
    SCOPED_TRACE(std::to_string(left) + " and " + std::to_string(right));
    std::swap_ranges(bytes.data() + left, bytes.data() + left + 16, bytes.data() + right);
    expect_all_words_differ(hash_of(bytes), before);
    std::swap_ranges(bytes.data() + left, bytes.data() + left + 16, bytes.data() + right);
  }
  // Swap the words of a product, and the products of one word of the strip.
  for (const auto& [left, right] : {std::pair(0, 4), std::pair(0, 8), std::pair(4, 12)}) {
    std::swap_ranges(bytes.data() + left, bytes.data() + left + 4, bytes.data() + right);
    expect_all_words_differ(hash_of(bytes), before);
    std::swap_ranges(bytes.data() + left, bytes.data() + left + 4, bytes.data() + right);
  }
  // Move whole chunks.
  std::rotate(bytes.data(), bytes.data() + kHashChunkBytes, bytes.data() + bytes.size());
  expect_all_words_differ(hash_of(bytes), before);
}

// A content of zeros differs from a shorter one by its length.
TEST(DeviceHashTest, TheLengthIsPartOfIt) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  size_t count = 0;
  Bytes zeros(2 * kHashChunkBytes);
  for (const uint64_t border : {uint64_t{80}, uint64_t{2048}, uint64_t{65536}, uint64_t{131024}}) {
    for (uint64_t length = border - 48; length <= border + 48; ++length) {
      const DeviceHash hash = hash_of(zeros.data(), length);
      seen.emplace(hash.low, hash.high);
      ++count;
    }
  }
  const DeviceHash none = hash_of(nullptr, 0);
  seen.emplace(none.low, none.high);
  EXPECT_EQ(seen.size(), count + 1);
}

TEST(DeviceHashTest, SeedsChangeIt) {
  Bytes bytes(100);
  memset(bytes.data(), 7, bytes.size());
  const DeviceHash before = hash_of(bytes);
  expect_all_words_differ(hash_of(bytes.data(), 100, 1, {kSeeds.first + 1, kSeeds.second}), before);
  expect_all_words_differ(hash_of(bytes.data(), 100, 1, {kSeeds.first, kSeeds.second + 8}), before);
  const Result<DeviceHashSeeds> first = draw_hash_seeds();
  const Result<DeviceHashSeeds> second = draw_hash_seeds();
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  EXPECT_NE(first.value().first, second.value().first);
  EXPECT_NE(first.value().second, second.value().second);
}

// Contents that differ little and in a regular way collide no more often than by chance, as seen in
// 20 bits of each word, where some 8 pairs of 4096 hashes do.
TEST(DeviceHashTest, RegularContentsCollideAsOftenAsChance) {
  constexpr uint32_t kContents = 4096;
  std::vector<std::vector<uint32_t>> seen(4);
  Bytes bytes(4096);
  for (uint32_t content = 0; content < kContents; ++content) {
    memcpy(bytes.data() + 2048, &content, sizeof content);
    const DeviceHash hash = hash_of(bytes);
    seen[0].push_back(static_cast<uint32_t>(hash.low) >> 12);
    seen[1].push_back(static_cast<uint32_t>(hash.low >> 44));
    seen[2].push_back(static_cast<uint32_t>(hash.high) >> 12);
    seen[3].push_back(static_cast<uint32_t>(hash.high >> 44));
  }
  for (std::vector<uint32_t>& word : seen) {
    ASSERT_EQ(word.size(), kContents);
    std::sort(word.begin(), word.end());
    const auto distinct = std::unique(word.begin(), word.end()) - word.begin();
    EXPECT_GE(distinct, kContents - 30);
  }
}

TEST(DeviceHashTest, TheTextForTheDeviceIsTheOneThatTheHostCompiles) {
  const std::string text = device_hash_kernel_text();
  EXPECT_NE(text.find("SPDX-License-Identifier"), std::string::npos);
  EXPECT_NE(text.find(std::string(kDeviceHashKernelName) + "("), std::string::npos);
  EXPECT_EQ(text.find("#include"), std::string::npos) << "NVRTC finds no headers";
}

}  // namespace
}  // namespace tencache
