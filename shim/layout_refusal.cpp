// SPDX-License-Identifier: Apache-2.0
#include "layout_refusal.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <cstdio>

namespace tencache::shim {

std::string TorchVersion::text() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

// libtorch's number is [major][minor][patch], a byte each from the top
// (torch/headeronly/version.h).
TorchVersion loaded_torch() {
  const uint64_t version = aoti_torch_abi_version();
  return {static_cast<unsigned>(version >> 56), static_cast<unsigned>(version >> 48 & 255),
          static_cast<unsigned>(version >> 40 & 255)};
}

std::string layout_refusal(const std::string& difference) {
  return "The torch that is loaded here says that it is " + loaded_torch().text() +
         ", but is not laid out like torch " TENCACHE_TORCH_VERSION
         ", which this part of tencache was compiled against: " +
         difference +
         ". tencache has installed nothing in it. Either build tencache against this torch, in "
         "tencache's source folder: `pip install -r requirements/build.txt && "
         "pip install --no-build-isolation --force-reinstall --no-deps .`; or install "
         "torch " TENCACHE_TORCH_VERSION ".";
}

int refuse(const std::string& message, tencache_error* error) {
  if (error != nullptr) {
    error->code = TENCACHE_FAILED_PRECONDITION;
    std::snprintf(error->message, sizeof error->message, "%s", message.c_str());
  }
  return TENCACHE_FAILED_PRECONDITION;
}

}  // namespace tencache::shim
