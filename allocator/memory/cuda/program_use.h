// SPDX-License-Identifier: Apache-2.0
//
// ProgramUse: counts what the program has of the GPU's memory, wherever the bytes are. Small
// requests (up to 1 MiB, as PyTorch counts them) and large ones are counted separately. Memory
// counts as allocated until the program frees it, and as active until no stream uses it any more
// either. Bytes are as handed out, thus rounded; requested bytes are as the program named them.
// Split is what is free in segments that are otherwise in use.
//
// Threads: any. Each call takes one short lock, and callers may hold their own meanwhile.
#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "base/use_count.h"

namespace tencache {

struct UsesOfKind {
  UseCount bytes;
  UseCount allocations;
  UseCount active_bytes;
  UseCount active_count;
  UseCount requested_bytes;  // of the active blocks
  UseCount split_bytes;
  UseCount split_count;
};

struct ProgramUses {
  UsesOfKind all;  // its peak is not the sum of the others' peaks
  UsesOfKind small;
  UsesOfKind large;
};

/// How the split blocks of one kind change.
struct SplitChange {
  int64_t bytes = 0;
  int64_t count = 0;
};

class ProgramUse {
 public:
  /// The program has allocated a block.
  void allocate(bool is_small, uint64_t bytes, uint64_t requested_bytes, SplitChange split = {})
      TENCACHE_EXCLUDES(mutex_) {
    of_kind(is_small, [&](UsesOfKind& uses) {
      uses.bytes.add(bytes);
      uses.allocations.add(1);
      uses.active_bytes.add(bytes);
      uses.active_count.add(1);
      uses.requested_bytes.add(requested_bytes);
      apply(uses, split);
    });
  }
  /// The program has freed a block; streams may still use it.
  void free(bool is_small, uint64_t bytes) TENCACHE_EXCLUDES(mutex_) {
    of_kind(is_small, [&](UsesOfKind& uses) {
      uses.bytes.remove(bytes);
      uses.allocations.remove(1);
    });
  }
  /// No stream uses the freed block any more.
  void complete(bool is_small, uint64_t bytes, uint64_t requested_bytes, SplitChange split = {})
      TENCACHE_EXCLUDES(mutex_) {
    of_kind(is_small, [&](UsesOfKind& uses) { complete_in(uses, bytes, requested_bytes, split); });
  }
  /// The program has freed a block that no stream uses: free() and complete() at once.
  void free_unused(bool is_small, uint64_t bytes, uint64_t requested_bytes, SplitChange split)
      TENCACHE_EXCLUDES(mutex_) {
    of_kind(is_small, [&](UsesOfKind& uses) {
      uses.bytes.remove(bytes);
      uses.allocations.remove(1);
      complete_in(uses, bytes, requested_bytes, split);
    });
  }
  ProgramUses read() const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return uses_;
  }
  /// `what` is &UseCount::reset_peak or &UseCount::reset_totals.
  void reset(void (UseCount::*what)()) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (UsesOfKind* uses : {&uses_.all, &uses_.small, &uses_.large}) {
      for (UseCount* count :
           {&uses->bytes, &uses->allocations, &uses->active_bytes, &uses->active_count,
            &uses->requested_bytes, &uses->split_bytes, &uses->split_count}) {
        (count->*what)();
      }
    }
  }

 private:
  static void apply(UseCount& count, int64_t change) {
    if (change > 0) count.add(static_cast<uint64_t>(change));
    if (change < 0) count.remove(static_cast<uint64_t>(-change));
  }
  static void apply(UsesOfKind& uses, SplitChange split) {
    apply(uses.split_bytes, split.bytes);
    apply(uses.split_count, split.count);
  }
  static void complete_in(UsesOfKind& uses, uint64_t bytes, uint64_t requested_bytes,
                          SplitChange split) {
    uses.active_bytes.remove(bytes);
    uses.active_count.remove(1);
    uses.requested_bytes.remove(requested_bytes);
    apply(uses, split);
  }
  template <typename Change>
  void of_kind(bool is_small, Change change) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    change(uses_.all);
    change(is_small ? uses_.small : uses_.large);
  }

  mutable Mutex mutex_;
  ProgramUses uses_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
