// SPDX-License-Identifier: Apache-2.0
//
// PageMap: a reader of /proc/self/pagemap. It learns which pages of a cold extent were touched
// although no gate announced it. In a private file mapping, a page that is present (bit 63) or
// swapped (bit 62) was written if it does not belong to the file (bit 61 clear), and read if it
// does. These bits are readable without privileges. There is one open file; any thread may scan
// (pread).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/kept_fd.h"
#include "base/status.h"

namespace tencache {

/// Accesses of the program to a cold extent that no gate announced.
struct TouchedPages {
  std::vector<uint32_t> written;  // indices of private pages, ascending
  uint64_t read_count = 0;        // pages of the file that are mapped in
};

class PageMap {
 public:
  /// Fails where /proc/self/pagemap cannot be read, or does not tell private pages apart: then
  /// nothing may go cold.
  static Result<std::unique_ptr<PageMap>> open();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  /// Scans a cold mapping; fails where the program has closed the file. REQUIRES: address and bytes
  /// are multiples of kPageBytes. The result is exact only while the range is write-protected.
  Status scan(const char* address, uint64_t bytes, TouchedPages* touched) const;

 private:
  explicit PageMap(KeptFd file) : file_(std::move(file)) {}
  Status read(const char* address, uint64_t bytes, TouchedPages* touched) const;

  const KeptFd file_;
};

}  // namespace tencache
