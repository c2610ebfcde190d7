// SPDX-License-Identifier: Apache-2.0
//
// PageMap: reads /proc/self/pagemap to learn which pages of a cold extent were touched although no
// gate announced it. Of a private file mapping, a page that is present (bit 63) or swapped (bit 62)
// and does not belong to the file (bit 61 clear) was written; one that belongs to the file was
// read. These bits are readable without privileges. One open file, any thread (pread).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace tencache {

/// What the program did to a cold extent behind the gate's back.
struct TouchedPages {
  std::vector<uint32_t> written;  // indices of private pages, ascending
  uint64_t read_count = 0;        // pages of the file that are mapped in
};

class PageMap {
 public:
  /// kUnavailable where /proc/self/pagemap cannot be read: then nothing may go cold.
  static Result<std::unique_ptr<PageMap>> open();
  ~PageMap();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  /// Scans a cold mapping. REQUIRES: address and bytes are multiples of kPageBytes; to be exact the
  /// range must be write-protected meanwhile.
  Status scan(const char* address, uint64_t bytes, TouchedPages* touched) const;

 private:
  explicit PageMap(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace tencache
