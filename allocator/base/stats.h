// SPDX-License-Identifier: Apache-2.0
//
// Stats: the counters of one engine that a user can read, schema version 1. They are relaxed
// atomics: each is exact, but a snapshot of several is not of one moment. Units: bytes and
// nanoseconds (seconds in the JSON). Any thread writes them; the device owns them; only the peaks
// are ever reset.
#pragma once

#include <atomic>
#include <cstdint>

namespace tencache {

using Counter = std::atomic<uint64_t>;

inline uint64_t value_of(const Counter& counter) { return counter.load(std::memory_order_relaxed); }

inline void add(Counter& counter, uint64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

/// Raises `counter` to `value` if it is lower.
inline void raise_to(Counter& counter, uint64_t value) {
  uint64_t seen = counter.load(std::memory_order_relaxed);
  while (seen < value && !counter.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

struct Stats {
  Counter peak_device_bytes{0};
  Counter peak_live_bytes{0};     // of the device tier, without what is cached
  Counter evicted_bytes{0};       // left the device tier, clean or dirty
  Counter fetched_bytes{0};       // came back
  Counter disk_written_bytes{0};  // reached the spill file
  Counter disk_read_bytes{0};
  Counter clean_dropped_bytes{0};  // evicted without a write: proved equal to the copy below
  Counter early_fetches{0};        // arrived before the device needed it
  Counter late_fetches{0};         // the device waited for it
  Counter wasted_fetches{0};       // evicted again unused
  Counter early_fetched_bytes{0};
  Counter wasted_fetched_bytes{0};
  Counter stall_ns{0};            // the device waited for a fetch or for room
  Counter thread_wait_ns{0};      // threads waited; on the cpu backend the same
  Counter unannounced_reads{0};   // cold periods in which bytes were read without a gate
  Counter unannounced_writes{0};  // cold periods in which bytes were written without a gate
  Counter over_budget_events{0};
  Counter over_budget_peak_bytes{0};  // largest excess over the device budget
  Counter eviction_failures{0};       // the disk or a mapping failed: the extent stayed resident
  Counter ops{0};  // ops that passed the gate, as of the last Engine::settled_stats()
  Counter steps{0};
  Counter extents_allocated{0};
  Counter chaos_evictions{0};
  Counter forks{0};
  Counter graph_extents{0};  // named while a CUDA graph was captured, and resident since
};

}  // namespace tencache
