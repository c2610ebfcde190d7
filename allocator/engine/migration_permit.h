// SPDX-License-Identifier: Apache-2.0
//
// MigrationPermit: held by a thread while it migrates (engine/migrations.h, MigrationGate).
#pragma once

#include "engine/migrations.h"

namespace tencache {

class MigrationPermit {
 public:
  explicit MigrationPermit(MigrationGate& gate) : gate_(gate) { gate_.enter(); }
  ~MigrationPermit() { gate_.leave(); }
  MigrationPermit(const MigrationPermit&) = delete;
  MigrationPermit& operator=(const MigrationPermit&) = delete;

  /// Whether a fork waits for it: who moves much asks now and then, and renews it when nothing of
  /// what it moves is under way.
  bool is_awaited() const { return gate_.is_closed(); }
  void renew() {
    gate_.leave();
    gate_.enter();
  }

 private:
  MigrationGate& gate_;
};

}  // namespace tencache
