// SPDX-License-Identifier: Apache-2.0
#include "abi/launch_gate.h"

#include <utility>
#include <vector>

#include "abi/tencache_guard.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

namespace tencache {
namespace {

// A bit beside those of the GPUs: there are extents to unpin.
constexpr uint32_t kHasPins = uint32_t{1} << 31;
static_assert(Engines::kEnginesMax < 31);

// Extents that the thread's launch uses and no op has named. They are pinned until the launch is
// queued, because an op of another thread may name them at this moment. This is a pointer, set only
// while there are any: the static block of a thread has no room for more, and threads launch
// kernels while their thread-locals are destroyed.
thread_local constinit std::vector<Extent*>* t_pins = nullptr;

void pin_until_queued(Extent* extent) {
  if (t_pins == nullptr) t_pins = new std::vector<Extent*>;
  t_pins->push_back(extent);
  extent->pin();
}

void unpin_what_is_queued() {
  for (Extent* const extent : *t_pins) {
    raise_to(extent->last_use_at, timestamp());
    extent->unpin();
  }
  delete std::exchange(t_pins, nullptr);
}

}  // namespace

TENCACHE_HOT uint32_t LaunchGate::open(std::string_view name, void* stream,
                                       std::span<const Access> accesses) {
  uint32_t opened = 0;
  for (size_t index = 0; index < engines_.count(); ++index) {
    Engine* const engine = engines_.engine_at(index);
    if (engine == nullptr || engine->is_passive() || !engine->evictor().is_armed()) continue;
    if (open_on(*engine, name, stream, accesses)) opened |= uint32_t{1} << index;
  }
  if (opened != 0) unannounced_.fetch_add(1, std::memory_order_relaxed);
  return opened | (t_pins == nullptr ? 0 : kHasPins);
}

// What the launch needs to know of its stream. find() looks it up at the first use of memory of
// this GPU.
struct LaunchGate::Stream {
  Stream(Engine& own_engine, void* own_handle) : engine(own_engine), handle(own_handle) {}
  void find() {
    if (std::exchange(is_found, true)) return;
    if (handle == TENCACHE_STREAM_PER_THREAD || !engine.device().is_current()) return;
    set = engine.device().find_set_of(handle);
    is_of_open_ops = set != kNoStreams && (engine.gate().open_streams() & ~set) == kNoStreams;
  }
  bool is_known() const { return set != kNoStreams; }
  /// The stream's set. A stream that no op has used gets a number, unless it is the per-thread
  /// stream or the launch is another GPU's.
  StreamSet numbered() {
    if (is_known() || handle == TENCACHE_STREAM_PER_THREAD || !engine.device().is_current()) {
      return set;
    }
    return engine.device().set_of(handle);
  }
  bool is_capturing() {
    if (!std::exchange(has_asked, true))
      captures = is_known() && engine.device().is_capturing(handle);
    return captures;
  }

  Engine& engine;
  void* const handle;
  bool is_found = false;
  StreamSet set = kNoStreams;
  bool is_of_open_ops = false;  // then those ops make it wait for arriving extents
  bool has_asked = false;
  bool captures = false;
};

TENCACHE_HOT bool LaunchGate::open_on(Engine& engine, std::string_view name, void* handle,
                                      std::span<const Access> accesses) {
  Gate& gate = engine.gate();
  Stream stream(engine, handle);
  std::vector<Access> unannounced;
  std::vector<Extent*> arriving;
  for (const Access& access : accesses) {
    Extent* const extent = engine.heap().find(access.address);
    if (extent == nullptr) continue;
    stream.find();
    // The streams are noted even if no op has named the extent yet: once one does, the extent can
    // leave.
    extent->note_streams(stream.set);
    if (gate.has_announced(extent)) {
      // The op's library may use a stream of its own, and leave it to its caller to wait for that
      // stream.
      extent->note_streams(stream.numbered());
      const bool is_there = Extent::usable_in(extent->state());
      if (!is_there && !stream.is_of_open_ops) arriving.push_back(extent);
      continue;
    }
    if (stream.is_capturing()) add(engine.stats().graph_extents, gate.keep_resident({&access, 1}));
    if (!stream.is_known()) extent->set_flags(kFlagKeepResident);
    if (!extent->has(kFlagSeen)) {  // the address may be stale
      pin_until_queued(extent);
      if (!extent->has(kFlagSeen)) continue;
    }
    unannounced.push_back(access);
  }
  if (!arriving.empty()) engine.mover()->fetch(arriving, stream.set, nullptr);
  if (unannounced.empty()) return false;
  gate.open(engines_.register_op(name), unannounced, stream.set);
  return true;
}

TENCACHE_HOT void LaunchGate::close(uint32_t opened) {
  for (size_t index = 0; index < engines_.count(); ++index) {
    if ((opened >> index & 1) != 0) engines_.engine_at(index)->gate().close();
  }
  if (t_pins != nullptr) unpin_what_is_queued();
}

void LaunchGate::on_unreadable() {
  if (unreadable_.fetch_add(1, std::memory_order_relaxed) > 0) return;
  TENCACHE_LOG_WARNING(
      "the driver does not report where the arguments of kernels are (CUDA 12.4 and newer do), so "
      "launches that no op announces are not seen; one that uses a tensor which is in host memory "
      "fails with a CUDA error");
}

}  // namespace tencache
