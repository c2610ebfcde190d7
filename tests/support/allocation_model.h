// SPDX-License-Identifier: Apache-2.0
//
// AllocationModel: the reference model of the randomized tests. It plays a program on one thread:
// it allocates, frees, opens and closes gates, reads and writes with and without a gate, from user
// code and through system calls. For every allocation it holds a plain copy of the bytes that must
// be there. It compares them at each read, in each op and at the end. The engine below may evict,
// fetch and fail as it likes.
//
// Threads: one per object; several objects may share an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/random.h"
#include "support/test_engine.h"

namespace tencache {

/// Weights of the random draw that picks each step.
struct StepWeights {
  unsigned allocate = 12;
  unsigned free = 9;
  unsigned open = 22;
  unsigned close = 22;
  unsigned evict_all = 1;
  unsigned raw_read = 10;
  unsigned raw_write = 10;
  unsigned system_read = 3;
  unsigned system_write = 3;
  unsigned hold = 2;
  unsigned unhold = 2;
  unsigned keep_resident = 1;
  unsigned drop_cached = 1;
  unsigned step_mark = 1;
};

class AllocationModel {
 public:
  struct Limits {
    uint64_t live_bytes_max = 16 * kMiB;  // of all allocations together
    uint64_t kept_bytes_max = kMiB;       // of those that are never to be evicted
    size_t depth_max = 4;                 // of nested ops
    StepWeights weights;
  };

  AllocationModel(TestEngine& engine, Random& random, const Limits& limits);
  ~AllocationModel();
  AllocationModel(const AllocationModel&) = delete;
  AllocationModel& operator=(const AllocationModel&) = delete;

  /// Adds memory with fill_pattern(seed) that other threads only read and this one may name in its
  /// ops.
  void share(const char* address, uint64_t bytes, uint64_t seed);

  /// Takes one random step. Returns "", or what is wrong.
  std::string step();
  /// Closes all gates, releases all holds and compares all live allocations. Returns "", or what is
  /// wrong.
  std::string finish();

  uint64_t small_bytes() const { return small_bytes_; }
  uint64_t refused_allocations() const { return refused_; }
  size_t live_count() const { return live_.size(); }
  bool has_open_gate() const { return !frames_.empty(); }

 private:
  struct Allocation {
    char* address = nullptr;
    uint64_t bytes = 0;
    std::vector<char> copy;
    bool is_kept = false;
  };
  struct Shared {
    const char* address;
    uint64_t bytes;
    uint64_t seed;
  };
  struct Frame {
    std::vector<const Extent*> pinned;
  };
  struct Slice {
    Allocation* allocation;
    uint64_t offset;
    uint64_t bytes;
    char* address() const { return allocation->address + offset; }
    char* copy() const { return allocation->copy.data() + offset; }
  };

  uint64_t random_bytes();
  Allocation& random_allocation() { return *live_[random_.between(0, live_.size() - 1)]; }
  Slice random_slice(uint64_t bytes_max);
  std::string compare(const Slice& slice) const;
  std::string compare_whole(const Allocation& allocation) const;
  void write(const Slice& slice);

  std::string allocate();
  std::string free_one();
  std::string open();
  std::string close();
  std::string check_pinned() const;
  std::string raw_read();
  std::string raw_write();
  std::string system_read();
  std::string system_write();
  std::string hold();
  std::string unhold();
  std::string keep_resident();

  TestEngine& engine_;
  Random& random_;
  const Limits limits_;
  std::vector<std::unique_ptr<Allocation>> live_;
  std::vector<Shared> shared_;
  std::vector<Frame> frames_;
  std::vector<Hold*> holds_;
  uint64_t live_bytes_ = 0;
  uint64_t kept_bytes_ = 0;
  uint64_t small_bytes_ = 0;
  uint64_t refused_ = 0;
  int pipe_[2] = {-1, -1};
};

}  // namespace tencache
