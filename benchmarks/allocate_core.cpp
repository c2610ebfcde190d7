// SPDX-License-Identifier: Apache-2.0
//
// What does it cost to allocate a block that was freed before, and to free it again? The program
// measures that below PyTorch, through the C ABI, against the posix_memalign that stock PyTorch
// calls, so that Python's microsecond does not hide the difference. "untouched" is the pair alone;
// "touched" also writes a byte to each page in between, which costs an allocator that gave its
// pages back.
//
// The names are <allocator>/<touched or not>/<bytes>; benchmarks/allocate.py runs this program with
// interleaved repetitions and makes the table. There is one thread. The budget exceeds all
// allocations, and no arm callback is set, so nothing is evicted.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "abi/tencache.h"

namespace {

constexpr size_t kAlignment = 64;  // c10::gAlignment
constexpr size_t kPageBytes = 4096;
constexpr size_t kSizes[] = {64, 4 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20, 1 << 30};

void start_once() {
  static const bool is_started = [] {
    tencache_error error;
    if (tencache_set_option("device_memory", "64GiB", &error) != TENCACHE_OK ||
        tencache_set_option("quiet", "on", &error) != TENCACHE_OK ||
        tencache_start(&error) != TENCACHE_OK) {
      std::fprintf(stderr, "%s\n", error.message);
      std::exit(1);
    }
    return true;
  }();
  benchmark::DoNotOptimize(is_started);
}

struct Tencache {
  static constexpr const char* kName = "tencache";
  static void* allocate(size_t bytes) {
    tencache_error error;
    return tencache_allocate(bytes, &error);
  }
  static void free(void* address) { tencache_free(address); }
};

struct Stock {
  static constexpr const char* kName = "stock";
  static void* allocate(size_t bytes) {
    void* address = nullptr;
    return posix_memalign(&address, kAlignment, bytes) == 0 ? address : nullptr;
  }
  static void free(void* address) { std::free(address); }
};

void touch_pages(volatile char* address, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += kPageBytes) address[offset] = 1;
}

template <typename Allocator>
void touch_pages_and_free(size_t bytes) {
  auto* address = static_cast<char*>(Allocator::allocate(bytes));
  if (address != nullptr) touch_pages(address, bytes);
  Allocator::free(address);
}

template <typename Allocator, bool kTouch>
void allocate_and_free(benchmark::State& state) {
  start_once();
  const auto bytes = static_cast<size_t>(state.range(0));
  // Blocks must have been freed before, so free one first, with pages behind it.
  touch_pages_and_free<Allocator>(bytes);
  for ([[maybe_unused]] auto iteration : state) {
    auto* address = static_cast<volatile char*>(Allocator::allocate(bytes));
    if (address == nullptr) {
      state.SkipWithError("no memory");
      break;
    }
    if constexpr (kTouch) touch_pages(address, bytes);
    benchmark::DoNotOptimize(address);
    Allocator::free(const_cast<char*>(address));
  }
}

template <typename Allocator, bool kTouch>
void add() {
  const std::string name = std::string(Allocator::kName) + (kTouch ? "/touched" : "/untouched");
  auto* benchmark =
      benchmark::RegisterBenchmark(name.c_str(), allocate_and_free<Allocator, kTouch>);
  for (const size_t bytes : kSizes) benchmark->Arg(static_cast<int64_t>(bytes));
}

const bool kAreAdded = [] {
  add<Stock, false>();
  add<Tencache, false>();
  add<Stock, true>();
  add<Tencache, true>();
  return true;
}();

}  // namespace
