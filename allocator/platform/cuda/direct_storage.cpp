// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/direct_storage.h"

#include <algorithm>
#include <string>
#include <utility>

#include "platform/cuda/call_scope.h"
#include "platform/cuda/driver_use.h"

namespace tencache {
namespace {

Status cufile_status(const CuFileError& error, const std::string& what) {
  if (error.code == 0) return Status::ok();
  std::string message = what + ": cuFile error " + std::to_string(error.code);
  if (error.driver != CUDA_SUCCESS) {
    message += ", CUDA error " + std::to_string(static_cast<int>(error.driver));
  }
  return {StatusCode::kUnavailable, message + "."};
}

void* as_pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

Result<std::unique_ptr<DirectStorage>> DirectStorage::open(const Gpu& gpu, StreamMarks& marks,
                                                           const CuFileApi& api, int descriptor) {
  TENCACHE_RETURN_IF_ERROR(driver_use_status());
  // If a later step fails, the destructor undoes the earlier ones.
  std::unique_ptr<DirectStorage> storage(new DirectStorage(gpu, marks, api));
  TENCACHE_RETURN_IF_ERROR(storage->open_file(descriptor));
  TENCACHE_RETURN_IF_ERROR(storage->make_buffers());
  return storage;
}

Status DirectStorage::open_file(int descriptor) {
  const CallScope scope(gpu_.driver(), gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  TENCACHE_RETURN_IF_ERROR(cufile_status(api_.open_driver(), "Cannot start cuFile"));
  CuFileProperties properties;
  TENCACHE_RETURN_IF_ERROR(
      cufile_status(api_.get_properties(&properties), "Cannot ask cuFile what it supports"));
  if (properties.supported == 0) {
    return {
        StatusCode::kUnavailable,
        "This machine cannot read a disk straight into a GPU. Install NVIDIA's nvidia-fs, or use a "
        "kernel and a disk that do peer-to-peer transfers."};
  }
  CuFileDescription file;
  file.handle.descriptor = descriptor;
  return cufile_status(api_.register_handle(&file_, &file),
                       "Cannot read the spill file straight into a GPU");
}

Status DirectStorage::make_buffers() {
  constexpr uint64_t kBytes = kBuffers * kBufferBytes;
  Result<std::unique_ptr<DeviceArena>> arena = DeviceArena::reserve(gpu_, kBytes);
  if (!arena.is_ok()) return arena.status();
  TENCACHE_RETURN_IF_ERROR(frames_.take(kBytes).move_to(&frame_));
  const FramePlace place = {arena.value()->base(), frame_};
  TENCACHE_RETURN_IF_ERROR(arena.value()->map({&place, 1}));
  arena_ = std::move(arena).value();
  const CallScope scope(gpu_.driver(), gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  for (; registered_count_ < kBuffers; ++registered_count_) {
    const CUdeviceptr buffer = arena_->base() + registered_count_ * kBufferBytes;
    TENCACHE_RETURN_IF_ERROR(
        cufile_status(api_.register_buffer(as_pointer(buffer), kBufferBytes, 0),
                      "Cannot register GPU memory for reads"));
    give_back_buffer(buffer);
  }
  return Status::ok();
}

DirectStorage::~DirectStorage() {
  if (!may_call_driver()) return;
  {
    const CallScope scope(gpu_.driver(), gpu_.context());
    if (!scope.status().is_ok()) return;
    for (uint64_t index = 0; index < registered_count_; ++index) {
      (void)api_.deregister_buffer(as_pointer(arena_->base() + index * kBufferBytes));
    }
    if (file_ != nullptr) api_.deregister_handle(file_);
  }
  if (arena_ != nullptr && !arena_->unmap(arena_->base(), arena_->bytes()).is_ok()) {
    frames_.write_off(frame_);
  } else if (frame_.bytes > 0) {
    frames_.give_back(frame_);
  }
}

CUdeviceptr DirectStorage::take_buffer() {
  MutexLock lock(mutex_);
  while (free_.empty()) has_free_.wait(mutex_);
  const CUdeviceptr buffer = free_.back();
  free_.pop_back();
  return buffer;
}

void DirectStorage::give_back_buffer(CUdeviceptr buffer) {
  {
    MutexLock lock(mutex_);
    free_.push_back(buffer);
  }
  has_free_.notify_one();
}

Status DirectStorage::read(CUstream stream, CUdeviceptr address, uint64_t bytes, uint64_t offset) {
  const CUdeviceptr buffer = take_buffer();
  Status status;
  for (uint64_t done = 0; status.is_ok() && done < bytes; done += kBufferBytes) {
    status = read_piece(stream, buffer, address + done, std::min(kBufferBytes, bytes - done),
                        offset + done);
  }
  if (!status.is_ok()) {
    // Queued copies end before others get the buffer and the range.
    const CallScope scope(gpu_.driver(), gpu_.context());
    if (scope.status().is_ok()) (void)gpu_.driver().cuStreamSynchronize(stream);
  }
  give_back_buffer(buffer);
  return status;
}

// The copy on the device takes a hundredth of the disk's time, so the thread just waits for it.
Status DirectStorage::read_piece(CUstream stream, CUdeviceptr buffer, CUdeviceptr address,
                                 uint64_t bytes, uint64_t offset) const {
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  const ssize_t count = api_.read(file_, as_pointer(buffer), bytes, static_cast<off_t>(offset), 0);
  if (count != static_cast<ssize_t>(bytes)) {
    return {StatusCode::kIoError, "cuFile read " + std::to_string(count) + " of " +
                                      std::to_string(bytes) + " bytes at " +
                                      std::to_string(offset) + "."};
  }
  TENCACHE_RETURN_IF_ERROR(cuda_status(driver,
                                       driver.cuMemcpyDtoDAsync(address, buffer, bytes, stream),
                                       "Cannot copy what cuFile has read"));
  const Result<StreamMark> copied = marks_.make(stream);
  TENCACHE_RETURN_IF_ERROR(copied.status());
  return copied.value().wait();
}

}  // namespace tencache
