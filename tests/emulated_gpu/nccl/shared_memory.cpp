// SPDX-License-Identifier: Apache-2.0
//
// Memory files, and how they are made, found by other processes, and mapped. One set, guarded by a
// lock, holds the files that this process has open for others.
#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <string>

namespace emulated_gpu::nccl {

namespace {

std::mutex mutex;
std::set<int> kept_files;  // guarded by mutex

// Opens the file of that place. Returns -1 when there is none.
int open_place(const Place& place) {
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found = {};
  if (file < 0 || (fstat(file, &found) == 0 && found.st_ino == place.inode)) return file;
  close(file);
  errno = ENOENT;
  return -1;
}

// Makes the file that large. All ranks ask for the same size, so the first one sets the size of the
// file.
bool grow(int file, size_t bytes) {
  struct stat found = {};
  if (fstat(file, &found) != 0) return false;
  return static_cast<size_t>(found.st_size) >= bytes ||
         ftruncate(file, static_cast<off_t>(bytes)) == 0;
}

}  // namespace

std::optional<Place> make_place() {
  const int file = memfd_create("emulated-nccl", MFD_CLOEXEC);
  struct stat made = {};
  if (file < 0 || fstat(file, &made) != 0) return std::nullopt;
  const std::lock_guard lock(mutex);
  kept_files.insert(file);
  return Place{getpid(), file, made.st_ino};
}

void close_place(const Place& place) {
  if (place.process != getpid()) return;
  const std::lock_guard lock(mutex);
  if (kept_files.erase(place.file) != 0) close(place.file);
}

SharedMemory::SharedMemory(const Place& place, size_t bytes) : bytes_(bytes) {
  const int file = open_place(place);
  if (file < 0) return;
  if (grow(file, bytes)) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) data_ = mapped;
  }
  const int error = errno;
  close(file);
  errno = error;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace emulated_gpu::nccl
