// SPDX-License-Identifier: Apache-2.0
#include "abi/launch_gate.h"

#include <utility>
#include <vector>

#include "abi/tencache_guard.h"
#include "base/log.h"
#include "engine/engine.h"

namespace tencache {

uint32_t LaunchGate::open(std::string_view name, void* stream, std::span<const Access> accesses) {
  uint32_t opened = 0;
  for (size_t index = 0; index < gpus_.count(); ++index) {
    Engine* const engine = gpus_.engine_at(index);
    if (engine == nullptr || engine->is_passive() || !engine->migrator().is_armed()) continue;
    if (open_on(*engine, name, stream, accesses)) opened |= uint32_t{1} << index;
  }
  if (opened != 0) unannounced_.fetch_add(1, std::memory_order_relaxed);
  return opened;
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
    // An address of old is of nothing that an op has named.
    if (extent->has(kFlagSeen) && !engine.gate().has_announced(extent)) {
      unannounced.push_back(access);
    }
  }
  if (unannounced.empty()) return false;
  if (is_known_stream && engine.is_capturing(stream)) {
    add(engine.stats().graph_extents, engine.gate().keep_resident(unannounced));
  }
  engine.gate().open(gpus_.register_op(name), unannounced, streams);
  return true;
}

void LaunchGate::close(uint32_t opened) {
  for (size_t index = 0; opened != 0; ++index, opened >>= 1) {
    if ((opened & 1) != 0) gpus_.engine_at(index)->gate().close();
  }
}

void LaunchGate::on_unreadable() {
  if (unreadable_.fetch_add(1, std::memory_order_relaxed) > 0) return;
  TENCACHE_LOG_WARNING(
      "the driver does not tell where the arguments of kernels are (CUDA 12.4 and newer do), so "
      "launches that no op announces are not seen; one that uses a tensor which is in host memory "
      "fails with a CUDA error");
}

}  // namespace tencache
