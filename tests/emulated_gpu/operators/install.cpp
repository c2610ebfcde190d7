// SPDX-License-Identifier: Apache-2.0
// Installs the kernels when the library is loaded: for nearly every operator with a CUDA kernel, an
// EmulatedKernel at the same dispatch key. Views and memory (kKept) stay PyTorch's. What has no CPU
// kernel is refused by an error with the operator's name. The loading thread installs all, once.
#include <c10/cuda/CUDAStream.h>

#include <unordered_set>

#include "operators/emulated_kernel.h"
#include "operators/own_kernels.h"

namespace tencache {

namespace {

const bool kLog = getenv("EMULATED_GPU_LOG") != nullptr;

const std::unordered_set<std::string> kKept = {"aten::empty.memory_format",
                                               "aten::empty_strided",
                                               "aten::resize_",
                                               "aten::set_",
                                               "aten::set_.source_Storage",
                                               "aten::set_.source_Storage_storage_offset",
                                               "aten::set_.source_Tensor",
                                               "aten::record_stream",
                                               "aten::_local_scalar_dense",
                                               "aten::is_set_to",
                                               "aten::_fused_sdp_choice",
                                               "aten::_efficientzerotensor",
                                               "aten::_use_cudnn_ctc_loss",
                                               "aten::_use_cudnn_ctc_loss.Tensor",
                                               "aten::is_pinned",
                                               "aten::_pin_memory",
                                               "aten::copy_",
                                               "aten::native_dropout",
                                               "aten::histc",
                                               "aten::_fused_rms_norm",
                                               "aten::_fused_rms_norm_backward",
                                               "aten::_thnn_fused_gru_cell",
                                               "aten::_thnn_fused_gru_cell_backward",
                                               "aten::_thnn_fused_lstm_cell",
                                               "aten::_thnn_fused_lstm_cell_backward_impl",
                                               "aten::_reshape_alias",
                                               "aten::as_strided"};
// Composite, but their parts would choose a library of CUDA's by the device.
const std::vector<std::string> kAlso = {"aten::convolution", "aten::convolution_backward",
                                        "aten::_convolution", "aten::linalg_eig"};

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

struct Refused final : public c10::OperatorKernel {
  explicit Refused(std::string name) : name(std::move(name)) {}
  void operator()(const OperatorHandle&, DispatchKeySet, Stack*) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "emulated GPU: ", name,
                                " has no CPU kernel, so the emulated GPU has none either");
  }
  std::string name;
};

class QuietWarnings : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

size_t overridden = 0, refused = 0, kept = 0;

void install() {
  QuietWarnings quiet;
  c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const auto implement = [&](const c10::OperatorName& name, const OperatorHandle& op) {
    const std::string full = c10::toString(name);
    const std::string local = full.substr(std::string("aten::").size());
    if (!op.hasComputedKernelForDispatchKey(DispatchKey::CPU)) {
      ++refused;
      library->impl(local.c_str(),
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refused>(full)));
      return;
    }
    ++overridden;
    library->impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                     std::make_unique<EmulatedKernel>(describe(op, full))));
  };
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema() || !op->hasKernelForDispatchKey(DispatchKey::CUDA))
      continue;
    const std::string full = c10::toString(name);
    if (kKept.contains(full) || is_view(op->schema())) {
      ++kept;
      continue;
    }
    implement(name, *op);
  }
  for (const std::string& full : kAlso) {
    const size_t dot = full.find('.');
    const c10::OperatorName name(full.substr(0, dot),
                                 dot == std::string::npos ? "" : full.substr(dot + 1));
    const auto op = dispatcher.findOp(name);
    if (op.has_value() && !op->hasKernelForDispatchKey(DispatchKey::CUDA) &&
        op->hasComputedKernelForDispatchKey(DispatchKey::CPU) &&
        !op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) {
      implement(name, *op);
    }
  }
  register_own_kernels(library);
  if (kLog)
    fprintf(stderr, "emulated GPU: %zu operators emulated, %zu refused, %zu kept\n", overridden,
            refused, kept);
}

// Not a constructor function: that would run before the lists above exist.
const bool installed = (install(), true);

}  // namespace

}  // namespace tencache

// A kernel that no operator announces, as of an extension: data[i] *= factor in the current stream.
extern "C" __attribute__((visibility("default"))) int emulated_gpu_unannounced_scale(
    uint64_t address, uint64_t count, float factor) {
  struct State {
    float* data;
    uint64_t count;
    float factor;
  };
  const EmulatedTask task = {"emulated_gpu_unannounced_scale",
                             [](void* state) {
                               auto* todo = static_cast<State*>(state);
                               for (uint64_t i = 0; i < todo->count; ++i)
                                 todo->data[i] *= todo->factor;
                             },
                             [](void* state) { delete static_cast<State*>(state); },
                             new State{reinterpret_cast<float*>(address), count, factor}};
  const EmulatedRange range = {address, count * sizeof(float), 1};
  return emulated_gpu_launch(c10::cuda::getCurrentCUDAStream().stream(), &task, &range, 1);
}
