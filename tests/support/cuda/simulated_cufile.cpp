// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_cufile.h"

#include <unistd.h>

#include <utility>

#include "base/check.h"

namespace tencache {
namespace {

constexpr CuFileError kFailed = {5001, CUDA_SUCCESS};
constexpr ssize_t kReadFailed = -5;

SimulatedCuFile* alive_cufile = nullptr;

SimulatedCuFile& one() {
  TENCACHE_CHECK(alive_cufile != nullptr, "a call of a simulated cuFile that is gone");
  return *alive_cufile;
}

}  // namespace

SimulatedCuFile::SimulatedCuFile(unsigned supported) : supported_(supported) {
  TENCACHE_CHECK(alive_cufile == nullptr, "there is a simulated cuFile already");
  alive_cufile = this;
  api_.open_driver = [] {
    MutexLock lock(one().mutex_);
    return one().enter("open_driver") ? CuFileError{} : kFailed;
  };
  api_.get_properties = [](CuFileProperties* properties) {
    MutexLock lock(one().mutex_);
    if (!one().enter("get_properties")) return kFailed;
    properties->supported = one().supported_;
    return CuFileError{};
  };
  api_.register_handle = [](CuFileHandle* handle, CuFileDescription* file) {
    return one().register_handle(handle, *file);
  };
  api_.deregister_handle = [](CuFileHandle handle) {
    MutexLock lock(one().mutex_);
    (void)one().enter("deregister_handle");
    TENCACHE_CHECK(one().files_.erase(handle) == 1, "it is no handle");
  };
  api_.register_buffer = [](const void* buffer, size_t bytes, int) {
    MutexLock lock(one().mutex_);
    if (!one().enter("register_buffer")) return kFailed;
    one().buffers_[static_cast<const char*>(buffer)] = bytes;
    return CuFileError{};
  };
  api_.deregister_buffer = [](const void* buffer) {
    MutexLock lock(one().mutex_);
    (void)one().enter("deregister_buffer");
    TENCACHE_CHECK(one().buffers_.erase(static_cast<const char*>(buffer)) == 1, "it is none");
    return CuFileError{};
  };
  api_.read = [](CuFileHandle handle, void* buffer, size_t bytes, off_t file_offset,
                 off_t buffer_offset) {
    return one().read(handle, buffer, bytes, file_offset, buffer_offset);
  };
}

SimulatedCuFile::~SimulatedCuFile() { alive_cufile = nullptr; }

void SimulatedCuFile::fail(std::string_view name, uint64_t nth) {
  MutexLock lock(mutex_);
  failing_[std::string(name)] = nth;
}

void SimulatedCuFile::lie_once() {
  MutexLock lock(mutex_);
  lies_ = true;
}

uint64_t SimulatedCuFile::calls(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = calls_.find(name);
  return found != calls_.end() ? found->second : 0;
}

size_t SimulatedCuFile::leaks() const {
  MutexLock lock(mutex_);
  return files_.size() + buffers_.size();
}

// Counts the call; returns false when the test wants it to fail.
bool SimulatedCuFile::enter(const char* name) {
  ++calls_[name];
  const auto failing = failing_.find(name);
  if (failing == failing_.end() || --failing->second > 0) return true;
  failing_.erase(failing);
  return false;
}

CuFileError SimulatedCuFile::register_handle(CuFileHandle* handle, const CuFileDescription& file) {
  MutexLock lock(mutex_);
  if (!enter("register_handle")) return kFailed;
  *handle = reinterpret_cast<CuFileHandle>(++last_handle_);
  files_[*handle] = file.handle.descriptor;
  return {};
}

ssize_t SimulatedCuFile::read(CuFileHandle handle, void* buffer, size_t bytes, off_t file_offset,
                              off_t buffer_offset) {
  int descriptor = -1;
  bool lies = false;
  {
    MutexLock lock(mutex_);
    if (!enter("read")) return kReadFailed;
    const auto registered = buffers_.find(static_cast<const char*>(buffer));
    const bool fits = registered != buffers_.end() &&
                      static_cast<size_t>(buffer_offset) + bytes <= registered->second;
    TENCACHE_CHECK(fits && files_.count(handle) == 1, "it was not registered");
    descriptor = files_[handle];
    lies = std::exchange(lies_, false);
  }
  char* const target = static_cast<char*>(buffer) + buffer_offset;
  const ssize_t count = pread(descriptor, target, bytes, file_offset);
  if (lies && count > 0) target[count / 2] ^= 1;
  return count;
}

}  // namespace tencache
