// SPDX-License-Identifier: Apache-2.0
//
// DeviceModel: the device and the link to the tier below, for the simulator. It tells where each
// tensor is, how long an op waits for bytes and for room, and what the link carries when. It does
// what the engine does at an op: wait for fetches, make room, fetch on demand what is missing.
//
// The model makes one fetch and one eviction at a time (one of the two on a half-duplex machine),
// in the order in which they were requested; a demand fetch goes to the front. Room is taken when a
// fetch starts and free when an eviction has ended. Where nothing that was requested makes room,
// victims leave by the plan's rule. Below the link is a HostModel where the machine has a disk.
//
// An op is played in this order: begin_op, need_now for all that it names or allocates, requests,
// catch_up, require, allocate, use, compute, need_no_longer, release, requests, leave_excess.
//
// Time never goes back. Pure: no clock, no threads.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "learn/host_model.h"
#include "learn/plan.h"
#include "learn/simulator.h"
#include "learn/tensor_uses.h"
#include "learn/trace.h"
#include "learn/trace_index.h"
#include "learn/victim_order.h"

namespace tencache {

class DeviceModel {
 public:
  enum class Place : uint8_t { kAbsent, kResident, kEvicting, kCold, kFetching };

  /// At first, persistent tensors are on the device if no op names them, or while they fit; the
  /// others have a copy below. What is moved is noted in `notes`. Index, machine and notes outlive
  /// the model.
  DeviceModel(const TraceIndex& index, const Machine& machine, const Plan& plan, Simulation* notes);

  // ---- One op ----
  void begin_op(Tick tick);
  /// From need_now() to need_no_longer(), tensors that the op names or allocates cannot leave.
  void need_now();
  void need_no_longer();
  /// The plan's requests. They have no effect on a tensor that is elsewhere than they expect.
  void request_fetch(uint32_t tensor);
  void request_eviction(uint32_t tensor);
  /// Plays what ends or starts until now.
  void catch_up() { advance(now_ns_); }
  /// Waits until everything that the op names is there.
  void require(const TraceOp& op);
  /// Waits for room, and gives it to the tensor.
  void allocate(uint32_t tensor);
  void use(const TraceAccess& access);
  void compute(uint64_t ns);
  void release(uint32_t tensor);
  /// Lets tensors leave until the device holds no more than the budget, which the op may have
  /// exceeded. The program goes on meanwhile.
  void leave_excess();

  // ---- What it is like now ----
  uint64_t now_ns() const { return now_ns_; }
  /// The most on the device since the op began.
  uint64_t used_most_bytes() const { return used_most_; }
  /// Where each tensor is, and whether the tier below has its bytes.
  std::vector<std::pair<Place, bool>> places() const;
  /// How many requests for a fetch have not found room yet.
  size_t waiting_count() const { return fetch_queue_.size(); }
  /// How far reads and writes of the link, and of the disk, are behind the program: how long they
  /// will still take after this moment.
  std::array<uint64_t, 4> backlogs_ns() const;
  /// Call when what was noted so far has been taken away.
  void forget_notes();

 private:
  struct TensorState {
    Place place = Place::kAbsent;
    bool has_copy = false;     // the tier below holds its bytes
    uint64_t done_ns = 0;      // end of the eviction or fetch under way
    uint64_t move_number = 0;  // tells a move that was called off from the one after it
    uint64_t last_use = 0;     // ticks since the start of the simulation
    size_t open_move = kNone;  // its move in Simulation::moves that still lacks the return

    static constexpr size_t kNone = ~size_t{0};
  };
  struct UnderWay {
    uint64_t done_ns;
    uint32_t tensor;
    uint64_t move_number;
  };

  struct FetchRequest {
    uint32_t tensor;
    uint64_t tick_number;  // when it was made
  };

  uint64_t bytes_of(uint32_t tensor) const { return trace_.tensors[tensor].bytes; }
  void advance(uint64_t until_ns);
  void advance_host(uint64_t until_ns);
  bool finish_next_eviction(uint64_t until_ns);
  bool start_next_fetch(uint64_t until_ns);
  bool is_outdated(const FetchRequest& request) const;
  bool is_on_its_way(const UnderWay& fetch) const;
  void make_room(uint64_t bytes);
  bool await_fetch();
  void add_victim(uint32_t tensor);
  void evict(uint32_t tensor);
  void start_fetch(uint32_t tensor, uint64_t not_before_ns);
  void note_migration(uint32_t tensor, bool is_fetch, uint64_t begin_ns, uint64_t end_ns);
  void take(uint64_t bytes);
  void stay(uint32_t tensor);
  bool has_copy(uint32_t tensor) const;
  void become_cold(uint32_t tensor);
  void arrive(uint32_t tensor);
  void lose_copy(uint32_t tensor);

  const TraceIndex& index_;
  const Trace& trace_;
  const Machine& machine_;
  const Victim victim_;
  Simulation& notes_;
  const TensorUses& uses_;
  std::vector<TensorState> states_;
  // Both are in the order of their ends, since a link makes one move after another; some evictions
  // were called off.
  std::deque<UnderWay> evictions_;
  std::deque<UnderWay> fetches_;        // only where host_ is there; some may have ended
  std::deque<UnderWay> never_awaited_;  // fetches, for await_fetch(); most have ended
  std::deque<FetchRequest> fetch_queue_;
  std::vector<uint8_t> is_needed_now_;
  std::optional<HostModel> host_;
  VictimOrder victims_;        // resident tensors that are not needed now
  uint64_t now_ns_ = 0;        // of the program
  uint64_t mover_ns_ = 0;      // up to which evictions and fetches have been played
  uint64_t read_free_ns_ = 0;  // when the link is free
  uint64_t write_free_ns_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t used_most_ = 0;
  uint64_t leaving_bytes_ = 0;  // the part of used_bytes_ that is being evicted
  uint64_t number_ = 0;
  uint64_t tick_number_ = 0;
  Tick tick_ = 0;
};

}  // namespace tencache
