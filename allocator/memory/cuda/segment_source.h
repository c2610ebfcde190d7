// SPDX-License-Identifier: Apache-2.0
//
// SegmentSource: gives a BlockPool device memory, in large pieces, and takes it back. Its
// implementation keeps the budget and maps the memory; the pool knows nothing of either.
//
// Threads: any, several at once; the pool holds no lock while it calls, except where said below.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "platform/cuda/driver_api.h"

namespace tencache {

class SegmentSource {
 public:
  SegmentSource() = default;
  virtual ~SegmentSource() = default;
  SegmentSource(const SegmentSource&) = delete;
  SegmentSource& operator=(const SegmentSource&) = delete;

  /// Makes a segment: device memory that every stream may use at once, at an address that is a
  /// multiple of 512 and in no other segment. `bytes` is a multiple of 2 MiB. `is_small` tells
  /// which requests the segment is for, and `stream` tells where the first of them is used.
  virtual Result<CUdeviceptr> make(uint64_t bytes, bool is_small, StreamSet stream) = 0;
  /// The size of a segment for several requests above 1 MiB. It is a multiple of 2 MiB.
  virtual uint64_t large_segment_bytes() const = 0;
  /// Takes a whole segment back. REQUIRES: no work of the device uses it any more.
  virtual void give_back(CUdeviceptr address) = 0;
  /// The streams are done with a freed block that had to wait for them, and nobody has it yet. The
  /// pool calls this with its lock held.
  virtual void note_completed(CUdeviceptr /*address*/, uint64_t /*requested_bytes*/) {}
};

}  // namespace tencache
