// SPDX-License-Identifier: Apache-2.0
//
// What NCCL's opaque handles stand for.
#pragma once

#include <nccl.h>

#include <memory>

#include "communicator.h"

/// The program's share of a communicator; null before the communicator is made.
struct ncclComm {
  std::shared_ptr<emulated_gpu::nccl::Communicator> communicator;
};
