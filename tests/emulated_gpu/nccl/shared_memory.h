// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes of one host share without a name in /dev/shm, so that nothing is left
// behind however they end: an anonymous memory file of the process that made it, which others open
// by that process's folder in /proc. Its place says where. The maker keeps the file open until it
// is told that all have come; from then on the mappings keep the memory alive.
//
// Fresh memory is zero, and zero is a valid beginning for who uses it, so the first to come has
// nothing to prepare. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace emulated_gpu::nccl {

/// Where processes find the memory; plain bytes, which travel in an ncclUniqueId.
struct Place {
  int32_t process;
  int32_t file;
  uint64_t inode;  // of the file, whose number the process may have used again
};

/// Makes a memory file without bytes. Nothing where the system refuses.
std::optional<Place> make_place();
/// Closes the file, if this process made it.
void close_place(const Place& place);

class SharedMemory {
 public:
  /// data() is null where there is no such place any more; errno tells why.
  SharedMemory(const Place& place, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  const size_t bytes_;
};

}  // namespace emulated_gpu::nccl
