// SPDX-License-Identifier: Apache-2.0
//
// The installer decides which kernel each operator gets. PyTorch warns where one of its CUDA
// kernels is replaced, but that is intended here, so warnings are off meanwhile. The installer
// lives for ever: destroying its library would take the kernels away while streams still run them.
#include "operators/installer.h"

#include "operators/own_kernels.h"
#include "operators/sparse_kernel.h"
#include "operators/special_cases.h"

namespace emulated_gpu::operators {

namespace {

constexpr std::string_view kNamespace = "aten::";

class QuietWarnings : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

class RefusedKernel final : public c10::OperatorKernel {
 public:
  explicit RefusedKernel(std::string name) : name_(std::move(name)) {}
  void operator()(const OperatorHandle&, DispatchKeySet, Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "emulated GPU: ", name_,
                                " has no CPU kernel, so the emulated GPU has none either");
  }

 private:
  const std::string name_;
};

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

c10::OperatorName parsed(std::string_view name) {
  const size_t dot = name.find('.');
  const bool has_overload = dot != std::string_view::npos;
  return {std::string(name.substr(0, dot)),
          has_overload ? std::string(name.substr(dot + 1)) : std::string()};
}

}  // namespace

Installer::Installer()
    : library_(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__),
      sparse_library_(torch::Library::IMPL, "aten", DispatchKey::SparseCUDA, __FILE__, __LINE__) {}

void Installer::install(const OperatorHandle& op) {
  const std::string name = c10::toString(op.operator_name());
  const std::string local = name.substr(kNamespace.size());
  if (own_.contains(name)) {
    installed_.push_back({name, "own"});
  } else if (is_kept(name) || is_view(op.schema())) {
    installed_.push_back({name, "kept"});
  } else if (op.hasComputedKernelForDispatchKey(DispatchKey::CPU)) {
    auto kernel = std::make_unique<EmulatedKernel>(op);
    installed_.push_back({name, "emulated", kernel.get()});
    library_.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
  } else {
    installed_.push_back({name, "refused"});
    library_.impl(local.c_str(),
                  torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RefusedKernel>(name)));
  }
}

void Installer::install_composite(std::string_view name) {
  const auto op = c10::Dispatcher::singleton().findOp(parsed(name));
  if (op.has_value() && !op->hasKernelForDispatchKey(DispatchKey::CUDA) &&
      op->hasComputedKernelForDispatchKey(DispatchKey::CPU) &&
      !op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
    install(*op);
  }
}

void Installer::install_sparse(std::string_view name) {
  const auto op = c10::Dispatcher::singleton().findOp(parsed(name));
  if (!op.has_value() || !op->hasKernelForDispatchKey(DispatchKey::SparseCUDA)) return;
  sparse_library_.impl(
      std::string(name.substr(kNamespace.size())).c_str(),
      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SparseKernel>(*op)));
}

void Installer::install_all() {
  QuietWarnings quiet;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  // The operators with a CUDA kernel must be known before any gets one of ours.
  std::vector<OperatorHandle> with_kernel;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(kNamespace)) continue;
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && op->hasSchema() && op->hasKernelForDispatchKey(DispatchKey::CUDA))
      with_kernel.push_back(*op);
  }
  for (const OwnKernel& own : own_kernels()) {
    own_.insert(std::string(kNamespace).append(own.name));
    library_.impl(own.name, own.make());
  }
  for (const OperatorHandle& op : with_kernel) install(op);
  for (const std::string_view name : composite_operators()) install_composite(name);
  for (const std::string_view name : sparse_operators()) install_sparse(name);
}

}  // namespace emulated_gpu::operators
