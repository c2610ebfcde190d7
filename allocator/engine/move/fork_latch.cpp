// SPDX-License-Identifier: Apache-2.0
#include "engine/move/fork_latch.h"

#include "base/check.h"

namespace tencache {

void ForkLatch::enter() {
  MutexLock lock(mutex_);
  while (is_closed_) changed_.wait(mutex_);
  ++permit_count_;
}

void ForkLatch::leave() {
  MutexLock lock(mutex_);
  TENCACHE_DCHECK(permit_count_ > 0);
  if (--permit_count_ == 0) changed_.notify_all();
}

void ForkLatch::close() {
  MutexLock lock(mutex_);
  while (is_closed_) changed_.wait(mutex_);  // another thread forks
  is_closed_ = true;
  while (permit_count_ > 0) changed_.wait(mutex_);
}

void ForkLatch::reopen() {
  MutexLock lock(mutex_);
  is_closed_ = false;
  changed_.notify_all();
}

}  // namespace tencache
