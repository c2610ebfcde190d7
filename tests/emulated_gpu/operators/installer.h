// SPDX-License-Identifier: Apache-2.0
//
// The installer puts kernels at dispatch keys. At CUDA, nearly every operator of PyTorch that has a
// CUDA kernel gets an EmulatedKernel over its CPU kernel. At SparseCUDA, an operator gets a
// SparseKernel where PyTorch's own kernel launches kernels. Operators without a CPU kernel are
// refused by an error with their name; those with a kernel of our own get that one; views and
// memory stay PyTorch's. The fate of each operator is listed, so that a test can check that
// something compares it with the CPU. The thread that loads the library installs all, once.
#pragma once
#include <string>
#include <string_view>
#include <unordered_set>

#include "operators/emulated_kernel.h"

namespace emulated_gpu::operators {

/// The fate of an operator.
struct Installed {
  std::string name;
  const char* fate;                        // "emulated", "own", "refused" or "kept"
  const EmulatedKernel* kernel = nullptr;  // of an emulated one
};

class Installer {
 public:
  Installer();
  void install_all();
  const std::vector<Installed>& installed() const { return installed_; }

 private:
  void install(const OperatorHandle& op);
  void install_composite(std::string_view name);
  void install_sparse(std::string_view name);

  torch::Library library_;
  torch::Library sparse_library_;
  std::unordered_set<std::string> own_;
  std::vector<Installed> installed_;
};

}  // namespace emulated_gpu::operators
