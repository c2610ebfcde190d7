// SPDX-License-Identifier: Apache-2.0
#include "memory/extent_table.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/units.h"

namespace tencache {

Result<std::unique_ptr<ExtentTable>> ExtentTable::create(const char* base, uint64_t bytes) {
  const uint64_t mapped_bytes = bytes / kGranuleBytes * sizeof(std::atomic<Extent*>);
  // Zeroed pages are valid entries: each is a null pointer.
  void* entries = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (entries == MAP_FAILED) return status_from_errno(errno, "mapping the extent table");
  return std::unique_ptr<ExtentTable>(
      new ExtentTable(base, bytes, static_cast<std::atomic<Extent*>*>(entries), mapped_bytes));
}

ExtentTable::ExtentTable(const char* base, uint64_t bytes, std::atomic<Extent*>* entries,
                         uint64_t mapped_bytes)
    : arena_base_(base), arena_bytes_(bytes), entries_(entries), mapped_bytes_(mapped_bytes) {}

ExtentTable::~ExtentTable() { munmap(entries_, mapped_bytes_); }

void ExtentTable::set(const char* address, uint64_t bytes, Extent* extent) {
  const uint64_t first = static_cast<uint64_t>(address - arena_base_) / kGranuleBytes;
  const uint64_t count = round_up(bytes, kGranuleBytes) / kGranuleBytes;
  for (uint64_t index = first; index < first + count; ++index) {
    entries_[index].store(extent, std::memory_order_release);
  }
}

}  // namespace tencache
