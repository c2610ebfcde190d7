// SPDX-License-Identifier: Apache-2.0
#include "engine/move/cpu/eviction_writer.h"

#include <cstring>

#include "base/clock.h"
#include "base/racy_access.h"

namespace tencache {

EvictionWriter::EvictionWriter(std::span<const SlotEviction> evictions)
    : evictions_(evictions), hashers_(evictions.size()) {
  segments_.reserve(evictions.size());
  for (const SlotEviction& eviction : evictions) {
    segments_.push_back({nullptr, eviction.extent->slot.offset, eviction.extent->bytes});
  }
}

bool EvictionWriter::before_submit(size_t segment, uint64_t offset, char* memory, size_t bytes) {
  const char* source = evictions_[segment].extent->address + (offset - segments_[segment].offset);
  {
    const RacyReads racy;  // the program may be writing: the proof finds out
    memcpy(memory, source, bytes);
  }
  hashers_[segment].append(memory, bytes);
  return true;
}

TransferResult write_measured(DiskTier& disk, std::span<const IoSegment> segments,
                              PieceObserver* observer, MoveLedger& ledger) {
  const DuplexMeter::Begun begun = ledger.duplex.begin(IoDirection::kWrite, now_ns());
  const uint64_t begin_work_ns = thread_work_ns();
  TransferResult transfer = disk.write(segments, observer);
  const uint64_t end_ns = now_ns();
  const bool is_ok = transfer.status.is_ok();
  ledger.duplex.end(IoDirection::kWrite, begun, is_ok ? transfer.bytes : 0, end_ns);
  if (is_ok) {  // what fails may have taken any time
    ledger.write_speed.add(transfer.bytes, end_ns - begun.at_ns);
    ledger.write_work.add(transfer.bytes, thread_work_ns() - begin_work_ns);
  }
  add(ledger.stats.disk_written_bytes, transfer.bytes);
  return transfer;
}

}  // namespace tencache
