// SPDX-License-Identifier: Apache-2.0
//
// The engine looks at memory that the program may be writing at the same moment, on purpose: an
// eviction copies and hashes an extent that is still in use and finds out later, by a second hash
// under write protection, whether the bytes held still. And it replaces mappings, which leaves the
// bytes as they are while ThreadSanitizer takes mmap for a write. These scopes tell it so; they do
// nothing in every other build. Everything outside them is checked.
#pragma once

#include "base/sanitizers.h"

// Of ThreadSanitizer's library, which names them so.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
// NOLINTEND(readability-identifier-naming)

namespace tencache {

/// Reads of this thread are not compared with writes of others while it lives.
class RacyReads {
 public:
  RacyReads() {
    if constexpr (kHasThreadSanitizer) AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~RacyReads() {
    if constexpr (kHasThreadSanitizer) AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  RacyReads(const RacyReads&) = delete;
  RacyReads& operator=(const RacyReads&) = delete;
};

/// What this thread maps while it lives does not count as written.
class UnchangedByMapping {
 public:
  UnchangedByMapping() {
    if constexpr (kHasThreadSanitizer) {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
  }
  ~UnchangedByMapping() {
    if constexpr (kHasThreadSanitizer) {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  }
  UnchangedByMapping(const UnchangedByMapping&) = delete;
  UnchangedByMapping& operator=(const UnchangedByMapping&) = delete;
};

}  // namespace tencache
