// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cuda/flights.h"

#include <span>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "platform/cuda/stream_numbers.h"

namespace tencache {

// Nobody lands what is not Arriving yet, so the flight is entered last.
void Flights::take_off(const std::vector<CudaExtent*>& extents, StreamMark mark, StreamSet stream,
                       bool is_ahead) {
  const auto flight = std::make_shared<Flight>();
  flight->extents = extents;
  flight->mark = std::move(mark);
  flight->stream = stream;
  flight->begun_at = timestamp();
  flight->is_ahead = is_ahead;
  for (CudaExtent* extent : extents) {
    add(parts_.ledger.stats.fetched_bytes, extent->bytes);
    // Until now an op has waited for these bytes on the host.
    if (!is_ahead) parts_.ledger.bytes_ahead.fetch_add(extent->bytes);
    extent->note_streams(stream);
    if (is_ahead) extent->set_flags(kFlagAhead);
    extent->become_arriving();
  }
  MutexLock lock(mutex_);
  flights_.push_back(flight);
  for (const CudaExtent* extent : extents) flight_of_[extent] = flight;
}

void Flights::leave_cold(CudaExtent* extent, FetchBatch* batch, const Status& reason) {
  batch->left_cold.push_back(extent);
  if (batch->is_ahead) parts_.ledger.bytes_ahead.fetch_sub(extent->bytes);
  if (!batch->is_ahead && !has_warned_.exchange(true)) {
    TENCACHE_LOG_WARNING(
        "a tensor cannot be brought back to the GPU: %s; an op that uses it fails with a CUDA "
        "error",
        reason.clause().c_str());
  }
  parts_.heap.budget().release(extent->bytes);
  extent->abandon_fetch();
}

Flights::FlightPtr Flights::find(const Extent* extent) {
  MutexLock lock(mutex_);
  const auto found = flight_of_.find(extent);
  return found != flight_of_.end() ? found->second : nullptr;
}

bool Flights::are_together(const Extent* one, const Extent* other) {
  const FlightPtr flight = find(one);
  return flight != nullptr && flight == find(other);
}

std::optional<bool> Flights::join(const CudaExtent* extent, StreamSet streams) {
  const FlightPtr flight = find(extent);
  if (flight == nullptr) return std::nullopt;
  const bool has_arrived = flight->mark.poll();
  if (!has_arrived) hold_back(streams, *flight);
  return has_arrived;
}

// The device waits where that is possible, else this thread does.
void Flights::hold_back(StreamSet streams, const Flight& flight) {
  if (StreamNumbers::is_one_stream(streams) &&
      parts_.heap.streams().hold_back(streams, std::span(&flight.mark, 1)).is_ok()) {
    return;
  }
  flight.mark.await();
}

bool Flights::await(const Extent* extent) {
  const FlightPtr flight = find(extent);
  if (flight == nullptr) return false;
  flight->mark.await();
  return true;
}

bool Flights::wait_for_oldest() {
  FlightPtr oldest;
  {
    MutexLock lock(mutex_);
    if (flights_.size() > 1) oldest = flights_.front();
  }
  if (oldest == nullptr) return false;
  oldest->mark.await();
  settle(false);
  return true;
}

void Flights::settle(bool may_wait) {
  std::vector<FlightPtr> flights;
  {
    MutexLock lock(mutex_);
    flights.assign(flights_.begin(), flights_.end());
  }
  for (const FlightPtr& flight : flights) {
    if (may_wait) flight->mark.await();
    if (!flight->mark.poll()) continue;
    {
      MutexLock lock(mutex_);
      if (std::erase(flights_, flight) == 0) continue;  // another thread lands it
      for (const CudaExtent* extent : flight->extents) flight_of_.erase(extent);
    }
    land(*flight);
  }
}

void Flights::land(const Flight& flight) {
  uint64_t landed_bytes = 0;
  for (CudaExtent* extent : flight.extents) {
    const uint64_t bytes = extent->bytes;
    parts_.ledger.log_move(flight.is_ahead ? MoveKind::kFetchAhead : MoveKind::kFetch, extent->id,
                           bytes, flight.begun_at);
    // The copy below may save the next eviction a copy, where a hash can prove it. A block beyond
    // the budget is no such copy.
    const bool is_wanted = extent->state() == ExtentState::kArriving;
    const bool is_loan = extent->host_block.is_beyond_budget();
    if (parts_.hasher == nullptr || !is_wanted || (is_loan && !extent->slot.is_valid())) {
      parts_.heap.copies().release(extent);
    } else if (is_loan) {
      parts_.heap.copies().release_block(extent);
    }
    extent->used_by.fetch_and(~flight.stream, std::memory_order_relaxed);
    extent->settle();
    parts_.ledger.bytes_ahead.fetch_sub(bytes);
    landed_bytes += bytes;
  }
  if (parts_.ahead != nullptr) parts_.ahead->on_fetch(landed_bytes);
}

}  // namespace tencache
