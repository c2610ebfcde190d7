// SPDX-License-Identifier: Apache-2.0
//
// The engine looks at memory that the program may be writing at the same moment, on purpose: an
// eviction copies and hashes an extent that is still in use and finds out later, by a second hash
// under write protection, whether the bytes held still. And it replaces mappings, which leaves the
// bytes as they are while ThreadSanitizer takes mmap for a write. These scopes tell it so; they are
// empty in every other build. Everything outside them is checked.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace tencache {

/// Reads of this thread are not compared with writes of others while it lives.
class RacyReads {
 public:
#if defined(__SANITIZE_THREAD__)
  RacyReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~RacyReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
  RacyReads() {}            // NOLINT(modernize-use-equals-default): silences "unused variable"
  ~RacyReads() {}           // NOLINT(modernize-use-equals-default)
#endif
  RacyReads(const RacyReads&) = delete;
  RacyReads& operator=(const RacyReads&) = delete;
};

/// What this thread maps while it lives does not count as written.
class UnchangedByMapping {
 public:
#if defined(__SANITIZE_THREAD__)
  UnchangedByMapping() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~UnchangedByMapping() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  UnchangedByMapping() {}   // NOLINT(modernize-use-equals-default): silences "unused variable"
  ~UnchangedByMapping() {}  // NOLINT(modernize-use-equals-default)
#endif
  UnchangedByMapping(const UnchangedByMapping&) = delete;
  UnchangedByMapping& operator=(const UnchangedByMapping&) = delete;
};

}  // namespace tencache
