// SPDX-License-Identifier: Apache-2.0
#include "abi/launch_gate.h"

#include <utility>
#include <vector>

#include "abi/tencache_guard.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

namespace tencache {
namespace {

// Beside the bits of the GPUs: there are extents to unpin.
constexpr uint32_t kHasPins = uint32_t{1} << 31;
static_assert(GpuEngines::kGpusMax < 31);

// What the thread's launch uses and no op has named: pinned until it is queued, because an op of
// another thread may name it at this moment.
thread_local std::vector<Extent*> t_pins;

}  // namespace

uint32_t LaunchGate::open(std::string_view name, void* stream, std::span<const Access> accesses) {
  uint32_t opened = 0;
  for (size_t index = 0; index < gpus_.count(); ++index) {
    Engine* const engine = gpus_.engine_at(index);
    if (engine == nullptr || engine->is_passive() || !engine->migrator().is_armed()) continue;
    if (open_on(*engine, name, stream, accesses)) opened |= uint32_t{1} << index;
  }
  if (opened != 0) unannounced_.fetch_add(1, std::memory_order_relaxed);
  return opened | (t_pins.empty() ? 0 : kHasPins);
}

bool LaunchGate::open_on(Engine& engine, std::string_view name, void* stream,
                         std::span<const Access> accesses) {
  bool has_streams = false;
  bool is_known_stream = false;
  StreamSet streams = kNoStreams;
  std::vector<Access> unannounced;
  for (const Access& access : accesses) {
    Extent* const extent = engine.heap().find(access.address);
    if (extent == nullptr) continue;
    if (!std::exchange(has_streams, true)) {
      is_known_stream = stream != TENCACHE_STREAM_PER_THREAD && engine.is_current();
      if (is_known_stream) streams = engine.set_of(stream);
    }
    // Also of what an op may name later, which can leave from then on.
    extent->note_streams(streams);
    if (!is_known_stream) extent->set_flags(kFlagKeepResident);
    if (engine.gate().has_announced(extent)) continue;
    if (!extent->has(kFlagSeen)) {  // also an address of old
      extent->pin();
      t_pins.push_back(extent);
      if (!extent->has(kFlagSeen)) continue;
    }
    unannounced.push_back(access);
  }
  if (unannounced.empty()) return false;
  if (is_known_stream && engine.is_capturing(stream)) {
    add(engine.stats().graph_extents, engine.gate().keep_resident(unannounced));
  }
  engine.gate().open(gpus_.register_op(name), unannounced, streams);
  return true;
}

void LaunchGate::close(uint32_t opened) {
  for (size_t index = 0; index < gpus_.count(); ++index) {
    if ((opened >> index & 1) != 0) gpus_.engine_at(index)->gate().close();
  }
  for (Extent* extent : t_pins) {
    raise_to(extent->last_use_ticks, ticks());
    extent->unpin();
  }
  t_pins.clear();
}

void LaunchGate::on_unreadable() {
  if (unreadable_.fetch_add(1, std::memory_order_relaxed) > 0) return;
  TENCACHE_LOG_WARNING(
      "the driver does not tell where the arguments of kernels are (CUDA 12.4 and newer do), so "
      "launches that no op announces are not seen; one that uses a tensor which is in host memory "
      "fails with a CUDA error");
}

}  // namespace tencache
