// SPDX-License-Identifier: Apache-2.0
//
// StreamParts: what the parts of a StreamMover stand on. CopyStreams: the streams of one mover.
//
// Each direction of the link has a stream of its own. Fetches that ops wait for do not queue behind
// those ahead of use, nor do hashes that pins wait for queue behind copies.
//
// Threads: any; nothing changes once the mover is made.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/move/cuda/host_ahead.h"
#include "engine/move/cuda/host_spill.h"
#include "engine/move/fork_latch.h"
#include "engine/move/move_ledger.h"
#include "memory/cuda/cuda_heap.h"
#include "platform/cuda/copy_stream.h"
#include "platform/cuda/device_hasher.h"
#include "platform/stream_set.h"

namespace tencache {

struct CopyStreams {
  std::unique_ptr<CopyStream> out;
  std::unique_ptr<CopyStream> hash;   // of what is about to be copied
  std::unique_ptr<CopyStream> proof;  // hashes again what was copied
  std::unique_ptr<CopyStream> in_on_demand;
  std::unique_ptr<CopyStream> in_ahead;
  StreamSet eviction_numbers = kNoStreams;  // of the two that read what may be freed meanwhile

  /// Copies to pinned host memory heed `pause`. Where `pause` is null, they go on. REQUIRES: the
  /// program's streams have no numbers yet, so that each stream made here gets a bit of its own.
  static Result<CopyStreams> create(const Gpu& gpu, StreamMarks& marks, StreamNumbers& numbers,
                                    const CopyPause* pause);
};

struct StreamParts {
  CudaHeap& heap;
  const CopyStreams& streams;
  DeviceHasher* hasher;  // null: no copy can be proved
  HostSpill* spill;      // null: there is no disk
  HostAhead* ahead;      // null where spill is
  MoveLedger& ledger;
  ForkLatch& fork_latch;
};

}  // namespace tencache
