// SPDX-License-Identifier: Apache-2.0
//
// SimulatedCuFile: cuFile without a GPU, behind the same table (platform/cuda/cufile_api.h). It
// reads a file into the simulated driver's memory, if file and buffer are registered. Calls can
// fail, and reads can lie. One is alive at a time; any thread may call the table.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "platform/cuda/cufile_api.h"

namespace tencache {

class SimulatedCuFile {
 public:
  /// `supported` is the field of the driver's properties; with 0 nothing is read directly.
  explicit SimulatedCuFile(unsigned supported = 1u << 4);
  ~SimulatedCuFile();
  SimulatedCuFile(const SimulatedCuFile&) = delete;
  SimulatedCuFile& operator=(const SimulatedCuFile&) = delete;

  const CuFileApi& api() const { return api_; }
  /// The nth call from now of that member of the table fails; a read then returns -5. Deregistering
  /// cannot fail.
  void fail(std::string_view name, uint64_t nth = 1) TENCACHE_EXCLUDES(mutex_);
  /// The next read delivers bytes that the file does not have.
  void lie_once() TENCACHE_EXCLUDES(mutex_);
  uint64_t calls(std::string_view name) const TENCACHE_EXCLUDES(mutex_);
  /// The number of files and buffers that are still registered.
  size_t leaks() const TENCACHE_EXCLUDES(mutex_);

 private:
  bool enter(const char* name) TENCACHE_REQUIRES(mutex_);
  CuFileError register_handle(CuFileHandle* handle, const CuFileDescription& file);
  ssize_t read(CuFileHandle handle, void* buffer, size_t bytes, off_t file_offset,
               off_t buffer_offset);

  CuFileApi api_;
  const unsigned supported_;

  mutable Mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> calls_ TENCACHE_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t, std::less<>> failing_ TENCACHE_GUARDED_BY(mutex_);  // calls left
  std::map<CuFileHandle, int> files_ TENCACHE_GUARDED_BY(mutex_);
  std::map<const char*, size_t> buffers_ TENCACHE_GUARDED_BY(mutex_);
  uintptr_t last_handle_ TENCACHE_GUARDED_BY(mutex_) = 0;
  bool lies_ TENCACHE_GUARDED_BY(mutex_) = false;
};

}  // namespace tencache
