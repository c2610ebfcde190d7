// SPDX-License-Identifier: Apache-2.0
//
// One seed for every randomized test. It is taken from TENCACHE_TEST_SEED when that is set, else
// from the clock, and it is printed, so that a failing run can be repeated. A generator is not
// thread-safe: each thread has its own.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace tencache {

/// The seed of this run, which the first call prints.
inline uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("TENCACHE_TEST_SEED");
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 10)
                                           : static_cast<uint64_t>(now) % 1'000'000'007;
    std::printf("TENCACHE_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

class Random {
 public:
  /// `stream` tells several generators of one test apart.
  explicit Random(uint64_t stream = 0) : generator_(test_seed() * 1'000'003 + stream) {}

  /// A generator of the same numbers in every run, for a figure that must not change from run to
  /// run.
  static Random fixed(uint64_t seed) { return Random(std::mt19937_64(seed)); }

  uint64_t next() { return generator_(); }
  /// Draws a number uniformly from [low, high].
  uint64_t between(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(generator_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(generator_); }

  /// Fills memory with random bytes, no two pages alike: a repeated random block, with fresh words
  /// in each page. (Fresh words everywhere take most of a test's time under sanitizers.) REQUIRES:
  /// bytes is a multiple of 8.
  void fill(void* memory, size_t bytes) {
    std::array<uint64_t, kBlockBytes / 8> block;
    for (uint64_t& word : block) word = generator_();
    char* const begin = static_cast<char*>(memory);
    for (size_t done = 0; done < bytes; done += kBlockBytes) {
      memcpy(begin + done, block.data(), std::min(kBlockBytes, bytes - done));
    }
    for (size_t page = 0; page < bytes; page += kPageBytes) {
      const uint64_t word = generator_();
      const size_t words = std::min(kPageBytes, bytes - page) / 8;
      memcpy(begin + page + word % words * 8, &word, 8);
    }
  }

 private:
  static constexpr size_t kBlockBytes = 1 << 16;
  static constexpr size_t kPageBytes = 4096;

  explicit Random(const std::mt19937_64& generator) : generator_(generator) {}

  std::mt19937_64 generator_;
};

template <typename T>
void shuffle(std::vector<T>& values, Random& random) {
  for (size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random.between(0, i - 1)]);
  }
}

}  // namespace tencache
