// SPDX-License-Identifier: Apache-2.0
//
// NvrtcApi: the functions of NVRTC, NVIDIA's compiler as a library, as one table of function
// pointers that load_nvrtc() fills; and compile_kernel(), which compiles a kernel's text to machine
// code. PyTorch brings the library along and has usually loaded it. Nothing links against it, and a
// build does not need nvrtc.h: its few types are declared here, as its documented C interface has
// had them since CUDA 11.1.
//
// The table is constant once it is filled; any thread may call through it. NVRTC needs no GPU and
// no driver.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tencache {

using NvrtcProgram = struct NvrtcProgramState*;  // nvrtcProgram, an opaque pointer
using NvrtcResult = int;                         // nvrtcResult, an enumeration
inline constexpr NvrtcResult kNvrtcSuccess = 0;
inline constexpr NvrtcResult kNvrtcOutOfMemory = 1;
inline constexpr NvrtcResult kNvrtcInvalidOption = 5;

struct NvrtcApi {
  const char* (*error_string)(NvrtcResult result) = nullptr;
  NvrtcResult (*create_program)(NvrtcProgram* program, const char* text, const char* name,
                                int header_count, const char* const* headers,
                                const char* const* header_names) = nullptr;
  NvrtcResult (*destroy_program)(NvrtcProgram* program) = nullptr;
  NvrtcResult (*compile_program)(NvrtcProgram program, int option_count,
                                 const char* const* options) = nullptr;
  NvrtcResult (*cubin_size)(NvrtcProgram program, size_t* bytes) = nullptr;
  NvrtcResult (*cubin)(NvrtcProgram program, char* image) = nullptr;
  NvrtcResult (*log_size)(NvrtcProgram program, size_t* bytes) = nullptr;
  NvrtcResult (*log)(NvrtcProgram program, char* text) = nullptr;
};

/// Finds the library: the one that the process has loaded already; else the file `path`, where one
/// is given; else by name, where the loader looks. The library stays open. Returns kUnavailable
/// when there is no library, or it lacks a function; the message says what was tried and the
/// remedy.
Result<NvrtcApi> load_nvrtc(const std::string& path = "");

struct KernelText {
  const char* name;  // for messages
  const char* text;
  int compute_capability;  // major * 10 + minor, e.g. 90
};

struct CompiledKernel {
  std::vector<char> image;  // a cubin
  std::string log;          // warnings, and the output that options asked for
};

/// Compiles the kernel to machine code for GPUs of that capability. Returns kUnavailable when NVRTC
/// does not know the capability, kOutOfMemory when NVRTC has no memory, else kInvalidArgument with
/// the compiler's log.
Result<CompiledKernel> compile_kernel(const NvrtcApi& nvrtc, const KernelText& kernel,
                                      std::span<const char* const> more_options = {});

}  // namespace tencache
