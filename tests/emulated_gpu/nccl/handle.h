// SPDX-License-Identifier: Apache-2.0
//
// The types behind NCCL's opaque handles.
#pragma once

#include <nccl.h>

#include <memory>

#include "communicator.h"

/// The program's share of a communicator. `communicator` is null before it is made.
struct ncclComm {
  std::shared_ptr<emulated_gpu::nccl::Communicator> communicator;
};
