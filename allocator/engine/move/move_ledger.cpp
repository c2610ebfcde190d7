// SPDX-License-Identifier: Apache-2.0
#include "engine/move/move_ledger.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace tencache {

TENCACHE_SLOW void MoveLedger::count_early(Extent* extent) {
  if (!extent->take_ahead()) return;
  add(stats.early_fetches, 1);
  add(stats.early_fetched_bytes, extent->bytes);
}

void MoveLedger::note_late(Extent* extent, LateFetches* late) {
  if (!extent->take_ahead()) return;
  ++late->count;
  late->bytes += extent->bytes;
}

void MoveLedger::count_departure(const Departure& departure, EvictionResult* result) {
  add(stats.evicted_bytes, departure.bytes);
  if (!departure.was_copied) add(stats.clean_dropped_bytes, departure.bytes);
  log_move(departure.was_copied ? MoveKind::kEvict : MoveKind::kDrop, departure.extent_id,
           departure.bytes, departure.begin);
  if (departure.was_fetched_in_vain) {
    add(stats.wasted_fetches, 1);
    add(stats.wasted_fetched_bytes, departure.bytes);
  }
  result->count += 1;
  result->bytes += departure.bytes;
}

void MoveLedger::log_move(MoveKind kind, uint64_t extent_id, uint64_t bytes, uint64_t begin) {
  log.add({begin, timestamp(), extent_id, bytes, budget_.used(), kind});
}

void MoveLedger::count_failure(const Status& failure, uint64_t count, const char* where,
                               EvictionResult* result) {
  add(stats.eviction_failures, count);
  if (result->failure.is_ok()) result->failure = failure;
  if (has_warned_.exchange(true)) return;
  TENCACHE_LOG_WARNING(
      "an eviction failed: %s; the tensor stays %s and nothing is lost (further failures are only "
      "counted)",
      failure.clause().c_str(), where);
}

}  // namespace tencache
