// SPDX-License-Identifier: Apache-2.0
//
// Scopes for deliberate races. An eviction copies and hashes an extent while the program may still
// write it, and finds out later, by a second hash under write protection, whether the bytes held
// still. The engine also replaces mappings: the bytes stay as they are, but ThreadSanitizer takes
// mmap for a write. These scopes tell ThreadSanitizer so and do nothing in every other build.
// Accesses outside them are checked.
#pragma once

#include "base/sanitizers.h"

// Functions of ThreadSanitizer's library, under its own names.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
// NOLINTEND(readability-identifier-naming)

namespace tencache {

/// A scope in which reads of this thread are not compared with writes of other threads.
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

/// A scope in which mapping done by this thread does not count as writing.
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
