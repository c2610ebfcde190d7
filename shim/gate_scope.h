// SPDX-License-Identifier: Apache-2.0
//
// GateScope opens the gate for what an op accesses, and closes it when the scope ends, also by an
// exception of the op's kernel. Kernels and wrappers that open the gate themselves use it; the
// RecordFunction callbacks pair open and close on their own.
#pragma once

#include "abi/tencache.h"
#include "tensor_walk.h"

namespace tencache::shim {

class GateScope {
 public:
  GateScope(uint32_t op, const AccessList& accesses) {
    tencache_gate_open(op, accesses.data(), accesses.count());
  }
  ~GateScope() { tencache_gate_close(); }
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;
};

}  // namespace tencache::shim
