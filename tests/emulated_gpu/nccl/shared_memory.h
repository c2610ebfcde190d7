// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes of one host share without a name in /dev/shm, so that nothing is left
// behind however they end. It is an anonymous memory file of the process that made it; others open
// it through that process's folder in /proc. A Place says where. The maker holds the file open
// until it is told that all have come; from then on the mappings hold the memory.
//
// Fresh memory is zero, and zero is a valid initial state for its users, so the first to come has
// nothing to prepare. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace emulated_gpu::nccl {

/// The address of the memory for other processes: plain bytes, which travel in an ncclUniqueId.
struct Place {
  int32_t process;
  int32_t file;
  uint64_t inode;  // of the file, whose number the process may have reused
};

/// Makes an empty memory file; returns nothing where the system refuses.
std::optional<Place> make_place();
/// Closes the file, if this process made it.
void close_place(const Place& place);

class SharedMemory {
 public:
  /// Maps the memory of the place. data() is null where the place is gone; errno tells why.
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
