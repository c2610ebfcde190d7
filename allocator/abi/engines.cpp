// SPDX-License-Identifier: Apache-2.0
//
// Note [Depth]: each thread counts the ops that it has open, and keeps for each engine the depth
// of the outermost one that this engine was told of. An engine that is added while two ops are open
// is told of the third: its depth is 2, and it is not told of the ends of the first two. When the
// thread falls below that depth, the depth falls with it, so the engine is told of the next op. An
// open op thus costs no memory, however deep ops are nested, and the common case is a comparison.
#include "abi/engines.h"

#include <algorithm>
#include <memory>

#include "abi/tencache_guard.h"
#include "base/check.h"

namespace tencache {
namespace {

struct ThreadDepth {
  uint32_t depth = 0;
  uint32_t known_count = 0;  // how many engines have a first depth
  std::array<uint32_t, Engines::kEnginesMax> first_depth = {};
};

// How deep the calling thread's ops are nested (Note [Depth]). Each op looks at this twice.
// Initial-exec saves a call for each look. The library has few bytes of thread-local memory, for
// which glibc keeps room.
__attribute__((tls_model("initial-exec"))) thread_local constinit ThreadDepth t_depth;

// Records that one more op is open on this thread, and how many engines are told of it.
void note_open(size_t engine_count) {
  ThreadDepth& thread = t_depth;
  while (thread.known_count < engine_count) {
    thread.first_depth[thread.known_count++] = thread.depth;
  }
  ++thread.depth;
}

bool names_something(Engine& engine, std::span<const Access> accesses) {
  return std::ranges::any_of(accesses, [&](const Access& access) {
    return engine.heap().find(access.address) != nullptr;
  });
}

}  // namespace

Status Engines::add(const EngineEntry& entry) {
  MutexLock lock(mutex_);
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == kEnginesMax) {
    return {StatusCode::kFailedPrecondition,
            "A process can use at most " + std::to_string(kEnginesMax) +
                " GPUs under tencache; start one process for each GPU."};
  }
  for (const std::string& name : names_) entry.engine->recorder().register_op(name);
  entries_.at(count) = entry;
  count_.store(count + 1, std::memory_order_release);
  return Status::ok();
}

void Engines::remove(const Engine* engine) {
  MutexLock lock(mutex_);
  bool is_empty = true;
  for (EngineEntry& entry : entries_) {
    if (entry.engine == engine) entry = {};
    is_empty &= entry.engine == nullptr;
  }
  if (is_empty) count_.store(0, std::memory_order_release);
}

std::vector<EngineEntry> Engines::all() const {
  std::vector<EngineEntry> open;
  for (size_t index = 0; index < count(); ++index) {
    if (entries_.at(index).engine != nullptr) open.push_back(entries_.at(index));
  }
  return open;
}

uint32_t Engines::register_op(std::string_view name) {
  MutexLock lock(mutex_);
  const auto [entry, is_new] = numbers_.try_emplace(std::string(name), 0);
  if (is_new) {
    names_.emplace_back(name);
    entry->second = static_cast<uint32_t>(names_.size());
    for (const EngineEntry& entry : all()) {
      // In a forked child the engine is passive: the recorder's lock may have been held at the
      // fork.
      if (!entry.engine->is_passive()) entry.engine->recorder().register_op(name);
    }
  }
  return entry->second;
}

void* Engines::stream_of(const EngineEntry& entry) const {
  if (entry.ordinal == EngineEntry::kHost) return nullptr;
  const CurrentStream current_stream = current_stream_.load(std::memory_order_relaxed);
  return current_stream != nullptr ? current_stream(entry.ordinal) : nullptr;
}

void Engines::open_on_gpu(const EngineEntry& entry, uint32_t op, std::span<const Access> accesses) {
  Engine& engine = *entry.engine;
  // An op without extents on this GPU needs no stream lookup.
  if (engine.is_passive() || !names_something(engine, accesses)) {
    engine.gate().open(op, {});
    return;
  }
  void* const stream = stream_of(entry);
  if (stream == TENCACHE_STREAM_PER_THREAD) [[unlikely]] {
    // The per-thread default stream is another one on each thread, so it has no number: only the
    // host can wait for what arrives, and what such a stream may use stays.
    engine.gate().keep_resident(accesses);
    engine.gate().open(op, accesses);
    return;
  }
  if (engine.device().is_capturing(stream)) [[unlikely]] {
    tencache::add(engine.stats().graph_extents, engine.gate().keep_resident(accesses));
  }
  engine.open_op(op, accesses, stream);
}

TENCACHE_HOT void Engines::open(uint32_t op, std::span<const Access> accesses) {
  const size_t told_count = count();
  note_open(told_count);
  for (size_t index = 0; index < told_count; ++index) {
    const EngineEntry& entry = entries_[index];
    if (entry.engine == nullptr) continue;
    if (entry.ordinal == EngineEntry::kHost) {
      entry.engine->gate().open(op, accesses);
    } else {
      open_on_gpu(entry, op, accesses);
    }
  }
}

TENCACHE_HOT void Engines::close() {
  ThreadDepth& thread = t_depth;
  const uint32_t level = --thread.depth;
  for (size_t index = 0; index < thread.known_count; ++index) {
    if (thread.first_depth[index] > level) [[unlikely]] {
      thread.first_depth[index] = level;  // the engine was not told of this op
    } else if (entries_[index].engine != nullptr) {
      entries_[index].engine->gate().close();
    }
  }
}

uint32_t Engines::depth() { return t_depth.depth; }

EngineHolds* Engines::hold(std::span<const Access> accesses, bool and_inner) {
  auto made = std::make_unique<EngineHolds>();
  for (const EngineEntry& entry : all()) {
    Engine& engine = *entry.engine;
    if (engine.is_passive()) continue;
    void* const stream = stream_of(entry);
    // What a per-thread or capturing stream uses needs no hold, because open_on_gpu() keeps it
    // resident.
    if (stream == TENCACHE_STREAM_PER_THREAD || engine.device().is_capturing(stream)) continue;
    const StreamSet streams = engine.device().set_of(stream);
    Hold* const hold = engine.gate().hold(accesses, and_inner, streams);
    if (hold != nullptr) made->holds.emplace_back(&engine, hold);
  }
  return made->holds.empty() ? nullptr : made.release();
}

void Engines::unhold(EngineHolds* hold) {
  const std::unique_ptr<EngineHolds> owned(hold);
  if (owned == nullptr) return;
  for (const auto& [engine, held] : owned->holds) engine->gate().unhold(held);
}

void Engines::keep_resident(std::span<const Access> accesses) const {
  for (const EngineEntry& entry : all()) entry.engine->gate().keep_resident(accesses);
}

// The mode is the thread's, whatever the GPU, so one engine will do.
std::optional<int> Engines::exchange_capture_mode(int mode) const {
  for (const EngineEntry& entry : all()) {
    if (entry.ordinal == EngineEntry::kHost || entry.engine->is_passive()) continue;
    return entry.engine->device().exchange_capture_mode(mode);
  }
  return std::nullopt;
}

void Engines::on_step() const {
  for (const EngineEntry& entry : all()) entry.engine->gate().on_step();
}

void Engines::expect(std::span<const Access> accesses) const {
  for (const EngineEntry& entry : all()) {
    if (!entry.engine->is_passive()) entry.engine->expect(accesses);
  }
}

Status Engines::admit(std::span<const Access> accesses) const {
  for (size_t index = 0; index < count(); ++index) {
    Engine* const engine = entries_[index].engine;
    if (engine == nullptr || engine->is_passive()) continue;
    TENCACHE_RETURN_IF_ERROR(engine->admit(accesses));
  }
  return Status::ok();
}

Extent* Engines::find(const void* address) const {
  for (size_t index = 0; index < count(); ++index) {
    Engine* const engine = entries_[index].engine;
    Extent* const extent = engine != nullptr ? engine->heap().find(address) : nullptr;
    if (extent != nullptr) return extent;
  }
  return nullptr;
}

bool Engines::is_armed() const {
  for (size_t index = 0; index < count(); ++index) {
    Engine* const engine = entries_[index].engine;
    if (engine != nullptr && !engine->is_passive() && engine->evictor().is_armed()) return true;
  }
  return false;
}

uint64_t Engines::evict_all() const {
  uint64_t evicted_count = 0;
  for (const EngineEntry& entry : all()) {
    if (!entry.engine->is_passive()) evicted_count += entry.engine->evictor().evict_all();
  }
  return evicted_count;
}

uint64_t Engines::empty_caches() const {
  uint64_t bytes = 0;
  for (const EngineEntry& entry : all()) {
    if (!entry.engine->is_passive()) bytes += entry.engine->heap().empty_cache();
  }
  return bytes;
}

void Engines::reset_peaks() const {
  for (const EngineEntry& entry : all()) {
    if (!entry.engine->is_passive()) entry.engine->reset_peaks();
  }
}

}  // namespace tencache
