// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/simulated_nvrtc.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "support/cuda/handles.h"
#include "support/cuda/simulated_modules.h"

namespace tencache {
namespace {

constexpr NvrtcResult kInvalidProgram = 4;
constexpr std::string_view kArch = "-arch=sm_";

SimulatedNvrtc* alive_nvrtc = nullptr;

constexpr std::string_view kKernel = "extern \"C\" __global__ ";
constexpr std::string_view kLaunchBounds = "__launch_bounds__";

// The word that ends at a position.
std::string word_before(const std::string& text, size_t end) {
  size_t begin = end;
  while (begin > 0 && (isalnum(text[begin - 1]) != 0 || text[begin - 1] == '_')) --begin;
  return text.substr(begin, end - begin);
}

// The kernels that a program defines: the words before their parameters.
std::vector<std::string> kernels_of(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = text.find(kKernel); at != std::string::npos; at = text.find(kKernel, at)) {
    at = text.find('(', at);
    if (word_before(text, at) == kLaunchBounds) at = text.find('(', at + 1);
    if (at != std::string::npos) names.push_back(word_before(text, at));
  }
  return names;
}

const char* error_string(NvrtcResult result) {
  switch (result) {
    case kNvrtcSuccess:
      return "NVRTC_SUCCESS";
    case kNvrtcOutOfMemory:
      return "NVRTC_ERROR_OUT_OF_MEMORY";
    case kNvrtcInvalidOption:
      return "NVRTC_ERROR_INVALID_OPTION";
    case kNvrtcCompilation:
      return "NVRTC_ERROR_COMPILATION";
    default:
      return "NVRTC_ERROR unknown";
  }
}

}  // namespace

SimulatedNvrtc::SimulatedNvrtc(int newest_capability) : newest_capability_(newest_capability) {
  TENCACHE_CHECK(alive_nvrtc == nullptr, "there is a simulated NVRTC already");
  alive_nvrtc = this;
  api_.error_string = &error_string;
  api_.create_program = &create;
  api_.destroy_program = &destroy;
  api_.compile_program = &compile;
  api_.cubin_size = [](NvrtcProgram program, size_t* bytes) {
    return size_of("cubin_size", program, &Program::image, bytes);
  };
  api_.cubin = [](NvrtcProgram program, char* image) {
    return copy_of("cubin", program, &Program::image, image);
  };
  api_.log_size = [](NvrtcProgram program, size_t* bytes) {
    return size_of("log_size", program, &Program::log, bytes);
  };
  api_.log = [](NvrtcProgram program, char* text) {
    return copy_of("log", program, &Program::log, text);
  };
}

SimulatedNvrtc::~SimulatedNvrtc() { alive_nvrtc = nullptr; }

void SimulatedNvrtc::fail(std::string_view name, NvrtcResult result) {
  faults_[std::string(name)] = result;
}

int SimulatedNvrtc::calls(std::string_view name) const {
  const auto found = calls_.find(name);
  return found != calls_.end() ? found->second : 0;
}

NvrtcResult SimulatedNvrtc::enter(const char* name) {
  TENCACHE_CHECK(alive_nvrtc != nullptr, "a call of a simulated NVRTC that is gone");
  ++alive_nvrtc->calls_[name];
  const auto fault = alive_nvrtc->faults_.find(name);
  if (fault == alive_nvrtc->faults_.end()) return kNvrtcSuccess;
  const NvrtcResult result = fault->second;
  alive_nvrtc->faults_.erase(fault);
  return result;
}

NvrtcResult SimulatedNvrtc::create(NvrtcProgram* program, const char* text, const char* /*name*/,
                                   int header_count, const char* const* /*headers*/,
                                   const char* const* /*header_names*/) {
  if (const NvrtcResult planned = enter("create_program"); planned != kNvrtcSuccess) {
    return planned;
  }
  TENCACHE_CHECK(header_count == 0, "%d headers", header_count);
  *program = handle_of<NvrtcProgram>(++alive_nvrtc->last_name_);
  alive_nvrtc->programs_[*program].text = text;
  return kNvrtcSuccess;
}

NvrtcResult SimulatedNvrtc::destroy(NvrtcProgram* program) {
  if (const NvrtcResult planned = enter("destroy_program"); planned != kNvrtcSuccess) {
    return planned;
  }
  if (alive_nvrtc->programs_.erase(*program) == 0) return kInvalidProgram;
  *program = nullptr;
  return kNvrtcSuccess;
}

NvrtcResult SimulatedNvrtc::compile(NvrtcProgram program, int option_count,
                                    const char* const* options) {
  if (alive_nvrtc->programs_.count(program) == 0) return kInvalidProgram;
  Program& compiled = alive_nvrtc->programs_[program];
  if (const NvrtcResult planned = enter("compile_program"); planned != kNvrtcSuccess) {
    if (planned == kNvrtcCompilation) compiled.log = "line 7: as the test asked";
    return planned;
  }
  int capability = 0;
  for (int index = 0; index < option_count; ++index) {
    const std::string_view option(options[index]);
    if (option.starts_with(kArch)) capability = atoi(options[index] + kArch.size());
  }
  if (capability == 0 || capability > alive_nvrtc->newest_capability_) return kNvrtcInvalidOption;
  compiled.image = simulated_image(capability, kernels_of(compiled.text));
  return kNvrtcSuccess;
}

// The size of a program's image or log. It counts the zero at the end, which NVRTC's texts have.
NvrtcResult SimulatedNvrtc::size_of(const char* name, NvrtcProgram program,
                                    std::string Program::*part, size_t* bytes) {
  if (const NvrtcResult planned = enter(name); planned != kNvrtcSuccess) return planned;
  const auto found = alive_nvrtc->programs_.find(program);
  if (found == alive_nvrtc->programs_.end()) return kInvalidProgram;
  *bytes = (found->second.*part).size() + 1;
  return kNvrtcSuccess;
}

NvrtcResult SimulatedNvrtc::copy_of(const char* name, NvrtcProgram program,
                                    std::string Program::*part, char* target) {
  if (const NvrtcResult planned = enter(name); planned != kNvrtcSuccess) return planned;
  const auto found = alive_nvrtc->programs_.find(program);
  if (found == alive_nvrtc->programs_.end()) return kInvalidProgram;
  memcpy(target, (found->second.*part).c_str(), (found->second.*part).size() + 1);
  return kNvrtcSuccess;
}

}  // namespace tencache
