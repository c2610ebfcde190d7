// SPDX-License-Identifier: Apache-2.0
//
// CuFileApi: NVIDIA's cuFile (GPUDirect Storage), which reads from a disk straight into the memory
// of a GPU, as a table of functions. PyTorch brings the library along; the suites put a simulated
// one in its place. The types are those of its header cufile.h, which not every CUDA includes. The
// table is constant once it is filled; any thread may call through it.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <cstddef>
#include <string>

#include "base/status.h"

namespace tencache {

// The names are ours; the layouts are those of CUfileError_t, CUfileDescr_t and CUfileDrvProps_t.
struct CuFileError {
  int code = 0;  // 0: all is well
  CUresult driver = CUDA_SUCCESS;
};
struct CuFileDescription {
  int type = 1;  // a Linux file descriptor
  union {
    int descriptor;
    void* other;
  } handle = {};
  const void* operations = nullptr;
};
struct CuFileProperties {
  unsigned major_version = 0;
  unsigned minor_version = 0;
  size_t poll_threshold_kib = 0;
  size_t direct_io_max_kib = 0;
  unsigned supported = 0;  // a bit for each kind of disk or file system that is read directly
  unsigned control = 0;
  unsigned features = 0;
  unsigned device_cache_max_kib = 0;
  unsigned buffer_cache_kib = 0;
  unsigned device_pinned_max_kib = 0;
  unsigned batch_max = 0;
  unsigned batch_timeout_ms = 0;
};
using CuFileHandle = void*;

struct CuFileApi {
  CuFileError (*open_driver)() = nullptr;
  CuFileError (*get_properties)(CuFileProperties* properties) = nullptr;
  CuFileError (*register_handle)(CuFileHandle* handle, CuFileDescription* file) = nullptr;
  void (*deregister_handle)(CuFileHandle handle) = nullptr;
  CuFileError (*register_buffer)(const void* buffer, size_t bytes, int flags) = nullptr;
  CuFileError (*deregister_buffer)(const void* buffer) = nullptr;
  /// Returns the number of bytes read, or a negative number on failure.
  ssize_t (*read)(CuFileHandle handle, void* buffer, size_t bytes, off_t file_offset,
                  off_t buffer_offset) = nullptr;
};

/// Finds the library: the one that the process has loaded already, else the file `path`, where one
/// is given, else by name, where the loader looks. The library stays open; the GPU's driver is not
/// called yet. Returns kUnavailable when there is no library, or it lacks a function.
Result<CuFileApi> load_cufile(const std::string& path = "");

}  // namespace tencache
