// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/copy_stream.h"

#include <algorithm>

#include "base/units.h"
#include "platform/cuda/call_scope.h"

namespace tencache {
namespace {

// Where this priority is asked for, the driver takes the highest one that it has. Hashes are short
// and everything waits for them. At the priority of the program's own kernels, the blocks of a hash
// would run only after all blocks of a long kernel that began before.
constexpr int kHighestPriority = -1000;

}  // namespace

Result<std::unique_ptr<CopyStream>> CopyStream::create(const Gpu& gpu, StreamMarks& marks,
                                                       const CopyPause* pause) {
  CUstream stream = nullptr;
  // Marks state every wait, so the stream need not follow the NULL stream.
  TENCACHE_RETURN_IF_ERROR(
      gpu.call("Cannot make a stream for copies", [&](const DriverApi& driver) {
        return driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, kHighestPriority);
      }));
  return std::unique_ptr<CopyStream>(new CopyStream(gpu, marks, stream, pause));
}

CopyStream::~CopyStream() {
  const CallScope scope(gpu_.driver(), gpu_.context());
  if (scope.status().is_ok()) (void)gpu_.driver().cuStreamDestroy(stream_);
}

Status CopyStream::to_host(void* host, CUdeviceptr device, uint64_t bytes, bool is_pinned) {
  const DriverApi& driver = gpu_.driver();
  const CallScope scope(driver, gpu_.context());
  TENCACHE_RETURN_IF_ERROR(scope.status());
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = is_pinned ? begin_piece(bytes - done) : bytes;
    TENCACHE_RETURN_IF_ERROR(cuda_status(
        driver,
        driver.cuMemcpyDtoHAsync(static_cast<char*>(host) + done, device + done, piece, stream_),
        "Cannot copy " + format_bytes(bytes) + " from the GPU"));
    done += piece;
  }
  return Status::ok();
}

// The bytes of the next piece. Several small copies make up a piece together, because each wait
// costs the link some microseconds.
uint64_t CopyStream::begin_piece(uint64_t bytes) {
  if (pause_ == nullptr) return bytes;
  const uint64_t piece = std::min(bytes, CopyPause::kPieceBytes);
  uint64_t queued = piece_bytes_.load(std::memory_order_relaxed);
  if (queued + piece > CopyPause::kPieceBytes) {
    pause_->hold_back(stream_);
    queued = 0;
  }
  piece_bytes_.store(queued + piece, std::memory_order_relaxed);
  return piece;
}

Status CopyStream::to_device(CUdeviceptr device, const void* host, uint64_t bytes) {
  return gpu_.call("Cannot copy " + format_bytes(bytes) + " to the GPU",
                   [&](const DriverApi& driver) {
                     return driver.cuMemcpyHtoDAsync(device, host, bytes, stream_);
                   });
}

Status CopyStream::wait_until_idle() {
  const Status status = try_wait();
  return status.is_ok() ? status : try_wait();
}

Status CopyStream::try_wait() {
  return gpu_.call("Cannot wait for copies",
                   [&](const DriverApi& driver) { return driver.cuStreamSynchronize(stream_); });
}

}  // namespace tencache
