// SPDX-License-Identifier: Apache-2.0
//
// One seed for every randomized test: taken from TENCACHE_TEST_SEED when that is set, else from the
// clock, and printed, so that a failing run can be repeated. Not thread-safe: one generator a
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace tencache {

/// The seed of this run; printed when it is first asked for.
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
  /// `stream` tells apart several generators of one test.
  explicit Random(uint64_t stream = 0) : generator_(test_seed() * 1'000'003 + stream) {}

  uint64_t next() { return generator_(); }
  /// Uniform in [low, high].
  uint64_t between(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(generator_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(generator_); }

  /// Fills memory with bytes that do not compress or repeat. REQUIRES: bytes is a multiple of 8.
  void fill(void* memory, size_t bytes) {
    auto* words = static_cast<uint64_t*>(memory);
    for (size_t i = 0; i < bytes / 8; ++i) words[i] = generator_();
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace tencache
