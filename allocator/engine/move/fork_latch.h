// SPDX-License-Identifier: Apache-2.0
//
// ForkLatch: lets a fork wait for the migrations under way and keeps new ones from starting, so
// that a child never inherits a protected window or a half-done copy. It is not a lock: permits do
// not exclude each other, and only a fork waits for them.
//
// MigrationPermit: a thread holds one while it migrates. A thread that waits for room on the device
// holds none, because room comes from the evictor, which needs a permit itself.
//
// Threads: any. mutex_ is held for bookkeeping only.
#pragma once

#include "base/mutex.h"

namespace tencache {

class ForkLatch {
 public:
  void enter() TENCACHE_EXCLUDES(mutex_);
  void leave() TENCACHE_EXCLUDES(mutex_);
  /// Blocks new permits and waits until none is out.
  void close() TENCACHE_EXCLUDES(mutex_);
  void reopen() TENCACHE_EXCLUDES(mutex_);
  bool is_closed() const TENCACHE_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return is_closed_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int permit_count_ TENCACHE_GUARDED_BY(mutex_) = 0;
  bool is_closed_ TENCACHE_GUARDED_BY(mutex_) = false;
};

class MigrationPermit {
 public:
  explicit MigrationPermit(ForkLatch& latch) : latch_(latch) { latch_.enter(); }
  ~MigrationPermit() { latch_.leave(); }
  MigrationPermit(const MigrationPermit&) = delete;
  MigrationPermit& operator=(const MigrationPermit&) = delete;

  /// Whether a fork waits for the permit. A thread that moves much asks now and then, and renews
  /// its permit when nothing of what it moves is under way.
  bool is_awaited() const { return latch_.is_closed(); }
  void renew() {
    latch_.leave();
    latch_.enter();
  }

 private:
  ForkLatch& latch_;
};

}  // namespace tencache
