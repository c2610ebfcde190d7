// SPDX-License-Identifier: Apache-2.0
//
// TestEngine: a whole allocator with small figures, spilling into a TestDirectory of its own, and
// helpers for tests, which name extents, evict one of them and look at its state. The arena is
// small enough for sanitizers, extents begin at one page, and the budget is so large that the
// evictor sleeps unless a test lowers it. GateScope opens and closes the gate as an op would.
// Threads: as Engine; make and destroy it on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sanitizers.h"
#include "base/units.h"
#include "engine/cpu_device.h"
#include "engine/engine.h"
#include "engine/parts.h"
#include "support/faulty_channel.h"
#include "support/test_directory.h"

namespace tencache {

/// What a test may change of the engine and of the device below it.
struct CpuEngineConfig : EngineConfig, CpuDeviceConfig {};

class TestEngine {
 public:
  static constexpr uint64_t kArenaBytes = 8 * kGiB;
  static constexpr uint64_t kBudgetBytes = kGiB;
  static constexpr uint64_t kDiskBytes = kGiB;

  using Adjust = std::function<void(CpuEngineConfig&)>;

  /// Aborts when the engine cannot be made. `adjust` may change the configuration before that.
  explicit TestEngine(const Adjust& adjust = {});
  ~TestEngine();

  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }
  CpuDevice& device() { return *device_; }

  /// Allocates; a failure ends the process.
  char* allocate(uint64_t bytes);
  void free(void* address) { engine_->free(address); }
  Extent* extent(const void* address) const { return engine_->heap().find(address); }
  ExtentState state(const void* address) const { return extent(address)->state(); }

  /// Runs an op that reads (or writes) the extents.
  void use(std::initializer_list<const void*> addresses, AccessMode mode = AccessMode::kRead);
  /// Allocates this many extents with the patterns 0, 1, ..., each written by an op, in this order.
  std::vector<char*> written(uint64_t count, uint64_t bytes);
  /// Makes this one extent cold. Returns false when it stayed resident.
  bool evict(const void* address);
  bool is_cold(const void* address) const { return state(address) == ExtentState::kCold; }
  bool is_resident(const void* address) const { return state(address) == ExtentState::kResident; }

  uint64_t read(const Counter& counter) const { return counter.load(); }
  Stats& stats() { return engine_->stats(); }

  /// Returns an empty string when the books agree: the budget with the extents, the disk tier with
  /// their slots, the heap with itself. Waits for migrations under way. REQUIRES: no other thread
  /// uses the engine.
  std::string check_books(uint64_t small_bytes = 0);

 private:
  std::string check_books_once(uint64_t small_bytes);

  std::optional<TestDirectory> directory_;  // unless `adjust` chose one
  std::unique_ptr<Engine> engine_;
  CpuDevice* device_ = nullptr;  // the engine's
};

/// The parts for a gate over the engine's memory that records and counts for itself; a test adds
/// the timers.
Parts gate_parts(TestEngine& engine, Recorder& recorder, Stats& stats);

/// An op that is open while the object lives.
class GateScope {
 public:
  GateScope(TestEngine& engine, std::initializer_list<const void*> addresses,
            AccessMode mode = AccessMode::kRead, uint32_t op = 0);
  GateScope(TestEngine& engine, const std::vector<Access>& accesses, uint32_t op = 0);
  ~GateScope() { engine_->gate().close(); }
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;

 private:
  Engine* engine_;
};

/// Writes a recognisable pattern: every 8 bytes hold a number made of seed and place.
void fill_pattern(char* memory, uint64_t bytes, uint64_t seed);
/// The first offset at which memory differs from the pattern, or `bytes`.
uint64_t first_difference(const char* memory, uint64_t bytes, uint64_t seed);
inline bool has_pattern(const char* memory, uint64_t bytes, uint64_t seed) {
  return first_difference(memory, bytes, seed) == bytes;
}

}  // namespace tencache
