// SPDX-License-Identifier: Apache-2.0
//
// ProgramUse: what the program has allocated and not freed, wherever its bytes are, small requests
// (those up to 1 MiB, as PyTorch counts them) and large ones apart. Bytes are as handed out, so
// rounded; requested bytes as the program named them.
//
// Threads: any; one short lock for each call.
#pragma once

#include <cstdint>

#include "base/mutex.h"
#include "base/use_count.h"

namespace tencache {

struct UsesOfKind {
  UseCount bytes;
  UseCount requested_bytes;
  UseCount allocations;
};

struct ProgramUses {
  UsesOfKind all;  // its peak is not the sum of the others' peaks
  UsesOfKind small;
  UsesOfKind large;
};

class ProgramUse {
 public:
  void add(bool is_small, uint64_t bytes, uint64_t requested_bytes) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (UsesOfKind* uses : {&uses_.all, is_small ? &uses_.small : &uses_.large}) {
      uses->bytes.add(bytes);
      uses->requested_bytes.add(requested_bytes);
      uses->allocations.add(1);
    }
  }
  void remove(bool is_small, uint64_t bytes, uint64_t requested_bytes) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (UsesOfKind* uses : {&uses_.all, is_small ? &uses_.small : &uses_.large}) {
      uses->bytes.remove(bytes);
      uses->requested_bytes.remove(requested_bytes);
      uses->allocations.remove(1);
    }
  }
  ProgramUses read() const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return uses_;
  }
  void reset_peaks() TENCACHE_EXCLUDES(mutex_) {
    each([](UseCount& count) { count.reset_peak(); });
  }
  void reset_totals() TENCACHE_EXCLUDES(mutex_) {
    each([](UseCount& count) { count.reset_totals(); });
  }

 private:
  template <typename Change>
  void each(Change change) TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (UsesOfKind* uses : {&uses_.all, &uses_.small, &uses_.large}) {
      change(uses->bytes);
      change(uses->requested_bytes);
      change(uses->allocations);
    }
  }

  mutable Mutex mutex_;
  ProgramUses uses_ TENCACHE_GUARDED_BY(mutex_);
};

}  // namespace tencache
