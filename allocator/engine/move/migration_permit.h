// SPDX-License-Identifier: Apache-2.0
//
// MigrationPermit: held by a thread while it migrates (engine/move/mover.h, ForkLatch).
#pragma once

#include "engine/move/mover.h"

namespace tencache {

class MigrationPermit {
 public:
  explicit MigrationPermit(ForkLatch& latch) : latch_(latch) { latch_.enter(); }
  ~MigrationPermit() { latch_.leave(); }
  MigrationPermit(const MigrationPermit&) = delete;
  MigrationPermit& operator=(const MigrationPermit&) = delete;

  /// Whether a fork waits for it: who moves much asks now and then, and renews it when nothing of
  /// what it moves is under way.
  bool is_awaited() const { return latch_.is_closed(); }
  void renew() {
    latch_.leave();
    latch_.enter();
  }

 private:
  ForkLatch& latch_;
};

}  // namespace tencache
