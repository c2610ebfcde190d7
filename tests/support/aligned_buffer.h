// SPDX-License-Identifier: Apache-2.0
//
// AlignedBuffer: owned, zeroed memory that O_DIRECT accepts. A buffer has one owner, and can be
// moved but not copied.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "tier/io_channel.h"

namespace tencache {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) : bytes_(round_up(bytes, kIoAlignment)) {
    void* memory =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TENCACHE_CHECK(memory != MAP_FAILED, "no memory for a buffer of %zu bytes", bytes_);
    data_ = static_cast<char*>(memory);
  }
  ~AlignedBuffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tencache
