// SPDX-License-Identifier: Apache-2.0
//
// Engines: all engines of the process, used as one. They are the cpu backend's, or those of the
// GPUs that the process has opened (usually one). An op that passes the gate of the process passes
// the gate of every engine, and each engine handles the extents in its own memory. An op queues its
// work on a GPU's current stream, which the host program names.
//
// Invariants
// 1. An op has the same number in every engine. Names are registered everywhere in one order, and a
//    GPU that is opened later first gets all earlier names.
// 2. An open op is closed on exactly the engines on which it was opened. Engines may be added while
//    threads have ops open, so each thread knows for each engine at which depth it was first told
//    of an op (Note [Depth] in the source).
// 3. Extents that an op names on a capturing stream stay resident from then on: the graph is
//    replayed where no gate sees it. So do those on the per-thread default stream, because no
//    eviction could wait for it.
//
// Threads: any. mutex_ is held only for bookkeeping, for registering names, and while the process
// forks. remove() is for tests.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/engine.h"

namespace tencache {

struct EngineEntry {
  static constexpr int kHost = -1;

  int ordinal = 0;  // of the GPU; kHost on the cpu backend
  Engine* engine = nullptr;
};

/// The holds of one request: one for each engine that has something to hold.
struct EngineHolds {
  std::vector<std::pair<Engine*, Hold*>> holds;
};

class Engines {
 public:
  static constexpr size_t kEnginesMax = 16;
  using CurrentStream = void* (*)(int ordinal);

  Engines() = default;
  Engines(const Engines&) = delete;
  Engines& operator=(const Engines&) = delete;

  /// Sets the function that tells on which stream a GPU's ops queue their work. Until then that is
  /// the default stream.
  void set_current_stream(CurrentStream current_stream) { current_stream_.store(current_stream); }

  /// Adds an engine. Fails with kFailedPrecondition if there are too many.
  Status add(const EngineEntry& entry) TENCACHE_EXCLUDES(mutex_);
  /// REQUIRES: no op is open, and no thread passes the gate meanwhile.
  void remove(const Engine* engine) TENCACHE_EXCLUDES(mutex_);
  /// The open engines, in the order in which they were opened.
  std::vector<EngineEntry> all() const;
  /// How many engines were added, and each of them. An engine that was removed is null. When the
  /// last one goes, the count begins anew.
  size_t count() const { return count_.load(std::memory_order_acquire); }
  Engine* engine_at(size_t index) const { return entries_[index].engine; }

  uint32_t register_op(std::string_view name) TENCACHE_EXCLUDES(mutex_);
  void open(uint32_t op, std::span<const Access> accesses);
  void close();
  /// How many ops this thread has open.
  static uint32_t depth();
  /// Returns null if there is nothing to hold. Extents that stay resident by invariant 3 need no
  /// hold.
  EngineHolds* hold(std::span<const Access> accesses, bool and_inner);
  static void unhold(EngineHolds* hold);
  void keep_resident(std::span<const Access> accesses) const;
  std::optional<int> exchange_capture_mode(int mode) const;
  void on_step() const;
  /// Calls Engine::expect() of every engine.
  void expect(std::span<const Access> accesses) const;
  /// Calls Engine::admit() of every engine, up to the first that refuses.
  Status admit(std::span<const Access> accesses) const;
  /// Returns null if no engine has an extent with this address.
  Extent* find(const void* address) const;
  /// Whether the gate of any engine must be told of ops.
  bool is_armed() const;
  uint64_t evict_all() const;
  /// Gives the cached memory of all engines back and returns how many bytes that was.
  uint64_t empty_caches() const;
  /// Peaks begin anew with what is used now.
  void reset_peaks() const;

 private:
  void* stream_of(const EngineEntry& entry) const;
  void open_on_gpu(const EngineEntry& entry, uint32_t op, std::span<const Access> accesses);

  std::atomic<CurrentStream> current_stream_{nullptr};
  // add() writes an entry before it raises count_. remove() sets the entry's engine to null, and
  // count_ to 0 when no engine is left.
  std::array<EngineEntry, kEnginesMax> entries_;
  std::atomic<size_t> count_{0};

  Mutex& mutex_ = Engine::fork_mutex();
  std::vector<std::string> names_ TENCACHE_GUARDED_BY(mutex_);  // in the order of their numbers
  std::unordered_map<std::string, uint32_t> numbers_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
