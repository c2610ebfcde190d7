// SPDX-License-Identifier: Apache-2.0
//
// SimulatedNvrtc: NVRTC without NVIDIA, behind the same table (NvrtcApi). It compiles nothing: from
// a program it makes an image for the simulated driver, which names the program's kernels and the
// requested GPU. It knows GPUs up to a capability, as the real one does. One is alive at a time.
// Threads: one.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "platform/cuda/nvrtc_api.h"

namespace tencache {

inline constexpr NvrtcResult kNvrtcCompilation = 6;  // an error in the text

class SimulatedNvrtc {
 public:
  explicit SimulatedNvrtc(int newest_capability = 120);
  ~SimulatedNvrtc();
  SimulatedNvrtc(const SimulatedNvrtc&) = delete;
  SimulatedNvrtc& operator=(const SimulatedNvrtc&) = delete;

  const NvrtcApi& api() const { return api_; }

  /// The next call of that function of the table returns `result` and does nothing else, except
  /// that a failed compilation leaves a log.
  void fail(std::string_view name, NvrtcResult result);
  int calls(std::string_view name) const;
  /// The number of programs that were not destroyed.
  size_t leaks() const { return programs_.size(); }

 private:
  struct Program {
    std::string text;
    std::string image;
    std::string log;
  };

  static NvrtcResult enter(const char* name);
  static NvrtcResult create(NvrtcProgram* program, const char* text, const char* name,
                            int header_count, const char* const* headers,
                            const char* const* header_names);
  static NvrtcResult destroy(NvrtcProgram* program);
  static NvrtcResult compile(NvrtcProgram program, int option_count, const char* const* options);
  static NvrtcResult size_of(const char* name, NvrtcProgram program, std::string Program::*part,
                             size_t* bytes);
  static NvrtcResult copy_of(const char* name, NvrtcProgram program, std::string Program::*part,
                             char* target);

  NvrtcApi api_;
  const int newest_capability_;
  std::map<NvrtcProgram, Program> programs_;
  std::map<std::string, NvrtcResult, std::less<>> faults_;
  std::map<std::string, int, std::less<>> calls_;
  size_t last_name_ = 0x3000;
};

}  // namespace tencache
