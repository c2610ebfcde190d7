// SPDX-License-Identifier: Apache-2.0
//
// MigrationPermit: held by a thread while it migrates a batch (engine/migrations.h, MigrationGate).
#pragma once

#include "engine/migrations.h"

namespace tencache {

class MigrationPermit {
 public:
  explicit MigrationPermit(MigrationGate& gate) : gate_(gate) { gate_.enter(); }
  ~MigrationPermit() { gate_.leave(); }
  MigrationPermit(const MigrationPermit&) = delete;
  MigrationPermit& operator=(const MigrationPermit&) = delete;

 private:
  MigrationGate& gate_;
};

}  // namespace tencache
